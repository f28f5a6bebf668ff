#include "base/durable_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/check.h"
#include "base/lock_record.h"

namespace artesian {
namespace {

constexpr std::uint64_t piece_bytes = 1 << 20;

const OpenOptions buffered_new{
    .create = Create::Exclusive, .direct = Direct::Never, .read_only = false};
const OpenOptions buffered{.create = Create::Never, .direct = Direct::Never, .read_only = false};
const OpenOptions buffered_read{
    .create = Create::Never, .direct = Direct::Never, .read_only = true};

Error lock_error(ErrorCode code, const Folder& folder, const std::string& name,
                 const std::string& why) {
  Error error = make_error(code, why);
  error.file = folder.path() + "/" + name;
  return error;
}

/// Opens the lock file, or creates it. If another process creates it first, that file is opened.
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

Result<void> rename_to_new(Folder& folder, const std::string& from, Folder& target,
                           const std::string& to) noexcept {
  auto renamed = folder.rename(from, target, to, Existing::Refuse);
  if (renamed.has_value() || renamed.error().code != ErrorCode::Unsupported) return renamed;
  const auto found = target.status(to);
  if (found.has_value()) {
    Error error = make_error(ErrorCode::Io, "cannot rename to " + to, EEXIST);
    error.file = folder.path() + "/" + from;
    return error;
  }
  if (!is_absent(found.error())) return Error(found.error());
  return folder.rename(from, target, to, Existing::Replace);
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
  (void)folder.remove(temporary).has_value();  // the first error is the one to report
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
    return refuse(fmt::format("got {} bytes, allowed {}", size, size_max));
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
  ARTESIAN_CHECK(record.size() < lock_record_size, record.size());
  for (int turn = 0;; ++turn) {
    ARTESIAN_TRY(file, open_lock_file(folder, name));
    auto locked = file->lock();
    if (locked.has_value()) {
      ARTESIAN_TRY_VOID(write_lock_record(*file, record));
      return FolderLock(std::move(file));
    }
    if (locked.error().code != ErrorCode::Busy) return std::move(locked).error();
    if (turn == lock_busy_retries) {
      return lock_error(ErrorCode::Busy, folder, name,
                        "the folder is in use by " + read_lock_holder(*file) +
                            "; wait for it to end, or use another folder");
    }
    std::this_thread::sleep_for(lock_busy_pause);
  }
}

}  // namespace artesian
