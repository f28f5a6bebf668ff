#include "tools/shell/output_paths.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

namespace artesian::tools {
namespace {

namespace fs = std::filesystem;

constexpr int links_max = 40;  // most links in a chain, as in the kernel

bool same_file(const struct stat& left, const struct stat& right) {
  return left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

/// Returns the path that opening `path` would create.
fs::path place_of(fs::path path) {
  std::error_code failed;
  for (int link = 0; link < links_max && fs::is_symlink(path, failed); ++link) {
    const fs::path target = fs::read_symlink(path, failed);
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  while (path.has_relative_path() && !path.has_filename()) path = path.parent_path();  // for "a/"
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path folder = fs::weakly_canonical(parent, failed);
  return (failed ? parent : folder) / path.filename();
}

/// A path, as it resolves now.
class Destination {
 public:
  explicit Destination(const std::string& path)
      : path_(path), exists_(::stat(path.c_str(), &status_) == 0) {}

  bool is_folder() const { return exists_ && S_ISDIR(status_.st_mode); }
  bool is_file() const { return exists_ && S_ISREG(status_.st_mode); }
  /// True if both are one file, or would become one.
  bool is(const Destination& other) const {
    if (exists_ != other.exists_) return false;
    if (exists_) return is_file() && same_file(status_, other.status_);
    return place_of(path_) == place_of(other.path_);
  }
  /// The path, below this folder, of a file that is `other`.
  std::optional<std::string> find(const Destination& other) const {
    std::error_code failed;
    fs::recursive_directory_iterator entry(path_, fs::directory_options::skip_permission_denied,
                                           failed);
    for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
      if (other.is(Destination(entry->path().string()))) return entry->path().string();
    }
    return std::nullopt;
  }

 private:
  std::string path_;
  struct stat status_ {};
  bool exists_;
};

/// If the output is also the file of another flag, returns text that names that flag; else nothing.
std::optional<std::string> conflict(const Destination& output, const FlagPath& other) {
  if (other.path.empty()) return std::nullopt;
  const Destination place(other.path);
  if (output.is(place)) return "the file of " + other.flag;
  if (!place.is_folder() || !output.is_file()) return std::nullopt;
  const auto name = place.find(output);
  if (!name.has_value()) return std::nullopt;
  return *name + ", a file of " + other.flag;
}

/// Checks with the effective rights, like opening; access() checks those of the real user.
bool may_use(const std::string& path, int mode) {
  return ::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

/// The errno with which opening the path for writing would fail, or 0.
int refusal(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return EISDIR;
    return may_use(path, W_OK) ? 0 : errno;
  }
  const fs::path place = place_of(path);
  if (!place.has_filename()) return EISDIR;
  const std::string folder = place.parent_path().string();
  if (::stat(folder.c_str(), &status) != 0) return errno;
  if (!S_ISDIR(status.st_mode)) return ENOTDIR;
  return may_use(folder, W_OK | X_OK) ? 0 : errno;
}

}  // namespace

Result<void> check_outputs(const std::vector<FlagPath>& outputs,
                           const std::vector<FlagPath>& inputs) {
  std::string lines;
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    const FlagPath& output = outputs[index];
    if (output.path.empty()) continue;
    const Destination place(output.path);
    std::vector<FlagPath> others = inputs;
    others.insert(others.end(), outputs.begin(),
                  outputs.begin() + static_cast<std::ptrdiff_t>(index));
    for (const FlagPath& other : others) {
      const auto what = conflict(place, other);
      if (!what.has_value()) continue;
      lines += (lines.empty() ? "" : "\n") + output.flag + ": got " + *what +
               ", allowed another one, as it is replaced; rename one of them";
      break;
    }
  }
  if (lines.empty()) return {};
  return make_error(ErrorCode::Invalid, std::move(lines));
}

Result<void> check_writable(const std::vector<FlagPath>& outputs) {
  std::string lines;
  for (const FlagPath& output : outputs) {
    const int refused = output.path.empty() ? 0 : refusal(output.path);
    if (refused == 0) continue;
    lines += (lines.empty() ? "" : "\n") + output.flag + ": cannot write: " + output.path + ": " +
             system_error_text(refused);
  }
  if (lines.empty()) return {};
  return make_error(ErrorCode::Io, std::move(lines));
}

}  // namespace artesian::tools
