// The kernel's file system (POSIX and Linux calls). Nothing here is on the step path except what a
// File's descriptor is used for by an aio::Engine.
//
// Direct transfers are used only where the kernel states the alignment they need (statx): tmpfs
// accepts O_DIRECT with any alignment and still copies through the page cache, so that the success
// of an open proves nothing. A kernel older than 6.1 states nothing; there a disk file system that
// accepts O_DIRECT is taken to need 4096.
#include "base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian {
namespace {

constexpr std::uint64_t assumed_alignment = 4096;
constexpr std::uint64_t transfer_length_max = 1u << 30;  // the kernel moves at most 2 GiB a call

Error system_failure(const char* what, const std::string& path, int system_error,
                     std::uint64_t offset = 0, std::uint64_t length = 0) {
  const bool full = system_error == ENOSPC || system_error == EDQUOT;
  Error error = make_error(full ? ErrorCode::NoSpace : ErrorCode::Io, what, system_error);
  error.file = path;
  error.offset = offset;
  error.length = length;
  return error;
}

/// Calls again while a signal interrupts; returns what the call returned.
template <typename Call>
auto retry_interrupted(Call call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// What direct transfers on this open file need; 0 where they are not to be used.
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

/// Memory for transfers that the caller's own memory or range is not aligned for.
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

class SystemFile final : public File {
 public:
  /// Takes the descriptor over, buffered.
  SystemFile(int descriptor, std::string path) noexcept
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~SystemFile() override;

  /// Switches to direct transfers. Returns whether the kernel supports them here.
  bool enable_direct() noexcept;
  int descriptor() const noexcept override { return descriptor_; }
  Result<int> buffered_descriptor() noexcept override;
  const std::string& path() const noexcept override { return path_; }
  bool direct() const noexcept override { return direct_alignment_ != 0; }
  std::uint64_t alignment() const noexcept override { return direct() ? direct_alignment_ : 1; }
  Result<std::uint64_t> size() noexcept override;
  Result<void> allocate(std::uint64_t bytes) noexcept override;
  Result<void> sync() noexcept override;
  Result<void> lock() noexcept override;
  Result<void> read_at(void* target, std::uint64_t length, std::uint64_t offset) noexcept override;
  Result<void> write_at(const void* source, std::uint64_t length,
                        std::uint64_t offset) noexcept override;

 private:
  bool aligned(const void* memory, std::uint64_t length, std::uint64_t offset) const noexcept;
  /// Reads until `length` or the end of the file; returns the bytes read.
  Result<std::uint64_t> read_loop(std::byte* target, std::uint64_t length,
                                  std::uint64_t offset) noexcept;
  Result<void> write_loop(const std::byte* source, std::uint64_t length,
                          std::uint64_t offset) noexcept;
  Result<void> write_unaligned(const std::byte* source, std::uint64_t length,
                               std::uint64_t offset) noexcept;
  Error no_space(std::uint64_t needed, std::uint64_t available) const;

  const int descriptor_;
  const std::string path_;
  std::uint64_t direct_alignment_ = 0;  // 0 = buffered
  std::mutex mutex_;
  int buffered_descriptor_ = -1;  // of a direct file, once asked for; under the mutex
  bool locked_ = false;
};

SystemFile::~SystemFile() {
  if (buffered_descriptor_ >= 0) ::close(buffered_descriptor_);
  locked_ ? close_guarded(descriptor_) : void(::close(descriptor_));
}

Result<int> SystemFile::buffered_descriptor() noexcept {
  if (!direct()) return descriptor_;
  const std::lock_guard lock(mutex_);
  if (buffered_descriptor_ < 0) {
    // Not by its path, which may be gone, or another file's, by now.
    const std::string own = "/proc/self/fd/" + std::to_string(descriptor_);
    const int access = fcntl(descriptor_, F_GETFL) & O_ACCMODE;
    const int opened = retry_interrupted([&] { return ::open(own.c_str(), access | O_CLOEXEC); });
    if (opened < 0) {
      return system_failure("cannot open a file once more, for transfers that are not aligned",
                            path_, errno);
    }
    // No reading ahead: beside transfers past the page cache it keeps pages that nobody reads, and
    // large folios, which hold pages of other transfers.
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
                 "cannot reserve disk space: needs " + std::to_string(needed) + " bytes (" +
                     format_size(needed) + "), free are " + std::to_string(available) + " bytes (" +
                     format_size(available) + "); free some space or use another path",
                 ENOSPC);
  error.file = path_;
  return error;
}

Result<void> SystemFile::allocate(std::uint64_t bytes) noexcept {
  if (poison() != nullptr) return *poison();
  if (bytes == 0) return {};
  // Asked for before the try: a failed fallocate keeps what it got, which would not be free then.
  struct statvfs status {};
  const bool known = fstatvfs(descriptor_, &status) == 0;
  const std::uint64_t available = known ? status.f_bavail * status.f_frsize : 0;
  ARTESIAN_TRY(size_before, size());
  const int answer =
      retry_interrupted([&] { return fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)); });
  if (answer == 0) return {};
  if (errno == ENOSPC || errno == EDQUOT) {
    // Gives back what it got; if that fails, the file is merely larger than it was.
    (void)!ftruncate(descriptor_, static_cast<off_t>(size_before));
    return no_space(bytes, available);
  }
  if (errno != EOPNOTSUPP) return system_failure("cannot reserve disk space", path_, errno);
  // A file system that cannot reserve: at least refuse what cannot fit now.
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
    // A direct read that ends inside a sector has met the end of the file.
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
  // Whole sectors were written: the file must not end later than the caller's bytes.
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

class SystemFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override;
  Result<void> make_directory(const std::string& path) noexcept override;
  Result<void> remove(const std::string& path) noexcept override;
  Result<void> remove_directory(const std::string& path) noexcept override;
  Result<void> rename(const std::string& from, const std::string& to) noexcept override;
  Result<void> sync_directory(const std::string& path) noexcept override;
  Result<std::vector<std::string>> list(const std::string& path) noexcept override;
  Result<std::uint64_t> free_bytes(const std::string& path) noexcept override;
  bool exists(const std::string& path) noexcept override;
};

Result<std::unique_ptr<File>> SystemFileSystem::open(const std::string& path,
                                                     const OpenOptions& options) noexcept {
  const bool create = options.create == Create::Exclusive;
  int flags = O_CLOEXEC | O_NOFOLLOW | (options.read_only ? O_RDONLY : O_RDWR);
  if (create) flags |= O_CREAT | O_EXCL;
  const int descriptor = retry_interrupted([&] { return ::open(path.c_str(), flags, 0600); });
  if (descriptor < 0) {
    return system_failure(create ? "cannot create a file" : "cannot open a file", path, errno);
  }
  // From here on the file closes itself.
  auto file = std::make_unique<SystemFile>(descriptor, path);
  if (create && fchmod(descriptor, 0600) != 0) {  // whatever the umask took away
    const int system_error = errno;
    ::unlink(path.c_str());
    return system_failure("cannot set the permissions of a file", path, system_error);
  }
  if (options.direct == Direct::Never || file->enable_direct()) {
    return std::unique_ptr<File>(std::move(file));
  }
  if (options.direct == Direct::Required) {
    if (create) ::unlink(path.c_str());
    return system_failure("direct I/O (O_DIRECT) is not available on this file system", path,
                          EINVAL);
  }
  log_once(LogLevel::Warning, "direct I/O (O_DIRECT) is not available in " + parent_of(path) +
                                  ": transfers go through the page cache");
  return std::unique_ptr<File>(std::move(file));
}

Result<void> SystemFileSystem::make_directory(const std::string& path) noexcept {
  if (::mkdir(path.c_str(), 0700) != 0) {
    return system_failure("cannot create a directory", path, errno);
  }
  if (::chmod(path.c_str(), 0700) != 0) {
    return system_failure("cannot set the permissions of a directory", path, errno);
  }
  return {};
}

Result<void> SystemFileSystem::remove(const std::string& path) noexcept {
  if (::unlink(path.c_str()) != 0) return system_failure("cannot remove a file", path, errno);
  return {};
}

Result<void> SystemFileSystem::remove_directory(const std::string& path) noexcept {
  if (::rmdir(path.c_str()) != 0) return system_failure("cannot remove a directory", path, errno);
  return {};
}

Result<void> SystemFileSystem::rename(const std::string& from, const std::string& to) noexcept {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  const int system_error = errno;
  return system_failure(("cannot rename to " + to).c_str(), from, system_error);
}

Result<void> SystemFileSystem::sync_directory(const std::string& path) noexcept {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return system_failure("cannot open a directory", path, errno);
  const int answer = fsync(descriptor);
  const int system_error = errno;
  ::close(descriptor);
  if (answer != 0) return system_failure("cannot sync a directory", path, system_error);
  return {};
}

Result<std::vector<std::string>> SystemFileSystem::list(const std::string& path) noexcept {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return system_failure("cannot list a directory", path, errno);
  std::vector<std::string> names;
  errno = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe where each thread has its own stream
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int system_error = errno;
  ::closedir(directory);
  if (system_error != 0) return system_failure("cannot list a directory", path, system_error);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::uint64_t> SystemFileSystem::free_bytes(const std::string& path) noexcept {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) {
    return system_failure("cannot read the free space", path, errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

bool SystemFileSystem::exists(const std::string& path) noexcept {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;  // a dangling link is in the way as well
}

}  // namespace

FileSystem& system_files() noexcept {
  static auto* const files = new SystemFileSystem;  // never destroyed: as system_clock
  return *files;
}

}  // namespace artesian
