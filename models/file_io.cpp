#include "models/file_io.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/system_file.h"

namespace artesian::models {
namespace {

constexpr std::uint64_t buffer_bytes = 4 << 20;  // buffer size of a file written with direct I/O
constexpr std::uint64_t buffer_alignment = 4096;

Error file_error(const char* what, const std::string& path, int system_error) {
  const bool full = system_error == ENOSPC || system_error == EDQUOT;
  Error error = make_error(full ? ErrorCode::NoSpace : ErrorCode::Io, what, system_error);
  error.file = path;
  return error;
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.value() < 0) return file_error("cannot open", path, errno);
  struct stat status {};
  if (::fstat(descriptor.value(), &status) != 0) return file_error("cannot stat", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return make_error(ErrorCode::Invalid, "not a regular file: " + path);
  }
  return InputFile(path, std::move(descriptor), static_cast<std::uint64_t>(status.st_size));
}

Result<void> InputFile::read_at(void* target, std::uint64_t length,
                                std::uint64_t offset) const noexcept {
  auto* bytes = static_cast<std::byte*>(target);
  while (length != 0) {
    const ssize_t count = ::pread(descriptor(), bytes, length, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      Error error = count < 0 ? file_error("cannot read", path_, errno)
                              : make_error(ErrorCode::Corrupt, "the file ends too early");
      error.file = path_;
      error.offset = offset;
      error.length = length;
      return error;
    }
    bytes += count;
    offset += static_cast<std::uint64_t>(count);
    length -= static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  Descriptor descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor.value() < 0) return file_error("cannot create", path, errno);
  return OutputFile(path, std::move(descriptor));
}

Result<OutputFile> OutputFile::create_unnamed(const std::string& folder, const std::string& path) {
  Descriptor descriptor(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
  if (descriptor.value() < 0) return file_error("cannot create a file", folder, errno);
  return OutputFile(path, std::move(descriptor));
}

Result<void> OutputFile::reserve(std::uint64_t length) noexcept {
  int failed = 0;
  do {
    failed = ::fallocate(descriptor_.value(), 0, 0, static_cast<off_t>(length)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == 0) return {};
  Error error = file_error("cannot reserve its bytes", path_, failed);
  error.length = length;
  if (may_lack_call(failed)) error.code = ErrorCode::Unsupported;
  return error;
}

Result<void> OutputFile::link() noexcept {
  // By its name in /proc, as linking by descriptor needs a capability.
  const std::string descriptor = fmt::format("/proc/self/fd/{}", descriptor_.value());
  if (::linkat(AT_FDCWD, descriptor.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    return {};
  }
  return file_error("cannot give a name to", path_, errno);
}

bool OutputFile::set_direct(bool direct) noexcept {
  const int flags = ::fcntl(descriptor_.value(), F_GETFL);
  if (flags < 0) return false;
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  if (::fcntl(descriptor_.value(), F_SETFL, wanted) != 0) return false;
  direct_ = direct;
  return true;
}

void OutputFile::write_directly() noexcept {
  ARTESIAN_CHECK(size_ == 0, size_);
  if (!set_direct(true)) return;
  buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(buffer_alignment, buffer_bytes)));
  if (buffer_ == nullptr) static_cast<void>(set_direct(false));
}

Result<void> OutputFile::write(const std::byte* bytes, std::uint64_t length) noexcept {
  const std::uint64_t end = size_ + length;
  while (length != 0) {
    const ssize_t count = ::write(descriptor_.value(), bytes, length);
    if (count < 0 && errno == EINTR) continue;
    // A disk with larger sectors, or a file system that refuses direct I/O only now.
    if (count < 0 && errno == EINVAL && direct_ && set_direct(false)) continue;
    if (count < 0) {
      Error error = file_error("cannot write", path_, errno);
      error.offset = end - length;
      error.length = length;
      return error;
    }
    bytes += count;
    length -= static_cast<std::uint64_t>(count);
  }
  size_ = end;
  return {};
}

/// Writes the collected bytes.
Result<void> OutputFile::flush() noexcept {
  if (buffered_ == 0) return {};
  if (buffered_ % buffer_alignment != 0) static_cast<void>(set_direct(false));  // the last bytes
  return write(buffer_.get(), std::exchange(buffered_, 0));
}

Result<void> OutputFile::append(const void* source, std::uint64_t length) noexcept {
  const auto* bytes = static_cast<const std::byte*>(source);
  if (buffer_ == nullptr) return write(bytes, length);
  while (length != 0) {
    const std::uint64_t part = std::min(length, buffer_bytes - buffered_);
    std::memcpy(buffer_.get() + buffered_, bytes, part);
    buffered_ += part;
    bytes += part;
    length -= part;
    if (buffered_ == buffer_bytes) ARTESIAN_TRY_VOID(flush());
  }
  return {};
}

Result<void> OutputFile::finish() noexcept {
  ARTESIAN_TRY_VOID(flush());
  buffer_.reset();
  if (::fsync(descriptor_.value()) != 0) return file_error("cannot sync", path_, errno);
  descriptor_.reset();
  return {};
}

}  // namespace artesian::models
