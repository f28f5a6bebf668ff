#include "models/data/token_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "models/data/data_form.h"
#include "models/data/json_lines.h"
#include "models/file_io.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t read_piece_size = 64 << 10;  // bytes per read, on the stack

/// Reads `target.size()` unsigned integers of `width` bytes at `offset`.
Result<void> read_ids(const InputFile& file, std::uint64_t width, std::uint64_t offset,
                      std::span<std::int64_t> target) noexcept {
  std::array<std::byte, read_piece_size> bytes;
  while (!target.empty()) {
    const std::size_t count = std::min<std::size_t>(target.size(), read_piece_size / width);
    ARTESIAN_TRY_VOID(file.read_at(bytes.data(), count * width, offset));
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t id = 0;  // the machine is little endian, like the files
      std::memcpy(&id, bytes.data() + i * width, width);
      target[i] = id;
    }
    target = target.subspan(count);
    offset += count * width;
  }
  return {};
}

class TokenFile final : public TokenSource {
 public:
  TokenFile(InputFile file, std::uint64_t width) : file_(std::move(file)), width_(width) {}

  const InputFile& file() const noexcept { return file_; }
  std::uint64_t count() const noexcept override { return file_.size() / width_; }
  Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept override {
    ARTESIAN_CHECK(first <= count() && target.size() <= count() - first, first, target.size());
    return read_ids(file_, width_, first * width_, target);
  }

 private:
  InputFile file_;
  std::uint64_t width_;
};

/// True if, judging by a sample, ids of the other width would all be in the vocabulary.
bool looks_narrow(const InputFile& file, std::int64_t vocab_size) noexcept {
  std::array<std::int64_t, 1024> ids;
  const std::span<std::int64_t> head(ids.data(),
                                     std::min<std::uint64_t>(ids.size(), file.size() / 2));
  if (!read_ids(file, 2, 0, head).has_value()) return false;
  return std::all_of(head.begin(), head.end(), [&](std::int64_t id) { return id < vocab_size; });
}

/// Becomes true if every second id, from the second on, has been 0 for enough ids.
class SecondIds {
 public:
  void see(std::span<const std::int64_t> ids) {  // must begin at an even position
    for (std::size_t i = 1; i < ids.size(); i += 2) zero_ = zero_ && ids[i] == 0;
    seen_ += ids.size();
  }
  bool all_zero() const { return zero_ && seen_ >= 32 && seen_ % 2 == 0; }

 private:
  bool zero_ = true;
  std::uint64_t seen_ = 0;
};

std::string width_name(std::uint64_t width) {
  return fmt::format("uint{}", 8 * width);
}

Result<void> check_ids(TokenSource& source, const InputFile& file, std::int64_t vocab_size,
                       IdsFrom from) {
  const std::string& path = file.path();
  const std::uint64_t width = id_width(vocab_size);
  SecondIds second;
  std::vector<std::int64_t> ids(read_piece_size);
  for (std::uint64_t first = 0; first < source.count(); first += ids.size()) {
    const auto count = std::min<std::uint64_t>(ids.size(), source.count() - first);
    const std::span<std::int64_t> piece(ids.data(), count);
    ARTESIAN_TRY_VOID(source.read(first, piece));
    const auto largest = std::max_element(piece.begin(), piece.end());
    second.see(piece);
    if (*largest < vocab_size) continue;
    const bool narrow = width == 4 && looks_narrow(file, vocab_size);
    const auto position = first + static_cast<std::uint64_t>(largest - piece.begin());
    return data_error(
        path, fmt::format("token {}: got id {}, allowed below the vocab_size {} of the model; {}",
                          position, *largest, vocab_size,
                          narrow ? "the ids look like uint16, and those of this model are "
                                   "read as uint32: write them so"
                                 : "make the file with the model's own tokenizer"));
  }
  if (from != IdsFrom::User || width != 2 || !second.all_zero()) return {};
  return data_error(
      path,
      fmt::format(
          "read as uint16, every second id is 0: these look like wider ids, and a vocab_size of {} "
          "is read as uint16, little-endian; write them so: array.astype('<u2').tofile(...)",
          vocab_size));
}

class TextBytes final : public TokenSource {
 public:
  struct FileSpan {
    std::string path;
    std::uint64_t first;  // position of its first byte in the stream
    std::uint64_t size;
    std::optional<InputFile> file{};  // for an unnamed file
  };
  explicit TextBytes(std::vector<FileSpan> parts) : parts_(std::move(parts)) {}

  std::uint64_t count() const noexcept override {
    return parts_.empty() ? 0 : parts_.back().first + parts_.back().size;
  }
  Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept override;

 private:
  std::vector<FileSpan> parts_;
  std::vector<InputFile> open_;  // the part that was read last; at most one
};

Result<void> TextBytes::read(std::uint64_t first, std::span<std::int64_t> target) noexcept {
  ARTESIAN_CHECK(first <= count() && target.size() <= count() - first, first, target.size());
  const auto after = [](std::uint64_t position, const FileSpan& part) {
    return position < part.first;
  };
  while (!target.empty()) {
    // The last part that starts at or before `first`; empty parts before it are skipped.
    const FileSpan& part = *(std::upper_bound(parts_.begin(), parts_.end(), first, after) - 1);
    const std::uint64_t offset = first - part.first;
    const auto length = std::min<std::uint64_t>(target.size(), part.size - offset);
    if (!part.file.has_value() && (open_.empty() || open_.front().path() != part.path)) {
      open_.clear();
      ARTESIAN_TRY(file, InputFile::open(part.path));
      open_.push_back(std::move(file));
    }
    const InputFile& file = part.file.has_value() ? *part.file : open_.front();
    ARTESIAN_TRY_VOID(read_ids(file, 1, offset, target.first(length)));
    target = target.subspan(length);
    first += length;
  }
  return {};
}

class JoinedSource final : public TokenSource {
 public:
  explicit JoinedSource(std::vector<std::unique_ptr<TokenSource>> sources)
      : sources_(std::move(sources)) {}

  std::uint64_t count() const noexcept override {
    std::uint64_t count = 0;
    for (const auto& source : sources_) count += source->count();
    return count;
  }
  Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept override {
    ARTESIAN_CHECK(first <= count() && target.size() <= count() - first, first, target.size());
    for (const auto& source : sources_) {
      if (first >= source->count()) {
        first -= source->count();
        continue;
      }
      const auto length = std::min<std::uint64_t>(target.size(), source->count() - first);
      ARTESIAN_TRY_VOID(source->read(first, target.first(length)));
      target = target.subspan(length);
      first = 0;
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<TokenSource>> sources_;
};

}  // namespace

std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources) {
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_unique<JoinedSource>(std::move(sources));
}

std::uint64_t id_width(std::int64_t vocab_size) noexcept {
  return vocab_size <= 65536 ? 2 : 4;
}

Result<std::unique_ptr<TokenSource>> open_token_file(const std::string& path,
                                                     std::int64_t vocab_size, IdsFrom from) {
  const std::uint64_t width = id_width(vocab_size);
  ARTESIAN_TRY(file, InputFile::open(path));
  if (file.size() % width != 0) {
    return data_error(
        path,
        fmt::format("got {} bytes, allowed a multiple of {} (ids of a vocab_size of {} are {})",
                    file.size(), width, vocab_size, width_name(width)));
  }
  auto source = std::make_unique<TokenFile>(std::move(file), width);
  ARTESIAN_TRY_VOID(check_ids(*source, source->file(), vocab_size, from));
  return source;
}

Result<std::unique_ptr<TokenSource>> open_text_bytes(const std::vector<DataFile>& files,
                                                     const std::string& text_field) {
  std::vector<TextBytes::FileSpan> parts;
  std::uint64_t position = 0;
  for (const DataFile& file : files) {
    TextBytes::FileSpan part{.path = file.path, .first = position, .size = file.size};
    if (file.form == DataForm::JsonLines) {
      ARTESIAN_TRY(text, text_of_json_lines(file.path, text_field));
      part.size = text.size();
      part.file = std::move(text);
    }
    position += part.size;
    parts.push_back(std::move(part));
  }
  return std::make_unique<TextBytes>(std::move(parts));
}

}  // namespace artesian::models
