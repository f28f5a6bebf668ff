// The kernel's file system (POSIX and Linux calls). A step uses nothing here except a File's
// descriptor, through an aio::Engine.
#include "base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/system_file.h"

namespace artesian {
namespace {

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
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
  // From here on the object closes the descriptor.
  auto file = std::make_unique<SystemFile>(descriptor, path);
  if (create) {
    auto set = set_mode(fchmod(descriptor, 0600), "a file", parent_of(path), name_of(path));
    if (!set.has_value()) {
      ::unlink(path.c_str());
      return std::move(set).error();
    }
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
  return set_mode(::chmod(path.c_str(), 0700), "a directory", parent_of(path), name_of(path));
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
  if (answer == 0) return {};
  return folder_sync_failure("cannot sync a directory", path, system_error);
}

Result<std::vector<std::string>> SystemFileSystem::list(const std::string& path) noexcept {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return system_failure("cannot list a directory", path, errno);
  return names_in(directory, "cannot list a directory", path);
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
  return ::lstat(path.c_str(), &status) == 0;  // a dangling link counts as existing
}

}  // namespace

FileSystem& system_files() noexcept {
  // Never destroyed, as a thread may outlive main (aio/engine_base.h, Note [Abandoned transfers]).
  static auto* const files = new SystemFileSystem;
  return *files;
}

}  // namespace artesian
