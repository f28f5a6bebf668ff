#include "tools/shell/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace artesian::tools {
namespace {

namespace fs = std::filesystem;

/// Returns where the file is or will be.
std::string target_of(const std::string& path) {
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(path, failed);
  return failed ? path : target.string();
}

bool writable(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

}  // namespace

bool may_write_file(const std::string& path) {
  const std::string target = target_of(path);
  std::string folder = fs::path(target).parent_path().string();
  if (folder.empty()) folder = ".";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || !writable(folder)) return false;
  return !fs::exists(target, ignored) || (fs::is_regular_file(target, ignored) && writable(target));
}

Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string target = target_of(path);
  const std::string beside = fmt::format("{}.{}", target, ::getpid());
  const auto failure = [&] {
    Error error = make_error(ErrorCode::Io, path + ": cannot write", errno);
    static_cast<void>(std::remove(beside.c_str()));
    return error;
  };
  std::FILE* file = std::fopen(beside.c_str(), "w");
  if (file == nullptr) return failure();
  const bool written = std::fputs(text.c_str(), file) >= 0;
  if (std::fclose(file) != 0 || !written) return failure();
  if (std::rename(beside.c_str(), target.c_str()) != 0) return failure();
  return {};
}

}  // namespace artesian::tools
