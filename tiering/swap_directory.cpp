#include "tiering/swap_directory.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tiering/swap_lock.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

constexpr int leave_retries = 1000;  // one retry for each process that starts at the same moment

bool is_own_file(const std::string& path, FileSystem& files) noexcept {
  const auto status = files.status(path);
  return status.has_value() && status->kind == FileStatus::Kind::Regular && status->ours;
}

// Errors are ignored: a remaining file only costs space, which a failing reservation would report.
void remove_own_file(const std::string& path, FileSystem& files) noexcept {
  if (is_own_file(path, files)) (void)files.remove(path).has_value();
}

void remove_swap_files_of(const std::string& directory, const std::vector<std::string>& names,
                          std::uint32_t rank, FileSystem& files) noexcept {
  for (const std::string& name : names) {
    const auto parsed = parse_swap_file_name(name);
    if (!parsed || parsed->rank != rank) continue;
    ARTESIAN_CHECK(name.find('/') == std::string::npos, name);
    remove_own_file(directory + "/" + name, files);
  }
}

Error invalid(const std::string& directory, const std::string& why, int system_error) {
  Error error = make_error(ErrorCode::Invalid, "nvme directory " + why, system_error);
  error.file = directory;
  return error;
}

// Checks an existing name: it must be a readable directory, or a link to one.
Result<void> expect_directory(const std::string& directory, FileSystem& files) noexcept {
  auto names = files.list(directory);
  if (names.has_value()) return {};
  return swap_directory_error(directory, std::move(names).error());
}

Result<void> make_marker(const std::string& directory, FileSystem& files) noexcept {
  auto marker = files.open(directory + "/" + made_marker_name,
                           {.create = Create::Exclusive, .direct = Direct::Never});
  if (marker.has_value() || marker.error().system_error == EEXIST) return {};
  return std::move(marker).error();
}

}  // namespace

Error swap_directory_error(const std::string& directory, Error error) {
  const int reason = error.system_error;
  switch (reason) {
    case EACCES:
    case EPERM:
    case EROFS:
      return invalid(directory, "cannot be written; choose one that this user may write to",
                     reason);
    case ENOTDIR:
      return invalid(directory, "is not a directory, or lies below a file; choose another", reason);
    case ENOENT:
      return invalid(directory, "does not exist and its parent neither; create the parent", reason);
    case EEXIST:
      return invalid(
          directory,
          "holds something foreign under our name (" + error.file + "); look at it and remove it",
          0);
    case EFBIG:
      return invalid(directory,
                     "lies on a file system that cannot hold a file this large; spread "
                     "the state over several directories",
                     reason);
    case EMFILE:
      return invalid(directory,
                     "cannot be opened beside all other files of this process; raise the limit of "
                     "open files (ulimit -n), or name fewer directories",
                     reason);
    case ENAMETOOLONG:
    case ELOOP: return invalid(directory, "is not a usable path", reason);
    default: return error;
  }
}

Result<void> prepare_swap_directory(const std::string& directory, FileSystem& files) noexcept {
  if (directory.empty()) return invalid(directory, "is empty; name a directory", 0);
  if (files.exists(directory)) return expect_directory(directory, files);
  auto made = files.make_directory(directory);
  if (!made.has_value()) {
    // Another rank of the same run may have created it first.
    if (made.error().system_error == EEXIST) return expect_directory(directory, files);
    return swap_directory_error(directory, std::move(made).error());
  }
  auto marker = make_marker(directory, files);
  if (marker.has_value()) return {};
  (void)files.remove_directory(directory).has_value();  // the first error is the one to report
  return swap_directory_error(directory, std::move(marker).error());
}

void remove_stale_swap_files(const std::string& directory, std::uint32_t rank,
                             FileSystem& files) noexcept {
  const auto names = files.list(directory);
  if (!names.has_value()) return;
  remove_swap_files_of(directory, *names, rank, files);
  std::set<std::uint32_t> other_ranks;
  for (const std::string& name : *names) {
    const auto swap = parse_swap_file_name(name);
    const auto lock = parse_lock_file_name(name);
    if (swap && swap->rank != rank) other_ranks.insert(swap->rank);
    if (lock && *lock != rank) other_ranks.insert(*lock);
  }
  for (const std::uint32_t other : other_ranks) {
    ARTESIAN_CHECK(other != rank, other);
    // A run creates its lock before its swap file and removes it afterwards: without a lock file
    // there is no live run.
    const std::string lock_path = directory + "/" + lock_file_name(other);
    auto lock = SwapLock::take_over(directory, other, files);
    // Its run is alive, or the lock is not ours to judge.
    if (!lock && files.exists(lock_path)) continue;
    remove_swap_files_of(directory, *names, other, files);
    if (lock) (void)lock->release().has_value();
  }
}

std::uint64_t stale_swap_bytes(const std::string& directory, FileSystem& files) noexcept {
  const auto names = files.list(directory);
  if (!names.has_value()) return 0;
  std::uint64_t bytes = 0;
  for (const std::string& name : *names) {
    const auto swap = parse_swap_file_name(name);
    const std::string path = directory + "/" + name;
    if (!swap || !is_own_file(path, files)) continue;
    const auto lock = SwapLock::take_over(directory, swap->rank, files);
    if (!lock && files.exists(directory + "/" + lock_file_name(swap->rank))) continue;
    const auto status = files.status(path);
    bytes += status.has_value() ? status->size : 0;
  }
  return bytes;
}

void leave_swap_directory(const std::string& directory, FileSystem& files) noexcept {
  ARTESIAN_CHECK(!directory.empty());
  const std::string marker = directory + "/" + made_marker_name;
  for (int turn = 0; turn < leave_retries; ++turn) {
    if (!is_own_file(marker, files)) return;
    const auto names = files.list(directory);
    if (!names.has_value()) return;
    const bool others = std::any_of(names->begin(), names->end(), [](const std::string& name) {
      return parse_swap_file_name(name).has_value() || parse_lock_file_name(name).has_value();
    });
    if (others) return;  // another rank or run is using it, and will see the marker when it leaves
    (void)files.remove(marker).has_value();
    // The user has put something there, so the directory now belongs to the user.
    if (names->size() > 1) return;
    auto removed = files.remove_directory(directory);
    if (removed.has_value() || removed.error().system_error != ENOTEMPTY) return;
    // Another run arrived in between. It must find the marker when it leaves; if it has left
    // already, the next iteration notices.
    if (!make_marker(directory, files).has_value()) return;
  }
}

}  // namespace artesian::tiering
