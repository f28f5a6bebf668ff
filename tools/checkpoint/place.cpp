#include "tools/checkpoint/place.h"

#include <filesystem>

#include "zero3/plan/checkpoint_names.h"

namespace artesian::tools {

CheckpointPath checkpoint_path(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code ignored;
  const std::filesystem::path folder(path);
  if (!std::filesystem::exists(folder / zero3::manifest_name, ignored)) return {path, ""};
  const std::string parent = folder.parent_path().string();
  return {parent.empty() ? "." : parent, folder.filename().string()};
}

}  // namespace artesian::tools
