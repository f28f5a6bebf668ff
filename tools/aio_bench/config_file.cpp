// Editing a config file on the disk: see config_edit.h.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/file_system.h"
#include "base/log.h"
#include "tools/aio_bench/config_edit.h"

namespace artesian::bench {
namespace {

Error failure(const char* what, const std::string& path) {
  Error error = make_error(ErrorCode::Io, what, errno);
  error.file = path;
  return error;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) return failure("cannot read the config", path);
  return text.str();
}

/// Gives a new file the owner and the permissions of another file, as far as this user may. If the
/// group cannot be set, the new file's group gets no more than all others.
Result<void> take_after(int descriptor, const struct stat& other, const std::string& path) {
  struct stat now {};
  if (fchown(descriptor, other.st_uid, other.st_gid) != 0) {
    (void)!fchown(descriptor, static_cast<uid_t>(-1), other.st_gid);
  }
  mode_t mode = other.st_mode & 07777;
  if (fstat(descriptor, &now) != 0) return failure("cannot look at a file", path);
  if (now.st_gid != other.st_gid) mode = (mode & ~mode_t{070}) | ((mode & 07) << 3);
  if (now.st_gid != other.st_gid || now.st_uid != other.st_uid) mode &= 0777;
  if (fchmod(descriptor, mode) != 0) return failure("cannot set the permissions of a file", path);
  return {};
}

/// Writes a new file beside the path, completely and durably.
Result<void> write_new(const std::string& path, const std::string& text, const struct stat& old) {
  ARTESIAN_TRY(file,
               system_files().open(path, {.create = Create::Exclusive, .direct = Direct::Never}));
  auto done = file->write_at(text.data(), text.size(), 0);
  if (done) done = take_after(file->descriptor(), old, path);
  if (done) done = file->sync();
  if (!done) (void)!system_files().remove(path).has_value();
  return done;
}

Result<std::string> canonical_path(const std::string& given) {
  std::error_code failed;
  std::string path = std::filesystem::canonical(given, failed);
  if (!failed) return path;
  errno = failed.value();
  return failure("cannot find the config", given);
}

/// Returns the path of a file that will replace the other one.
std::string path_beside(const std::string& path) {
  return fmt::format("{}.new.{}", path, getpid());
}

/// Overwrites the file itself, if it cannot be replaced: it is a mount of its own, or in a sticky
/// folder of another user.
Result<void> write_over(const std::string& path, const std::string& text,
                        const std::string& backup) {
  const auto failed = [&] {
    Error error = failure("cannot write over the config", path);
    error.message += "; what it was is in " + backup;
    return error;
  };
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (descriptor < 0) return failed();
  std::size_t at = 0;
  ssize_t got = 0;
  while (at < text.size() && got >= 0) {
    got = ::write(descriptor, text.data() + at, text.size() - at);
    if (got > 0) at += static_cast<std::size_t>(got);
    if (got < 0 && errno == EINTR) got = 0;
  }
  const bool whole = at == text.size() && ::fsync(descriptor) == 0;
  const int why = errno;
  ::close(descriptor);
  errno = why;
  if (!whole) return failed();
  return {};
}

void note_other_owner(const std::string& path, const struct stat& old) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return;
  if (now.st_uid == old.st_uid && now.st_gid == old.st_gid) return;
  const auto owner = [](const struct stat& file) {
    return fmt::format("user {} and group {}", file.st_uid, file.st_gid);
  };
  log(LogLevel::Warning,
      path + ": its owner cannot be kept: was " + owner(old) + ", is " + owner(now));
}

void say_removed(const std::string& path, const std::vector<std::string>& removed) {
  std::string list;
  for (const std::string& key : removed) list += (list.empty() ? "" : ", ") + key;
  if (list.empty()) return;
  log(LogLevel::Info, path + ": removed " + list +
                          ", which DeepSpeed does not read: the settings are in aio, threads in "
                          "intra_op_parallelism");
}

}  // namespace

Result<void> check_settings_alone(const std::string& path) {
  ARTESIAN_TRY(text, read_text(path));
  return check_settings_alone(text, path);
}

Result<void> check_apply_settings(const std::string& given) {
  ARTESIAN_TRY(path, canonical_path(given));
  ARTESIAN_TRY(text, read_text(path));
  // Tried with some engine, so that anything that prevents writing is found now.
  ARTESIAN_TRY(edited, with_settings(text, given, {}, aio::EngineKind::Threads));
  ARTESIAN_CHECK(!edited.empty());
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return failure("cannot look at the config", path);
  const std::string beside = path_beside(path);
  auto written = write_new(beside, "", status);
  if (written) written = system_files().remove(beside);
  return written;
}

Result<std::string> apply_settings(const std::string& given, const Settings& settings,
                                   aio::EngineKind automatic) {
  ARTESIAN_TRY(path, canonical_path(given));
  ARTESIAN_TRY(text, read_text(path));
  ARTESIAN_TRY(form, in_one_form(text, given));
  ARTESIAN_TRY(edited, with_settings(form.text, given, settings, automatic));
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return failure("cannot look at the config", path);
  std::string backup = path + ".bak";
  for (int number = 1; system_files().exists(backup); ++number) {
    backup = fmt::format("{}.bak.{}", path, number);
  }
  ARTESIAN_TRY_VOID(write_new(backup, text, status));
  const std::string beside = path_beside(path);
  auto written = write_new(beside, edited, status);
  if (written) written = system_files().rename(beside, path);
  if (!written) {
    (void)!system_files().remove(beside).has_value();
    const int why = written.error().system_error;
    if (why == EBUSY || why == EPERM) {
      ARTESIAN_TRY_VOID(write_over(path, edited, backup));
      say_removed(given, form.removed);
      return backup;
    }
    (void)!system_files().remove(backup).has_value();
    return std::move(written).error();
  }
  note_other_owner(path, status);
  say_removed(given, form.removed);
  return backup;
}

}  // namespace artesian::bench
