// The shared part of all Files: poison, and the default `status`, which asks the kernel and which
// simulated files override.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/durable_folder.h"
#include "base/file_system.h"
#include "base/system_file.h"

namespace artesian {
namespace {

Error status_error(const std::string& path) {
  Error error = make_error(ErrorCode::Io, "cannot look at file", errno);
  error.file = path;
  return error;
}

}  // namespace

FileStatus status_of(const struct stat& found) noexcept {
  FileStatus status;
  if (S_ISREG(found.st_mode)) status.kind = FileStatus::Kind::Regular;
  if (S_ISDIR(found.st_mode)) status.kind = FileStatus::Kind::Directory;
  if (S_ISLNK(found.st_mode)) status.kind = FileStatus::Kind::Link;
  status.ours = found.st_uid == geteuid();
  status.device = found.st_dev;
  status.inode = found.st_ino;
  status.links = found.st_nlink;
  status.size = static_cast<std::uint64_t>(found.st_size);
  return status;
}

File::~File() {
  delete poison_.load(std::memory_order_relaxed);
}

const Error& File::poison_with(const Error& cause) noexcept {
  auto mine = std::make_unique<const Error>(cause);
  const Error* first = nullptr;
  if (poison_.compare_exchange_strong(first, mine.get())) return *mine.release();
  return *first;
}

Result<FileStatus> File::status() noexcept {
  struct stat found {};
  if (fstat(descriptor(), &found) != 0) return status_error(path());
  return status_of(found);
}

Result<FileStatus> FileSystem::status(const std::string& path) noexcept {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return status_error(path);
  return status_of(found);
}

Result<std::unique_ptr<Folder>> FileSystem::open_folder(const std::string& path) noexcept {
  return open_system_folder(path);
}

}  // namespace artesian
