// Plain files for what a user gives and gets: model directories and token files. They may be links
// (as in a download cache) and obey the umask, so they do not go through the engine's FileSystem,
// which has neither. What is large and not read again is written past the page cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"

namespace artesian::models {

/// A regular file opened for reading. Thread: any; reads are positioned.
class InputFile {
 public:
  /// Errors: Io (missing, not readable); Invalid (not a regular file).
  static Result<InputFile> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }
  int descriptor() const noexcept { return descriptor_.value(); }

  /// All `length` bytes at `offset`. Errors: Io; Corrupt when the file ends before.
  Result<void> read_at(void* target, std::uint64_t length, std::uint64_t offset) const noexcept;

 private:
  InputFile(std::string path, Descriptor descriptor, std::uint64_t size)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_(size) {}

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

/// Reads all of a file: calls take(const char* data, std::uint64_t size) on one block after the
/// other. Errors: as InputFile::read_at, and take's.
template <typename Take>
Result<void> each_block(const InputFile& file, const Take& take) {
  constexpr std::uint64_t block_bytes = 1 << 20;
  std::vector<char> block(static_cast<std::size_t>(std::min(block_bytes, file.size())));
  for (std::uint64_t offset = 0; offset < file.size(); offset += block_bytes) {
    const std::uint64_t length = std::min(block_bytes, file.size() - offset);
    ARTESIAN_TRY_VOID(file.read_at(block.data(), length, offset));
    ARTESIAN_TRY_VOID(take(block.data(), length));
  }
  return {};
}

/// A new file, written from front to back.
class OutputFile {
 public:
  /// The file must not exist; its mode is 0666 less the umask. Errors: Io.
  static Result<OutputFile> create(const std::string& path);
  /// A file without a name: until link() gives it this one, it goes with the process, however that
  /// ends. The folder of `path` need not be there yet; the file lies in `folder`, on the same file
  /// system. Errors: Io; there are some without such files.
  static Result<OutputFile> create_unnamed(const std::string& folder, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_ + buffered_; }

  /// Reserves disk space of `length` bytes for append(). Errors: NoSpace, Io; Unsupported if the
  /// file system cannot promise room.
  Result<void> reserve(std::uint64_t length) noexcept;
  /// Gathers bytes from here on and writes them past the page cache if the file system can: faster
  /// for many bytes, and without taking memory from other programs. Not after append().
  void write_directly() noexcept;
  /// Appends all bytes. Errors: NoSpace, Io, also of bytes that were appended before.
  Result<void> append(const void* source, std::uint64_t length) noexcept;
  /// Gives an unnamed file its name, which must be free. Errors: NoSpace, Io.
  Result<void> link() noexcept;
  /// Makes the bytes durable and closes. Errors: NoSpace, Io.
  Result<void> finish() noexcept;

 private:
  struct Unaligned {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };
  OutputFile(std::string path, Descriptor descriptor)
      : path_(std::move(path)), descriptor_(std::move(descriptor)) {}
  Result<void> write(const std::byte* bytes, std::uint64_t length) noexcept;
  Result<void> flush() noexcept;
  bool set_direct(bool direct) noexcept;

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;                        // bytes that are written
  std::unique_ptr<std::byte, Unaligned> buffer_;  // null: bytes are written without gathering
  std::uint64_t buffered_ = 0;                    // bytes in it
  bool direct_ = false;                           // past the page cache, as long as that works
};

}  // namespace artesian::models
