#include "base/system_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian {
namespace {

constexpr std::uint64_t assumed_alignment = 4096;
// The kernel transfers at most 2 GiB per call.
constexpr std::uint64_t transfer_length_max = 1u << 30;

/// Asks for the alignment of direct transfers on this open file; 0 if they should not be used.
std::uint64_t stated_alignment(int descriptor) noexcept {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
  }
#endif
  struct statfs file_system {};
  if (fstatfs(descriptor, &file_system) != 0) return 0;
  const bool in_memory = file_system.f_type == TMPFS_MAGIC ||
                         file_system.f_type == static_cast<long>(RAMFS_MAGIC) ||
                         file_system.f_type == static_cast<long>(HUGETLBFS_MAGIC);
  return in_memory ? 0 : assumed_alignment;
}

/// An aligned buffer for transfers whose memory or range is not aligned.
struct AlignedBuffer {
  AlignedBuffer(std::uint64_t alignment, std::uint64_t length) noexcept
      : data(static_cast<std::byte*>(std::aligned_alloc(std::max(alignment, assumed_alignment),
                                                        round_up(length, assumed_alignment)))) {
    ARTESIAN_CHECK(data != nullptr, length);
  }
  ~AlignedBuffer() { std::free(data); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  std::byte* data;
};

}  // namespace

Error system_failure(const char* what, const std::string& path, int system_error,
                     std::uint64_t offset, std::uint64_t length) {
  const bool full = system_error == ENOSPC || system_error == EDQUOT;
  Error error = make_error(full ? ErrorCode::NoSpace : ErrorCode::Io, what, system_error);
  error.file = path;
  error.offset = offset;
  error.length = length;
  return error;
}

bool may_lack_call(int system_error) noexcept {
  return system_error == EINVAL || system_error == ENOSYS || system_error == EOPNOTSUPP ||
         system_error == EPERM;
}

void warn_of(Lack lack, const std::string& path) {
  static std::mutex mutex;
  static auto* const seen = new std::set<std::pair<Lack, dev_t>>;  // never destroyed, like the log
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    const std::lock_guard lock(mutex);
    if (!seen->emplace(lack, status.st_dev).second) return;
  }
  switch (lack) {
    case Lack::Direct:
      return log_once(LogLevel::Warning, "direct I/O (O_DIRECT) is not available in " + path +
                                             ": transfers go through the page cache");
    case Lack::Permissions:
      return log_once(LogLevel::Warning, "cannot set the permissions of files in " + path +
                                             ": its file system decides who may read them");
    case Lack::FolderSync:
      return log_once(LogLevel::Warning,
                      "the file system of " + path +
                          " cannot sync a folder: a power cut may lose the files made last");
  }
}

Result<void> set_mode(int answer, const char* what, const std::string& folder,
                      const std::string& name) {
  if (answer == 0) return {};
  const int system_error = errno;
  if (!may_lack_call(system_error)) {
    return system_failure(fmt::format("cannot set the permissions of {}", what).c_str(),
                          folder + "/" + name, system_error);
  }
  warn_of(Lack::Permissions, folder);
  return {};
}

Result<void> folder_sync_failure(const char* what, const std::string& path, int system_error) {
  if (!may_lack_call(system_error) || system_error == EPERM) {
    return system_failure(what, path, system_error);
  }
  warn_of(Lack::FolderSync, path);
  return {};
}

Result<std::vector<std::string>> names_in(DIR* stream, const char* what, const std::string& path) {
  std::vector<std::string> names;
  errno = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe where each thread has its own stream
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int system_error = errno;
  ::closedir(stream);
  if (system_error != 0) return system_failure(what, path, system_error);
  std::sort(names.begin(), names.end());
  return names;
}

SystemFile::~SystemFile() {
  if (buffered_descriptor_ >= 0) ::close(buffered_descriptor_);
  locked_ ? close_guarded(descriptor_) : void(::close(descriptor_));
}

Result<int> SystemFile::buffered_descriptor() noexcept {
  if (!direct()) return descriptor_;
  const std::lock_guard lock(mutex_);
  if (buffered_descriptor_ < 0) {
    // Opened through /proc rather than by its path, which may be gone or lead to another file by
    // now.
    const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
    const int access = fcntl(descriptor_, F_GETFL) & O_ACCMODE;
    const int opened = retry_interrupted([&] { return ::open(own.c_str(), access | O_CLOEXEC); });
    if (opened < 0) {
      return system_failure("cannot open a file once more, for transfers that are not aligned",
                            path_, errno);
    }
    // Disables readahead: beside direct transfers it would cache pages that nobody reads, and large
    // folios that contain pages of other transfers.
    (void)posix_fadvise(opened, 0, 0, POSIX_FADV_RANDOM);
    buffered_descriptor_ = opened;
  }
  return buffered_descriptor_;
}

bool SystemFile::enable_direct() noexcept {
  const std::uint64_t alignment = stated_alignment(descriptor_);
  const int flags = fcntl(descriptor_, F_GETFL);
  if (alignment == 0 || flags < 0 || fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) {
    return false;
  }
  direct_alignment_ = alignment;
  return true;
}

bool SystemFile::enable_durable_writes() noexcept {
  // The flag can only be set when opening, not by fcntl. The file is not opened by its path, for
  // the reason below.
  const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
  const int flags = fcntl(descriptor_, F_GETFL);
  const int opened = retry_interrupted(
      [&] { return ::open(own.c_str(), (flags & O_ACCMODE) | O_DSYNC | O_CLOEXEC); });
  if (flags < 0 || opened < 0) return false;
  const int replaced = retry_interrupted([&] { return ::dup3(opened, descriptor_, O_CLOEXEC); });
  ::close(opened);
  return replaced == descriptor_;
}

Result<std::uint64_t> SystemFile::size() noexcept {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0) {
    return system_failure("cannot read the size of a file", path_, errno);
  }
  return static_cast<std::uint64_t>(status.st_size);
}

Error SystemFile::no_space(std::uint64_t needed, std::uint64_t available) const {
  Error error =
      make_error(ErrorCode::NoSpace,
                 fmt::format("cannot reserve disk space: needs {} bytes ({}), free are "
                             "{} bytes ({}); free some space or use another path",
                             needed, format_size(needed), available, format_size(available)),
                 ENOSPC);
  error.file = path_;
  return error;
}

Result<void> SystemFile::allocate(std::uint64_t bytes) noexcept {
  if (poison() != nullptr) return *poison();
  if (bytes == 0) return {};
  // Read before the try: a failed fallocate keeps its partial allocation, which would not count as
  // free.
  struct statvfs status {};
  const bool known = fstatvfs(descriptor_, &status) == 0;
  const std::uint64_t available = known ? status.f_bavail * status.f_frsize : 0;
  ARTESIAN_TRY(size_before, size());
  const int answer =
      retry_interrupted([&] { return fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)); });
  if (answer == 0) return {};
  if (errno == ENOSPC || errno == EDQUOT) {
    // Frees the partial allocation; if that fails, the file is merely larger than before.
    (void)!ftruncate(descriptor_, static_cast<off_t>(size_before));
    return no_space(bytes, available);
  }
  if (!may_lack_call(errno)) return system_failure("cannot reserve disk space", path_, errno);
  // The file system cannot reserve space: at least refuse what does not fit now.
  if (known && available < bytes) return no_space(bytes, available);
  if (size_before < bytes && ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    return system_failure("cannot grow a file", path_, errno);
  }
  return {};
}

Result<void> SystemFile::sync() noexcept {
  if (poison() != nullptr) return *poison();
  if (fsync(descriptor_) == 0) return {};
  return poison_with(system_failure("cannot sync a file", path_, errno));
}

Result<void> SystemFile::lock() noexcept {
  if (retry_interrupted([&] { return flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0) {
    if (!std::exchange(locked_, true)) guard_from_children(descriptor_);
    return {};
  }
  if (errno != EWOULDBLOCK) return system_failure("cannot lock a file", path_, errno);
  Error error = make_error(ErrorCode::Busy, "the file is locked by another process");
  error.file = path_;
  return error;
}

bool SystemFile::aligned(const void* memory, std::uint64_t length,
                         std::uint64_t offset) const noexcept {
  return (reinterpret_cast<std::uintptr_t>(memory) | length | offset) % alignment() == 0;
}

Result<std::uint64_t> SystemFile::read_loop(std::byte* target, std::uint64_t length,
                                            std::uint64_t offset) noexcept {
  std::uint64_t done = 0;
  while (done < length) {
    const std::uint64_t step = std::min(length - done, transfer_length_max);
    const auto got = retry_interrupted(
        [&] { return pread(descriptor_, target + done, step, static_cast<off_t>(offset + done)); });
    if (got < 0) return system_failure("cannot read", path_, errno, offset + done, length - done);
    done += static_cast<std::uint64_t>(got);
    // A direct read that ends inside a sector has reached the end of the file.
    if (got == 0 || done % alignment() != 0) break;
  }
  return done;
}

Result<void> SystemFile::write_loop(const std::byte* source, std::uint64_t length,
                                    std::uint64_t offset) noexcept {
  std::uint64_t done = 0;
  while (done < length) {
    const std::uint64_t step = std::min(length - done, transfer_length_max);
    const auto put = retry_interrupted([&] {
      return pwrite(descriptor_, source + done, step, static_cast<off_t>(offset + done));
    });
    if (put <= 0) {
      const int system_error = put < 0 ? errno : EIO;
      return poison_with(
          system_failure("cannot write", path_, system_error, offset + done, length - done));
    }
    done += static_cast<std::uint64_t>(put);
  }
  return {};
}

Result<void> SystemFile::read_at(void* target, std::uint64_t length,
                                 std::uint64_t offset) noexcept {
  if (poison() != nullptr) return *poison();
  if (length == 0) return {};
  std::uint64_t got = 0;
  if (aligned(target, length, offset)) {
    ARTESIAN_TRY(bytes, read_loop(static_cast<std::byte*>(target), length, offset));
    got = bytes;
  } else {
    const std::uint64_t begin = round_down(offset, alignment());
    const std::uint64_t end = round_up(offset + length, alignment());
    const AlignedBuffer buffer(alignment(), end - begin);
    ARTESIAN_TRY(bytes, read_loop(buffer.data, end - begin, begin));
    got = std::min(length, bytes > offset - begin ? bytes - (offset - begin) : 0);
    std::memcpy(target, buffer.data + (offset - begin), got);
  }
  if (got == length) return {};
  return system_failure("cannot read: end of file", path_, 0, offset + got, length - got);
}

Result<void> SystemFile::write_unaligned(const std::byte* source, std::uint64_t length,
                                         std::uint64_t offset) noexcept {
  const std::uint64_t begin = round_down(offset, alignment());
  const std::uint64_t end = round_up(offset + length, alignment());
  ARTESIAN_TRY(size_before, size());
  const AlignedBuffer buffer(alignment(), end - begin);
  std::memset(buffer.data, 0, end - begin);
  ARTESIAN_TRY(kept, read_loop(buffer.data, end - begin, begin));
  ARTESIAN_CHECK(kept <= end - begin, kept, begin, end);
  std::memcpy(buffer.data + (offset - begin), source, length);
  ARTESIAN_TRY_VOID(write_loop(buffer.data, end - begin, begin));
  // Whole sectors were written: cut the file at the end of the caller's bytes.
  const std::uint64_t size_after = std::max(size_before, offset + length);
  if (size_after < end && ftruncate(descriptor_, static_cast<off_t>(size_after)) != 0) {
    return system_failure("cannot cut a file to its size", path_, errno);
  }
  return {};
}

Result<void> SystemFile::write_at(const void* source, std::uint64_t length,
                                  std::uint64_t offset) noexcept {
  if (poison() != nullptr) return *poison();
  if (length == 0) return {};
  const auto* bytes = static_cast<const std::byte*>(source);
  return aligned(source, length, offset) ? write_loop(bytes, length, offset)
                                         : write_unaligned(bytes, length, offset);
}

}  // namespace artesian
