// TokenCache: keeps tokens between runs, since a gigabyte of text takes many minutes to tokenise. A
// file of ids is named by a hash of everything that determines its content: the texts, the
// tokenizer, the script and the vocabulary's size. A cached file is renamed into its place when
// complete and never changed; the least recently used files are removed when the folder exceeds its
// limit. Texts whose tokens cannot be cached are tokenised again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/data/data_form.h"

namespace artesian::models {

/// Everything that the tokens of a text depend on, except the versions of Python and its packages.
struct TokenOrigin {
  std::vector<DataFile> files;
  std::vector<std::string> settings;  // further files: tokenizer and script; one may be missing
  std::string parameters;             // other parameters, as text
};

class TokenCache {
 public:
  static constexpr std::uint64_t default_bytes_max = std::uint64_t{16} << 30;

  /// `folder` is created when needed; empty: nothing is cached.
  explicit TokenCache(std::string folder, std::uint64_t bytes_max = default_bytes_max)
      : folder_(std::move(folder)), bytes_max_(bytes_max) {}

  bool keeps() const noexcept { return !folder_.empty(); }
  /// Hashes all of the files. Errors: Io, Corrupt.
  static Result<std::string> key(const TokenOrigin& origin);
  /// Returns the file with this key, and marks it as used now.
  std::optional<std::string> find(const std::string& key) const;
  /// Adds a copy of the file, and removes old files beyond the limit. Errors: Io, NoSpace.
  Result<void> keep(const std::string& key, const std::string& path) const;

 private:
  void make_room(std::uint64_t bytes) const;

  std::string folder_;
  std::uint64_t bytes_max_;
};

/// $XDG_CACHE_HOME/artesian/tokens, else ~/.cache/artesian/tokens; empty if neither is known.
std::string default_token_cache();

}  // namespace artesian::models
