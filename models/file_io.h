// Plain files for a user's input and output: model directories and token files. They may be
// symbolic links (as in a download cache) and obey the umask, so they do not use the engine's
// FileSystem, which supports neither. Large files that are not read again are written with direct
// I/O.
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

  /// Reads all `length` bytes at `offset`. Errors: Io; Corrupt if the file is shorter.
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
  /// Creates a file, which must not exist; its mode is 0666 less the umask. Errors: Io.
  static Result<OutputFile> create(const std::string& path);
  /// Creates an unnamed file in `folder`: until link() gives it the name `path`, it disappears with
  /// the process. The folder of `path` need not exist yet, but must be on the same file system.
  /// Errors: Io, also if the file system has no unnamed files.
  static Result<OutputFile> create_unnamed(const std::string& folder, const std::string& path);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_ + buffered_; }

  /// Reserves disk space of `length` bytes for append(). Errors: NoSpace, Io; Unsupported if the
  /// file system cannot reserve space.
  Result<void> reserve(std::uint64_t length) noexcept;
  /// From now on collects bytes and writes them with direct I/O if the file system supports it:
  /// faster for many bytes, and without displacing cached files. Call it before append().
  void write_directly() noexcept;
  /// Appends all bytes. Errors: NoSpace, Io, also those of earlier bytes.
  Result<void> append(const void* source, std::uint64_t length) noexcept;
  /// Gives an unnamed file its name, which must not exist. Errors: NoSpace, Io.
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
  std::uint64_t size_ = 0;                        // bytes written
  std::unique_ptr<std::byte, Unaligned> buffer_;  // null: bytes are written without collecting
  std::uint64_t buffered_ = 0;                    // bytes in the buffer
  bool direct_ = false;                           // direct I/O, as long as it works
};

}  // namespace artesian::models
