// Doctor's lines about limits of this process: disk rates allowed by control groups, the number of
// threads, and the number of AIO requests left. Only tight limits have a line. `root` is prepended
// to /proc and /sys, so that tests can simulate other machines.
#pragma once

#include <string>
#include <vector>

#include "tiering/disk/block_device.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

/// Reports the control groups' limits on these disks. `root`: see above.
Findings examine_io_limits(const std::vector<tiering::BlockDevice>& disks,
                           const std::string& root = "");
/// Reports the control groups' limit on threads.
Findings examine_thread_limit(const std::string& root = "");
/// Reports the machine's limit on AIO requests, for libaio.
Findings examine_aio_requests(const std::string& root = "");

}  // namespace artesian::tools
