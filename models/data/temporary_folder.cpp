#include "models/data/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>

namespace artesian::models {

Result<TemporaryFolder> TemporaryFolder::make() {
  std::error_code failure;
  auto base = std::filesystem::temp_directory_path(failure);
  if (failure) base = "/tmp";
  std::string path = (base / "artesian-tokens-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return make_error(ErrorCode::Io, "cannot make a temporary folder: " + path, errno);
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // anything left is in a folder for temporary files
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace artesian::models
