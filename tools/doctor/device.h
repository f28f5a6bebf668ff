// Doctor's lines about how the kernel drives a disk: its queue, its PCIe link, its temperature.
// Only problems have a line. `root` is prepended to /sys, so that tests can simulate other
// machines.
#pragma once

#include <cstdint>
#include <string>

#include "tiering/disk/block_device.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

/// `block_size`: bytes of one transfer, as in the config.
Findings examine_queue(const tiering::BlockDevice& disk, std::uint64_t block_size,
                       const std::string& root = "");
Findings examine_link(const tiering::BlockDevice& disk, const std::string& root = "");
Findings examine_temperature(const tiering::BlockDevice& disk, const std::string& root = "");

/// All examinations above.
Findings examine_device(const tiering::BlockDevice& disk, std::uint64_t block_size,
                        const std::string& root = "");

}  // namespace artesian::tools
