#include "base/durable_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/check.h"

namespace artesian {
namespace {

// After SIGKILL of a holder with writes in flight its lock was freed 7 to 95 ms later (measured).
constexpr int busy_retries = 5;
constexpr auto busy_pause = std::chrono::milliseconds(50);
constexpr std::size_t record_size = 256;
constexpr std::uint64_t piece_bytes = 1 << 20;

const OpenOptions buffered_new{
    .create = Create::Exclusive, .direct = Direct::Never, .read_only = false};
const OpenOptions buffered{.create = Create::Never, .direct = Direct::Never, .read_only = false};
const OpenOptions buffered_read{
    .create = Create::Never, .direct = Direct::Never, .read_only = true};

std::string read_holder(File& file) {
  std::array<char, record_size> record{};
  if (!file.read_at(record.data(), record.size(), 0).has_value()) return "a run that just started";
  std::string text;
  for (const char each : record) text += each >= ' ' && each <= '~' ? each : ' ';
  text.erase(text.find_last_not_of(' ') + 1);
  return text.starts_with("pid ") ? text : "an unknown process";
}

Error lock_error(ErrorCode code, const Folder& folder, const std::string& name,
                 const std::string& why) {
  Error error = make_error(code, why);
  error.file = folder.path() + "/" + name;
  return error;
}

/// Opens the lock file, or makes it. A name that another process makes first is opened.
Result<std::unique_ptr<File>> open_lock_file(Folder& folder, const std::string& name) noexcept {
  auto created = folder.open(name, buffered_new);
  if (created.has_value() || created.error().system_error != EEXIST) return created;
  ARTESIAN_TRY(found, folder.status(name));
  if (found.kind != FileStatus::Kind::Regular || !found.ours) {
    return lock_error(ErrorCode::Invalid, folder, name,
                      "the name of the lock is taken by something that is not our plain file; "
                      "remove it, or use another folder");
  }
  return folder.open(name, buffered);
}

void keep_first(Result<void>& first, Result<void> next) noexcept {
  if (!next.has_value() && first.has_value()) first = std::move(next);
}

}  // namespace

bool is_component(std::string_view name) noexcept {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

bool is_absent(const Error& error) noexcept {
  return error.code == ErrorCode::Io && error.system_error == ENOENT;
}

Result<void> write_durable_file(Folder& folder, const std::string& name,
                                std::string_view text) noexcept {
  ARTESIAN_TRY(file, folder.open(name, buffered_new));
  for (std::uint64_t done = 0; done < text.size(); done += piece_bytes) {
    const std::uint64_t piece = std::min<std::uint64_t>(text.size() - done, piece_bytes);
    ARTESIAN_TRY_VOID(file->write_at(text.data() + done, piece, done));
  }
  return file->sync();
}

Result<void> replace_durable_file(Folder& folder, const std::string& name,
                                  const std::string& temporary, std::string_view text) noexcept {
  auto done = write_durable_file(folder, temporary, text);
  if (done.has_value()) done = folder.rename(temporary, folder, name, Existing::Replace);
  if (done.has_value()) return folder.sync();
  (void)folder.remove(temporary).has_value();  // the first error is the one to tell
  return done;
}

Result<std::string> read_whole_file(Folder& folder, const std::string& name,
                                    std::uint64_t size_max) noexcept {
  ARTESIAN_TRY(found, folder.status(name));
  const auto refuse = [&](std::string why) {
    Error error = make_error(ErrorCode::Corrupt, std::move(why));
    error.file = folder.path() + "/" + name;
    return error;
  };
  if (found.kind != FileStatus::Kind::Regular) return refuse("not a plain file");
  ARTESIAN_TRY(file, folder.open(name, buffered_read));
  ARTESIAN_TRY(size, file->size());
  if (size > size_max) {
    return refuse("got " + std::to_string(size) + " bytes, allowed " + std::to_string(size_max));
  }
  std::string text(size, '\0');
  ARTESIAN_TRY_VOID(file->read_at(text.data(), size, 0));
  return text;
}

Result<void> remove_folder_with_files(Folder& parent, const std::string& name,
                                      const std::string& first) noexcept {
  ARTESIAN_TRY(folder, parent.open_folder(name));
  Result<void> outcome;
  const bool has_first = folder->status(first).has_value();
  if (has_first) keep_first(outcome, folder->remove(first));
  ARTESIAN_TRY(names, folder->list());
  for (const std::string& each : names) {
    const auto found = folder->status(each);
    const bool inner = found.has_value() && found->kind == FileStatus::Kind::Directory;
    keep_first(outcome,
               inner ? remove_folder_with_files(*folder, each, first) : folder->remove(each));
  }
  folder.reset();
  if (outcome.has_value()) outcome = parent.remove_folder(name);
  return outcome;
}

Result<FolderLock> FolderLock::acquire(Folder& folder, const std::string& name,
                                       const std::string& record) noexcept {
  ARTESIAN_CHECK(record.size() < record_size, record.size());
  for (int turn = 0;; ++turn) {
    ARTESIAN_TRY(file, open_lock_file(folder, name));
    auto locked = file->lock();
    if (locked.has_value()) {
      // Of a fixed length, so that a shorter record leaves no tail of a longer one.
      std::array<char, record_size> text;
      text.fill(' ');
      std::copy(record.begin(), record.end(), text.begin());
      text.back() = '\n';
      ARTESIAN_TRY_VOID(file->write_at(text.data(), text.size(), 0));
      return FolderLock(std::move(file));
    }
    if (locked.error().code != ErrorCode::Busy) return std::move(locked).error();
    if (turn == busy_retries) {
      return lock_error(ErrorCode::Busy, folder, name,
                        "the folder is in use by " + read_holder(*file) +
                            "; wait for it to end, or use another folder");
    }
    std::this_thread::sleep_for(busy_pause);
  }
}

std::string holder_record(std::uint64_t run_id) {
  std::array<char, 65> host{"unknown"};
  (void)gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> started{};
  (void)std::strftime(started.data(), started.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  std::array<char, 17> run{};
  std::snprintf(run.data(), run.size(), "%016llx", static_cast<unsigned long long>(run_id));
  return "pid " + std::to_string(getpid()) + " on host " + host.data() + ", started " +
         started.data() + ", run " + run.data();
}

}  // namespace artesian
