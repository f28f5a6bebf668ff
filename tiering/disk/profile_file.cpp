// The place of machine profiles on the disk: see Note [Profile file].
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/file_system.h"
#include "tiering/disk/profile.h"

namespace artesian::tiering {
namespace {

Error failure(const char* what, const std::string& path) {
  Error error = make_error(ErrorCode::Io, what, errno);
  error.file = path;
  return error;
}

Result<std::string> cache_directory() {
  // NOLINTBEGIN(concurrency-mt-unsafe): nobody here changes the environment
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/artesian";
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/artesian";
  return make_error(ErrorCode::Invalid,
                    "machine profile: got neither XDG_CACHE_HOME nor HOME, allowed an absolute "
                    "path; set one of them");
}

}  // namespace

Result<std::string> machine_profile_path(const std::string& directory) {
  ARTESIAN_TRY(folder, cache_directory());
  struct statfs system {};
  struct stat status {};
  if (::statfs(directory.c_str(), &system) != 0 || ::stat(directory.c_str(), &status) != 0) {
    return failure("cannot look at a folder", directory);
  }
  std::uint64_t id = 0;
  static_assert(sizeof id == sizeof system.f_fsid);
  std::memcpy(&id, &system.f_fsid, sizeof id);
  char name[64];
  if (id != 0) {
    std::snprintf(name, sizeof name, "disk-%016llx.json", static_cast<unsigned long long>(id));
  } else {
    std::snprintf(name, sizeof name, "disk-%u-%u.json", major(status.st_dev), minor(status.st_dev));
  }
  return folder + "/" + name;
}

Result<void> save_machine_profile(const std::string& path, const MachineProfile& profile) {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  if (failed) {
    errno = failed.value();
    return failure("cannot create a directory", std::filesystem::path(path).parent_path());
  }
  const std::string text = print_machine_profile(profile);
  const std::string beside = fmt::format("{}.{}", path, getpid());
  FileSystem& files = system_files();
  (void)!files.remove(beside).has_value();  // left by a dead process
  ARTESIAN_TRY(file, files.open(beside, {.create = Create::Exclusive, .direct = Direct::Never}));
  auto written = file->write_at(text.data(), text.size(), 0);
  if (written) written = files.rename(beside, path);
  if (!written) (void)!files.remove(beside).has_value();
  return written;
}

Result<MachineProfile> load_machine_profile(const std::string& path) {
  ARTESIAN_TRY(file, system_files().open(path, {.direct = Direct::Never, .read_only = true}));
  ARTESIAN_TRY(size, file->size());
  std::string text(std::min<std::uint64_t>(size, 2 << 20), '\0');
  ARTESIAN_TRY_VOID(file->read_at(text.data(), text.size(), 0));
  return parse_machine_profile(text, path);
}

}  // namespace artesian::tiering
