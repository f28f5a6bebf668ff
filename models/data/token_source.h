// A stream of token ids on disk, read by position: a .bin file of ids, or text whose bytes are the
// ids. Holds descriptors and sizes, never the data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace artesian::models {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::uint64_t count() const noexcept = 0;
  /// target[i] = token (first + i); first + target.size() <= count(). Errors: Io, Corrupt.
  /// Thread: one at a time.
  virtual Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept = 0;
};

/// A file of little-endian ids: uint16 if vocab_size <= 65536, else uint32. Reads it through once,
/// so that an id outside the vocabulary is found before training. Errors: Io; Invalid.
Result<std::unique_ptr<TokenSource>> open_token_file(const std::string& path,
                                                     std::int64_t vocab_size);

/// The bytes of a file, or of every regular file below a folder, sorted by the parts of their
/// paths. Errors: Io; Invalid (missing).
Result<std::unique_ptr<TokenSource>> open_text_bytes(const std::string& path);

}  // namespace artesian::models
