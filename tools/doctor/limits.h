// Doctor's lines about limits that hold for this process alone: what control groups let it move to
// and from a disk, how many threads it may start, how many AIO requests are left. Only what is
// tight has a line. `root` is put before /proc and /sys, so that tests can show other machines.
#pragma once

#include <string>
#include <vector>

#include "tiering/disk/block_device.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

/// Limits on these disks. `root`: see above.
Findings examine_io_limits(const std::vector<tiering::BlockDevice>& disks,
                           const std::string& root = "");
/// Reports the limits of the control groups.
Findings examine_thread_limit(const std::string& root = "");
/// Reports the limit of the machine, for libaio.
Findings examine_aio_requests(const std::string& root = "");

}  // namespace artesian::tools
