// Doctor's lines about how the kernel drives a disk: its queue, its PCIe link, its temperature.
// Only what is amiss has a line. `root` is put before /sys, so that tests can show other machines.
#pragma once

#include <cstdint>
#include <string>

#include "tiering/disk/block_device.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

/// `block_size`: bytes of one transfer, as a config would have it.
Findings examine_queue(const tiering::BlockDevice& disk, std::uint64_t block_size,
                       const std::string& root = "");
Findings examine_link(const tiering::BlockDevice& disk, const std::string& root = "");
Findings examine_temperature(const tiering::BlockDevice& disk, const std::string& root = "");

/// All of the above.
Findings examine_device(const tiering::BlockDevice& disk, std::uint64_t block_size,
                        const std::string& root = "");

}  // namespace artesian::tools
