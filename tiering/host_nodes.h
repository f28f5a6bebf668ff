// Where a run's host memory is placed on a machine with several NUMA nodes: pinned/nodes.h, Note
// [Near memory].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pinned/nodes.h"

namespace artesian::tiering {

/// Returns the policy for memory that is copied by a GPU on node `gpu`, if there is one, and filled
/// from swap files in these folders, which need not exist yet. `root` is prepended to the paths of
/// /proc and /sys.
pinned::NodePolicy nodes_of_host(std::optional<std::uint32_t> gpu,
                                 const std::vector<std::string>& folders,
                                 const std::string& root = "");

}  // namespace artesian::tiering
