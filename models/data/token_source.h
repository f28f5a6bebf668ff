// A stream of token ids on disk, read by position: a .bin file of ids, or text whose bytes are the
// ids. Keeps only descriptors and sizes in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/data/data_form.h"

namespace artesian::models {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::uint64_t count() const noexcept = 0;
  /// target[i] = token (first + i); first + target.size() <= count(). Errors: Io, Corrupt.
  /// Thread: one at a time.
  virtual Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept = 0;
};

/// Who wrote a file of ids: a user may have used another width than expected.
enum class IdsFrom : std::uint8_t { User, Tokenizer };

/// Bytes per id: 2 if vocab_size <= 65536, else 4.
std::uint64_t id_width(std::int64_t vocab_size) noexcept;

/// A file of little-endian ids of id_width(). Reads the whole file once, so that ids outside the
/// vocabulary are found before training. In a user's file it also detects that every second id is
/// 0, which means wider ids. Errors: Io; Invalid.
Result<std::unique_ptr<TokenSource>> open_token_file(const std::string& path,
                                                     std::int64_t vocab_size,
                                                     IdsFrom from = IdsFrom::User);

/// The bytes of text files, one after the other; for JSON lines the bytes of the field, each with a
/// line end. Errors: Io, NoSpace; Invalid (a line without the field).
Result<std::unique_ptr<TokenSource>> open_text_bytes(const std::vector<DataFile>& files,
                                                     const std::string& text_field = "text");

/// Several streams as one.
std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources);

}  // namespace artesian::models
