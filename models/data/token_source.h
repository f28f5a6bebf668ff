// A stream of token ids on disk, read by position: a .bin file of ids, or text whose bytes are the
// ids. Holds descriptors and sizes, never the data.
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

/// Who wrote a file of ids: a user may have written another width than is read.
enum class IdsFrom : std::uint8_t { User, Tokenizer };

/// Bytes of an id: 2 if vocab_size <= 65536, else 4.
std::uint64_t id_width(std::int64_t vocab_size) noexcept;

/// A file of little-endian ids of id_width(). Reads it through once, so that an id outside the
/// vocabulary is found before training, and of a user's file that every second id is 0, as in one
/// of wider ids. Errors: Io; Invalid.
Result<std::unique_ptr<TokenSource>> open_token_file(const std::string& path,
                                                     std::int64_t vocab_size,
                                                     IdsFrom from = IdsFrom::User);

/// The bytes of files of text, one after the other; of JSON lines those of the field, each with a
/// line end. Errors: Io, NoSpace; Invalid (a line without it).
Result<std::unique_ptr<TokenSource>> open_text_bytes(const std::vector<DataFile>& files,
                                                     const std::string& text_field = "text");

/// Several streams as one.
std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources);

}  // namespace artesian::models
