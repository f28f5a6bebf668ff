#include "tools/train/training.h"

#include <string>

#include "tools/shell/report_error.h"

namespace artesian::tools {

Error naming_directory(const zero3::Config& config, Error error) {
  const zero3::ZeroConfig& zero = config.zero;
  for (const auto& [key, section] :
       {std::pair{"zero_optimization.offload_param.nvme_path", &zero.offload_param},
        std::pair{"zero_optimization.offload_optimizer.nvme_path", &zero.offload_optimizer}}) {
    if (section->device != zero3::Offload::Nvme) continue;
    for (std::string path : section->nvme_paths) {
      while (path.size() > 1 && path.back() == '/') path.pop_back();
      if (error.file != path && !error.file.starts_with(path + "/")) continue;
      return naming(key, std::move(error));
    }
  }
  return error;
}

}  // namespace artesian::tools
