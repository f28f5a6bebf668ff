// Logs what is below the folders of nvme_path, before a run puts state there.
#pragma once

#include "zero3/config/config.h"

namespace artesian::tools {

/// Warns of each folder that lies in memory, in the words of `artesian doctor`.
void warn_of_swap_folders(const zero3::Config& config);

}  // namespace artesian::tools
