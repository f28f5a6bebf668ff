#include "tiering/swap_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/durable_folder.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

// After SIGKILL of a holder with writes in flight its lock was freed 7 to 95 ms later (measured).
constexpr int busy_retries = 5;
constexpr auto busy_pause = std::chrono::milliseconds(50);
// The name may lead elsewhere once per process that starts or ends at the same moment.
constexpr int replaced_retries = 1000;
constexpr std::size_t record_size = 256;

const OpenOptions lock_open{.create = Create::Never, .direct = Direct::Never, .read_only = false};
const OpenOptions lock_create{
    .create = Create::Exclusive, .direct = Direct::Never, .read_only = false};

Error refused(const std::string& path, const std::string& why) {
  Error error = make_error(ErrorCode::Invalid, "nvme directory cannot be locked: " + why);
  error.file = path;
  return error;
}

// Opens or makes the lock file. Nothing: the name changed in between, try again.
Result<std::unique_ptr<File>> open_lock_file(const std::string& path, FileSystem& files) noexcept {
  auto created = files.open(path, lock_create);
  if (created.has_value()) return created;
  if (created.error().system_error != EEXIST) return created;
  const auto named = files.status(path);
  if (!named.has_value()) return std::unique_ptr<File>();  // gone again
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
  // The name was looked at first: what was opened must be what was looked at, not a planted link.
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

// Fixed length, so that a shorter record leaves no tail of a longer one.
std::array<char, record_size> padded_record(std::uint64_t run_id) {
  const std::string text = artesian::holder_record(run_id);
  std::array<char, record_size> record;
  record.fill(' ');
  ARTESIAN_CHECK(text.size() < record_size, text.size());
  std::copy(text.begin(), text.end(), record.begin());
  record.back() = '\n';
  return record;
}

std::string read_holder(File& file) {
  std::array<char, record_size> record{};
  if (!file.read_at(record.data(), record_size, 0).has_value()) return "a run that just started";
  std::string text;
  for (const char each : record) text += each >= ' ' && each <= '~' ? each : ' ';
  text.erase(text.find_last_not_of(' ') + 1);
  return text.starts_with("pid ") ? text : "an unknown process";
}

Error busy(const std::string& path, File& file) {
  Error error =
      make_error(ErrorCode::Busy, "nvme directory is in use by " + read_holder(file) +
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
      if (busy_count++ == busy_retries) return busy(path, *file);
      std::this_thread::sleep_for(busy_pause);
      continue;
    }
    if (!still_named(path, *file, files)) continue;
    SwapLock lock(path, std::move(file), files);
    const auto record = padded_record(run_id);
    auto written = lock.file_->write_at(record.data(), record.size(), 0);
    if (written.has_value()) return lock;
    (void)lock.release().has_value();  // the first error is the one to tell
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
  ARTESIAN_CHECK(file_ != nullptr, path_);  // not twice
  Result<void> removed;
  // Unlinked while held, so that nobody can lock the name that is about to go.
  if (still_named(path_, *file_, *files_)) removed = files_->remove(path_);
  file_.reset();
  return removed;
}

}  // namespace artesian::tiering
