// Logs what kind of file systems hold the folders of nvme_path, before a run puts state there.
#pragma once

#include "zero3/config/config.h"

namespace artesian::tools {

/// Warns of each folder that is in memory, with the text of `artesian doctor`.
void warn_of_swap_folders(const zero3::Config& config);

}  // namespace artesian::tools
