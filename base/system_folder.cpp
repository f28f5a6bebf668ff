// Folders of the kernel's file system. Names are single components, so openat with O_NOFOLLOW is as
// safe as openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. openat2 is used if the kernel and
// all filters allow it, as it is safe even if that rule is broken.
#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/descriptor.h"
#include "base/durable_folder.h"
#include "base/system_file.h"

namespace artesian {
namespace {

int open_beneath(int folder, const std::string& name, int flags, unsigned mode) noexcept {
  static std::atomic<bool> lacks_openat2{false};
  if (!lacks_openat2.load(std::memory_order_relaxed)) {
    struct open_how how {};
    how.flags = static_cast<unsigned>(flags);
    how.mode = (flags & O_CREAT) != 0 ? mode : 0;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const long opened = retry_interrupted(
        [&] { return ::syscall(SYS_openat2, folder, name.c_str(), &how, sizeof(how)); });
    if (opened >= 0) return static_cast<int>(opened);
    if (!may_lack_call(errno)) return -1;
    lacks_openat2.store(true, std::memory_order_relaxed);
  }
  return retry_interrupted([&] { return ::openat(folder, name.c_str(), flags, mode); });
}

class SystemFolder final : public Folder {
 public:
  SystemFolder(Descriptor descriptor, std::string path) noexcept
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  const std::string& path() const noexcept override { return path_; }
  Result<std::unique_ptr<File>> open(const std::string& name,
                                     const OpenOptions& options) noexcept override;
  Result<std::unique_ptr<Folder>> open_folder(const std::string& name) noexcept override;
  Result<void> make_folder(const std::string& name) noexcept override;
  Result<void> rename(const std::string& from, Folder& target, const std::string& to,
                      Existing existing) noexcept override;
  Result<void> link(const std::string& from, Folder& target,
                    const std::string& to) noexcept override;
  Result<void> remove(const std::string& name) noexcept override { return unlink(name, 0); }
  Result<void> remove_folder(const std::string& name) noexcept override {
    return unlink(name, AT_REMOVEDIR);
  }
  Result<void> sync() noexcept override;
  Result<std::vector<std::string>> list() noexcept override;
  Result<FileStatus> status(const std::string& name) noexcept override;
  Result<std::uint64_t> free_bytes() noexcept override;

 private:
  int descriptor() const noexcept { return descriptor_.value(); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  Error failure(const char* what, const std::string& name, int system_error) const {
    return system_failure(what, at(name), system_error);
  }
  Result<void> check(const std::string& name) const;
  Result<void> unlink(const std::string& name, int flags) noexcept;

  Descriptor descriptor_;
  std::string path_;
};

Result<void> SystemFolder::check(const std::string& name) const {
  if (is_component(name)) return {};
  Error error = make_error(ErrorCode::Invalid, "not the name of something in a folder");
  error.file = path_;
  return error;
}

Result<std::unique_ptr<File>> SystemFolder::open(const std::string& name,
                                                 const OpenOptions& options) noexcept {
  ARTESIAN_TRY_VOID(check(name));
  const bool create = options.create == Create::Exclusive;
  int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (options.read_only ? O_RDONLY : O_RDWR);
  if (create) flags |= O_CREAT | O_EXCL;
  const int opened = open_beneath(descriptor(), name, flags, 0600);
  if (opened < 0) {
    return failure(create ? "cannot create a file" : "cannot open a file", name, errno);
  }
  auto file = std::make_unique<SystemFile>(opened, at(name));
  // The flag was only needed to open the file without waiting on a pipe; io_uring would interpret
  // it as "never wait".
  const int status = fcntl(opened, F_GETFL);
  if (status < 0 || fcntl(opened, F_SETFL, status & ~O_NONBLOCK) != 0) {
    return failure("cannot open a file", name, errno);
  }
  if (create) ARTESIAN_TRY_VOID(set_mode(fchmod(opened, 0600), "a file", path_, name));
  if (options.direct == Direct::Never || file->enable_direct()) {
    return std::unique_ptr<File>(std::move(file));
  }
  if (options.direct == Direct::Required) {
    return failure("direct I/O (O_DIRECT) is not available on this file system", name, EINVAL);
  }
  warn_of(Lack::Direct, path_);
  // Dirty pages count towards memory limits, and the final sync would have to wait for all of them;
  // with durable writes only those of writes in flight are dirty.
  if (!options.read_only) static_cast<void>(file->enable_durable_writes());
  return std::unique_ptr<File>(std::move(file));
}

Result<std::unique_ptr<Folder>> SystemFolder::open_folder(const std::string& name) noexcept {
  ARTESIAN_TRY_VOID(check(name));
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  Descriptor opened(open_beneath(descriptor(), name, flags, 0));
  if (opened.value() < 0) return failure("cannot open a folder", name, errno);
  return std::unique_ptr<Folder>(std::make_unique<SystemFolder>(std::move(opened), at(name)));
}

Result<void> SystemFolder::make_folder(const std::string& name) noexcept {
  ARTESIAN_TRY_VOID(check(name));
  if (::mkdirat(descriptor(), name.c_str(), 0700) != 0) {
    return failure("cannot create a folder", name, errno);
  }
  return set_mode(::fchmodat(descriptor(), name.c_str(), 0700, 0), "a folder", path_, name);
}

Result<void> SystemFolder::rename(const std::string& from, Folder& target, const std::string& to,
                                  Existing existing) noexcept {
  ARTESIAN_TRY_VOID(check(from));
  ARTESIAN_TRY_VOID(check(to));
  const unsigned flags = existing == Existing::Refuse     ? RENAME_NOREPLACE
                         : existing == Existing::Exchange ? RENAME_EXCHANGE
                                                          : 0;
  const int other = static_cast<SystemFolder&>(target).descriptor();
  if (::renameat2(descriptor(), from.c_str(), other, to.c_str(), flags) == 0) return {};
  const int system_error = errno;
  Error error = failure(("cannot rename to " + to).c_str(), from, system_error);
  if (may_lack_call(system_error) || system_error == EXDEV) error.code = ErrorCode::Unsupported;
  return error;
}

Result<void> SystemFolder::link(const std::string& from, Folder& target,
                                const std::string& to) noexcept {
  ARTESIAN_TRY_VOID(check(from));
  ARTESIAN_TRY_VOID(check(to));
  const int other = static_cast<SystemFolder&>(target).descriptor();
  if (::linkat(descriptor(), from.c_str(), other, to.c_str(), 0) == 0) return {};
  const int system_error = errno;
  Error error = failure(("cannot link to " + to).c_str(), from, system_error);
  const bool refused = may_lack_call(system_error) || system_error == EXDEV ||
                       system_error == EMLINK || system_error == EACCES;
  if (refused) error.code = ErrorCode::Unsupported;
  return error;
}

Result<void> SystemFolder::unlink(const std::string& name, int flags) noexcept {
  ARTESIAN_TRY_VOID(check(name));
  if (::unlinkat(descriptor(), name.c_str(), flags) == 0) return {};
  return failure(flags == 0 ? "cannot remove a file" : "cannot remove a folder", name, errno);
}

Result<void> SystemFolder::sync() noexcept {
  if (::fsync(descriptor()) == 0) return {};
  return folder_sync_failure("cannot sync a folder", path_, errno);
}

Result<std::vector<std::string>> SystemFolder::list() noexcept {
  // A separate open file, as a stream moves the position of its descriptor.
  const int again = ::openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = again < 0 ? nullptr : ::fdopendir(again);
  if (stream == nullptr) {
    const int system_error = errno;
    if (again >= 0) ::close(again);
    return system_failure("cannot list a folder", path_, system_error);
  }
  return names_in(stream, "cannot list a folder", path_);
}

Result<FileStatus> SystemFolder::status(const std::string& name) noexcept {
  ARTESIAN_TRY_VOID(check(name));
  struct stat found {};
  if (::fstatat(descriptor(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return failure("cannot look at file", name, errno);
  }
  return status_of(found);
}

Result<std::uint64_t> SystemFolder::free_bytes() noexcept {
  struct statvfs status {};
  if (::fstatvfs(descriptor(), &status) != 0) {
    return system_failure("cannot read the free space", path_, errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace

Result<std::unique_ptr<Folder>> open_system_folder(const std::string& path) noexcept {
  Descriptor opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.value() < 0) return system_failure("cannot open a folder", path, errno);
  return std::unique_ptr<Folder>(std::make_unique<SystemFolder>(std::move(opened), path));
}

}  // namespace artesian
