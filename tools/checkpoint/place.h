// A user's path to checkpoints: a folder of them, or one of them.
#pragma once

#include <string>

namespace artesian::tools {

struct CheckpointPath {
  std::string directory;
  std::string tag;  // empty: the tag in `latest`
};

/// Splits "DIR" or "DIR/TAG"; it is the latter if it has a manifest.
CheckpointPath checkpoint_path(std::string path);

}  // namespace artesian::tools
