// The training samples of `--data PATH`: the token stream cut into windows that do not overlap, in
// an order given by the seed. Sample i has input tokens[iL .. iL+L-1] and targets one further. The
// stream wraps around: sample number n is window n modulo their count of pass n / count, and each
// pass is shuffled differently.
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
  /// .bin files, text, JSON lines, or folders of text and JSON lines; together one stream, in this
  /// order
  std::vector<std::string> paths;
  // if set: all files except .bin are JSON lines with this field
  std::optional<std::string> text_field = {};
  std::string model_directory;  // its tokenizer.json, if any, converts text to ids
  std::int64_t vocab_size = 0;
  std::int64_t sequence_length = 0;  // L, 1 or more
  SampleOrder order = SampleOrder::Shuffled;
  std::uint64_t seed = 0;
  std::function<bool()> stopped = {};  // polled during tokenisation: whether to stop
  std::string token_cache = {};        // folder of the token cache; empty: no cache
  /// Called before tokenising or other long reads; an error stops them.
  std::function<Result<void>()> before_long_work = {};
};

class TokenData {
 public:
  /// Logs the format in which the data is read. Errors: Io, NoSpace; Cancelled by `stopped`;
  /// Invalid (missing, empty, unsupported format, too short for one window, ids outside the
  /// vocabulary); those of before_long_work.
  static Result<TokenData> open(const TokenDataOptions& options);

  std::uint64_t tokens() const noexcept { return source_->count(); }
  std::uint64_t samples() const noexcept { return samples_; }

  /// Identifies the stream: XXH3-128, hex, over 64 evenly spread pieces of at most 16,384 ids each,
  /// as 32-bit numbers. Errors: Io, Corrupt.
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

/// The image of `index` under permutation `number` of [0, count) for this seed: a bijection,
/// computed without a table.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t seed,
                       std::uint64_t number) noexcept;

}  // namespace artesian::models
