#include "models/data/token_source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "models/file_io.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t piece_size = 64 << 10;  // bytes on the stack per read

Error data_error(const std::string& path, const std::string& text) {
  return make_error(ErrorCode::Invalid, "data: " + path + ": " + text);
}

/// Reads `target.size()` unsigned integers of `width` bytes at `offset`.
Result<void> read_ids(const InputFile& file, std::uint64_t width, std::uint64_t offset,
                      std::span<std::int64_t> target) noexcept {
  std::array<std::byte, piece_size> bytes;
  while (!target.empty()) {
    const std::size_t count = std::min<std::size_t>(target.size(), piece_size / width);
    ARTESIAN_TRY_VOID(file.read_at(bytes.data(), count * width, offset));
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t id = 0;  // the machine is little endian, as the files are
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

  std::uint64_t count() const noexcept override { return file_.size() / width_; }
  Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept override {
    ARTESIAN_CHECK(first <= count() && target.size() <= count() - first, first, target.size());
    return read_ids(file_, width_, first * width_, target);
  }

 private:
  InputFile file_;
  std::uint64_t width_;
};

Result<void> check_ids(TokenSource& source, const std::string& path, std::int64_t vocab_size) {
  std::vector<std::int64_t> ids(piece_size);
  for (std::uint64_t first = 0; first < source.count(); first += ids.size()) {
    const auto count = std::min<std::uint64_t>(ids.size(), source.count() - first);
    const std::span<std::int64_t> piece(ids.data(), count);
    ARTESIAN_TRY_VOID(source.read(first, piece));
    const auto largest = std::max_element(piece.begin(), piece.end());
    if (*largest < vocab_size) continue;
    const auto position = first + static_cast<std::uint64_t>(largest - piece.begin());
    return data_error(path, "token " + std::to_string(position) + ": got id " +
                                std::to_string(*largest) + ", allowed below the vocab_size " +
                                std::to_string(vocab_size) +
                                " of the model; make the file with the model's own tokenizer");
  }
  return {};
}

class TextBytes final : public TokenSource {
 public:
  struct Part {
    std::string path;
    std::uint64_t first;  // position of its first byte in the stream
    std::uint64_t size;
  };
  explicit TextBytes(std::vector<Part> parts) : parts_(std::move(parts)) {}

  std::uint64_t count() const noexcept override {
    return parts_.empty() ? 0 : parts_.back().first + parts_.back().size;
  }
  Result<void> read(std::uint64_t first, std::span<std::int64_t> target) noexcept override;

 private:
  std::vector<Part> parts_;
  std::vector<InputFile> open_;  // the part read last: at most one
};

Result<void> TextBytes::read(std::uint64_t first, std::span<std::int64_t> target) noexcept {
  ARTESIAN_CHECK(first <= count() && target.size() <= count() - first, first, target.size());
  const auto after = [](std::uint64_t position, const Part& part) { return position < part.first; };
  while (!target.empty()) {
    // The last part that starts at or before `first`: empty parts before it are passed over.
    const Part& part = *(std::upper_bound(parts_.begin(), parts_.end(), first, after) - 1);
    const std::uint64_t offset = first - part.first;
    const auto length = std::min<std::uint64_t>(target.size(), part.size - offset);
    if (open_.empty() || open_.front().path() != part.path) {
      open_.clear();
      ARTESIAN_TRY(file, InputFile::open(part.path));
      open_.push_back(std::move(file));
    }
    ARTESIAN_TRY_VOID(read_ids(open_.front(), 1, offset, target.first(length)));
    target = target.subspan(length);
    first += length;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TokenSource>> open_token_file(const std::string& path,
                                                     std::int64_t vocab_size) {
  const std::uint64_t width = vocab_size <= 65536 ? 2 : 4;
  ARTESIAN_TRY(file, InputFile::open(path));
  if (file.size() % width != 0) {
    return data_error(path, "got " + std::to_string(file.size()) +
                                " bytes, allowed a multiple of " + std::to_string(width) +
                                " (ids of a vocab_size of " + std::to_string(vocab_size) +
                                " are uint" + std::to_string(8 * width) + ")");
  }
  auto source = std::make_unique<TokenFile>(std::move(file), width);
  ARTESIAN_TRY_VOID(check_ids(*source, path, vocab_size));
  return source;
}

Result<std::unique_ptr<TokenSource>> open_text_bytes(const std::string& path) {
  std::vector<std::filesystem::path> files;
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) {
    std::filesystem::recursive_directory_iterator entry(path, failure);
    for (; !failure && entry != end(entry); entry.increment(failure)) {
      if (entry->is_regular_file(failure)) files.push_back(entry->path());
      failure.clear();  // a link to nothing, or a file that went away, is no file
    }
    if (failure) return data_error(path, "cannot list the folder: " + failure.message());
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(path);
  }
  std::vector<TextBytes::Part> parts;
  std::uint64_t position = 0;
  for (const auto& name : files) {
    ARTESIAN_TRY(file, InputFile::open(name));
    parts.push_back({.path = name, .first = position, .size = file.size()});
    position += file.size();
  }
  return std::make_unique<TextBytes>(std::move(parts));
}

}  // namespace artesian::models
