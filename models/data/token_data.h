// What `--data PATH` gives to training: the token stream cut into windows that do not overlap, in
// an order that the seed decides. Sample i has input tokens[iL .. iL+L-1] and targets one further.
// The stream wraps around: sample number n is window n modulo their count of pass n / count, and
// each pass is shuffled anew.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/data/token_source.h"

namespace artesian::models {

enum class SampleOrder : std::uint8_t { Shuffled, Sequential };

struct TokenDataOptions {
  /// .bin files, text, JSON lines, or folders of the latter two; one stream, in this order.
  std::vector<std::string> paths;
  std::optional<std::string> text_field =
      {};                       // given: all but .bin are JSON lines, with this field
  std::string model_directory;  // its tokenizer.json, if any, turns text into ids
  std::int64_t vocab_size = 0;
  std::int64_t sequence_length = 0;  // L, 1 or more
  SampleOrder order = SampleOrder::Shuffled;
  std::uint64_t seed = 0;
  std::function<bool()> stopped = {};  // asked while text is tokenised: end that
  std::string token_cache = {};        // folder where tokens are kept; empty: nowhere
  /// Called before text is tokenised or much is read, which may take long: an error ends it.
  std::function<Result<void>()> before_long_work = {};
};

class TokenData {
 public:
  /// Says in the log as what ids are read. Errors: Io, NoSpace; Cancelled, as `stopped` said;
  /// Invalid (missing, empty, of a form that is not read, too short for one window, ids outside the
  /// vocabulary); those of before_long_work.
  static Result<TokenData> open(const TokenDataOptions& options);

  std::uint64_t tokens() const noexcept { return source_->count(); }
  std::uint64_t samples() const noexcept { return samples_; }

  /// XXH3-128 over 64 pieces of the stream, evenly spread, of at most 16,384 ids, as 32-bit
  /// numbers; hex: whether it is the stream of another time. Errors: Io, Corrupt.
  Result<std::string> digest() noexcept;

  /// Shape: ids, targets: [sequence_length]. Any sample_number. Errors: Io, Corrupt.
  /// Thread: one at a time.
  Result<void> sample(std::uint64_t sample_number, std::span<std::int64_t> ids,
                      std::span<std::int64_t> targets) noexcept;

 private:
  TokenData(TokenDataOptions options, std::unique_ptr<TokenSource> source);

  TokenDataOptions options_;
  std::unique_ptr<TokenSource> source_;
  std::uint64_t samples_ = 0;
  std::vector<std::int64_t> window_;  // [sequence_length + 1]
};

/// The place of `index` in permutation `number` of [0, count) under the seed: a bijection for each
/// number, computed on its own, without a table.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t seed,
                       std::uint64_t number) noexcept;

}  // namespace artesian::models
