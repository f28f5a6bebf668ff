#include "tiering/swap_lock.h"

#include <cerrno>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/lock_record.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

// The name may be replaced once for each process that starts or ends at the same moment.
constexpr int replaced_retries = 1000;

const OpenOptions lock_open{.create = Create::Never, .direct = Direct::Never, .read_only = false};
const OpenOptions lock_create{
    .create = Create::Exclusive, .direct = Direct::Never, .read_only = false};

Error refused(const std::string& path, const std::string& why) {
  Error error = make_error(ErrorCode::Invalid, "nvme directory cannot be locked: " + why);
  error.file = path;
  return error;
}

// Opens or creates the lock file. Nothing: the name changed in between, so try again.
Result<std::unique_ptr<File>> open_lock_file(const std::string& path, FileSystem& files) noexcept {
  auto created = files.open(path, lock_create);
  if (created.has_value()) return created;
  if (created.error().system_error != EEXIST) return created;
  const auto named = files.status(path);
  if (!named.has_value()) return std::unique_ptr<File>();  // it was removed meanwhile
  if (named->kind != FileStatus::Kind::Regular) {
    return refused(path, "its lock name is taken by something that is not a plain file; remove it");
  }
  if (!named->ours) {
    return refused(path, "its lock file belongs to another user; choose another directory");
  }
  auto opened = files.open(path, lock_open);
  if (!opened.has_value()) {
    if (opened.error().system_error == ENOENT) return std::unique_ptr<File>();
    return opened;
  }
  // The name was checked before: the opened file must be the same one, not a planted link.
  ARTESIAN_TRY(found, (*opened)->status());
  if (!found.same_file(*named)) return std::unique_ptr<File>();
  ARTESIAN_CHECK(found.ours && found.kind == FileStatus::Kind::Regular, path);
  return opened;
}

bool still_named(const std::string& path, File& file, FileSystem& files) noexcept {
  const auto named = files.status(path);
  const auto held = file.status();
  return named.has_value() && held.has_value() && named->same_file(*held);
}

Error busy(const std::string& path, File& file) {
  Error error =
      make_error(ErrorCode::Busy, "nvme directory is in use by " + read_lock_holder(file) +
                                      "; wait for it to end, or choose another directory");
  error.file = path;
  return error;
}

}  // namespace

SwapLock::SwapLock(std::string path, std::unique_ptr<File> file, FileSystem& files) noexcept
    : path_(std::move(path)), file_(std::move(file)), files_(&files) {
  ARTESIAN_CHECK(file_ != nullptr, path_);
}

Result<SwapLock> SwapLock::acquire(const std::string& directory, std::uint32_t rank,
                                   std::uint64_t run_id, FileSystem& files) noexcept {
  ARTESIAN_CHECK(!directory.empty());
  const std::string path = directory + "/" + lock_file_name(rank);
  int busy_count = 0;
  for (int turn = 0; turn < replaced_retries; ++turn) {
    ARTESIAN_TRY(file, open_lock_file(path, files));
    if (file == nullptr) continue;
    auto locked = file->lock();
    if (!locked.has_value()) {
      if (locked.error().code != ErrorCode::Busy) return std::move(locked).error();
      if (busy_count++ == lock_busy_retries) return busy(path, *file);
      std::this_thread::sleep_for(lock_busy_pause);
      continue;
    }
    if (!still_named(path, *file, files)) continue;
    SwapLock lock(path, std::move(file), files);
    auto written = write_lock_record(*lock.file_, holder_record(run_id));
    if (written.has_value()) return lock;
    (void)lock.release().has_value();  // the first error is the one to report
    return std::move(written).error();
  }
  return refused(path, "its lock file is replaced all the time");
}

std::optional<SwapLock> SwapLock::take_over(const std::string& directory, std::uint32_t rank,
                                            FileSystem& files) noexcept {
  ARTESIAN_CHECK(!directory.empty());
  const std::string path = directory + "/" + lock_file_name(rank);
  const auto named = files.status(path);
  if (!named.has_value() || named->kind != FileStatus::Kind::Regular || !named->ours) {
    return std::nullopt;
  }
  auto file = files.open(path, lock_open);
  if (!file.has_value() || !(*file)->lock().has_value()) return std::nullopt;
  if (!still_named(path, **file, files)) return std::nullopt;
  return SwapLock(path, std::move(file).value(), files);
}

Result<void> SwapLock::release() noexcept {
  ARTESIAN_CHECK(file_ != nullptr, path_);  // called once
  Result<void> removed;
  // Unlinked while locked, so that no other process can lock a name that is being removed.
  if (still_named(path_, *file_, *files_)) removed = files_->remove(path_);
  file_.reset();
  return removed;
}

}  // namespace artesian::tiering
