// SystemFile: an open file of the kernel's file system, behind the File interface. Used by
// base/file_system.cpp, which opens files by path, and base/durable_folder.cpp, which opens them by
// name in an open folder.
//
// Direct transfers are used only where the kernel states the alignment they need (statx): tmpfs
// accepts O_DIRECT with any alignment and still copies through the page cache, so a successful open
// proves nothing. Kernels before 6.1 do not report the alignment; there a disk file system that
// accepts O_DIRECT is assumed to need 4096.
#pragma once

#include <dirent.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"

struct stat;

namespace artesian {

/// Makes the Io or NoSpace error of a call that failed with this errno.
Error system_failure(const char* what, const std::string& path, int system_error,
                     std::uint64_t offset = 0, std::uint64_t length = 0);

/// True if this errno may mean that the file system, the kernel or a filter lacks the call: FUSE
/// and network file systems and containers answer with EINVAL, ENOSYS, EOPNOTSUPP or EPERM. The
/// caller then tries another way, whose failure shows the real cause.
bool may_lack_call(int system_error) noexcept;

/// A feature that some file systems lack.
enum class Lack : std::uint8_t { Direct, Permissions, FolderSync };
/// Warns once for each file system that it lacks a feature; `path` is a file or folder there.
void warn_of(Lack lack, const std::string& path);

/// Checks the result of a chmod, by errno. A file system without permissions is accepted with a
/// warning, as its mount options decide who may read. `what` is "a file" or "a folder". Errors: Io.
Result<void> set_mode(int answer, const char* what, const std::string& folder,
                      const std::string& name);

/// Handles a failed fsync of a folder: a file system without folder syncs is accepted with a
/// warning. Errors: Io.
Result<void> folder_sync_failure(const char* what, const std::string& path, int system_error);

/// Converts the result of fstat or its variants.
FileStatus status_of(const struct stat& found) noexcept;

/// Lists the names in an open folder, sorted, without "." and "..", and closes the stream. `what`
/// and `path` are for the error message. Errors: Io.
Result<std::vector<std::string>> names_in(DIR* stream, const char* what, const std::string& path);

/// Repeats a call while signals interrupt it; returns its result.
template <typename Call>
auto retry_interrupted(Call call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

class SystemFile final : public File {
 public:
  /// Takes over the descriptor, for buffered transfers.
  SystemFile(int descriptor, std::string path) noexcept
      : descriptor_(descriptor), path_(std::move(path)) {}
  ~SystemFile() override;

  /// Switches to direct transfers. Returns whether the kernel supports them here.
  bool enable_direct() noexcept;
  /// Lets each buffered write return once it is durable (O_DSYNC). Returns whether the kernel
  /// supports that.
  bool enable_durable_writes() noexcept;
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
  // buffered descriptor of a direct file, opened on demand; guarded by the mutex
  int buffered_descriptor_ = -1;
  bool locked_ = false;
};

}  // namespace artesian
