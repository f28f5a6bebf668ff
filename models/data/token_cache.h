// TokenCache: tokens are kept from run to run, since a gigabyte of text takes many minutes to
// tokenise. A file of ids is named by a hash of all that decides its content: the texts, the
// tokenizer, the script and the vocabulary's size. A kept file is renamed into its place when it is
// complete and never changed; the ones that were used longest ago go where the folder grows above
// its limit. What cannot be kept is tokenised again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/data/data_form.h"

namespace artesian::models {

/// All that the tokens of a text depend on, but for the versions of Python and its packages.
struct TokenOrigin {
  std::vector<DataFile> files;
  std::vector<std::string> settings;  // files beside: tokenizer, script; one may be missing
  std::string parameters;             // the rest, as text
};

class TokenCache {
 public:
  static constexpr std::uint64_t default_bytes_max = std::uint64_t{16} << 30;

  /// `folder` is made when it is needed; empty: nothing is kept.
  explicit TokenCache(std::string folder, std::uint64_t bytes_max = default_bytes_max)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}

  bool keeps() const noexcept { return !folder_.empty(); }
  /// Reads all of the files. Errors: Io, Corrupt.
  static Result<std::string> key(const TokenOrigin& origin);
  /// The file of this key, which counts as used now.
  std::optional<std::string> find(const std::string& key) const;
  /// Keeps a copy of the file, and removes old files above the limit. Errors: Io, NoSpace.
  Result<void> keep(const std::string& key, const std::string& path) const;

 private:
  void make_room(std::uint64_t bytes) const;

  std::string folder_;
  std::uint64_t bytes_max_;
};

/// $XDG_CACHE_HOME/artesian/tokens, else ~/.cache/artesian/tokens; empty where neither is known.
std::string default_token_cache();

}  // namespace artesian::models
