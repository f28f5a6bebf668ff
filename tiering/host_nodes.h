// Where a run's host memory is to lie on a machine with several NUMA nodes: pinned/nodes.h, Note
// [Near memory].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pinned/nodes.h"

namespace artesian::tiering {

/// For memory that a GPU on node `gpu` copies, if there is one, and that swap files in these
/// folders fill, which need not exist yet. `root` is put before the paths of /proc and /sys.
pinned::NodePolicy nodes_of_host(std::optional<std::uint32_t> gpu,
                                 const std::vector<std::string>& folders,
                                 const std::string& root = "");

}  // namespace artesian::tiering
