#include "tools/train/swap_folders.h"

#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "tiering/disk/mount.h"

namespace artesian::tools {

void warn_of_swap_folders(const zero3::Config& config) {
  std::set<std::string> seen;
  for (const auto& [key, offload] :
       {std::pair{"offload_param", &config.zero.offload_param},
        std::pair{"offload_optimizer", &config.zero.offload_optimizer}}) {
    if (offload->device != zero3::Offload::Nvme) continue;
    for (const std::string& folder : offload->nvme_paths) {
      if (!seen.insert(folder).second) continue;
      std::error_code failed;
      const auto whole = std::filesystem::absolute(folder, failed);
      if (failed) continue;
      const auto path = std::filesystem::weakly_canonical(whole, failed);  // may not exist yet
      if (failed) continue;
      const tiering::Mount mount = tiering::mount_of(path.string());
      const auto kind = tiering::file_system_kind(mount.type);
      if (kind != tiering::FileSystemKind::Memory) continue;
      log(LogLevel::Warning, std::string("zero_optimization.") + key + ".nvme_path: " + folder +
                                 ": " + mount.type + " at " + mount.point + "; " +
                                 tiering::file_system_meaning(kind) + "; " +
                                 tiering::file_system_fix(kind));
    }
  }
}

}  // namespace artesian::tools
