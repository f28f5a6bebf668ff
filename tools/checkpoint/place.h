// A checkpoint as users name it: a folder of them, or one of them.
#pragma once

#include <string>

namespace artesian::tools {

struct CheckpointPath {
  std::string directory;
  std::string tag;  // empty: the one in `latest`
};

/// DIR, or DIR/TAG where that has a manifest.
CheckpointPath checkpoint_path(std::string path);

}  // namespace artesian::tools
