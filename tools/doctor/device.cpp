#include "tools/doctor/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/kernel_files.h"
#include "base/units.h"

namespace artesian::tools {
namespace {

namespace fs = std::filesystem;
using tiering::BlockDevice;

constexpr std::uint64_t request_enough = 1 << 20;  // bytes: larger requests gain nothing
constexpr std::int64_t limit_near = 5000;          // thousandths of a degree
constexpr std::int64_t limit_max = 150'000;  // higher values mean that the disk reports no limit

std::string rounded(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}

fs::path folder_of(const BlockDevice& disk, const std::string& root) {
  std::error_code failed;
  const fs::path found = fs::canonical(root + "/sys/class/block/" + disk.name, failed);
  return failed ? fs::path() : found;
}

/// "none" in "[none] mq-deadline kyber"; older kernels write only "none".
std::string chosen(const std::string& words) {
  const auto begin = words.find('[');
  const auto end = words.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return words;
  return words.substr(begin + 1, end - begin - 1);
}

/// One direction of a PCIe link.
struct Link {
  double gigatransfers = 0;  // per second, for each lane
  std::int64_t lanes = 0;

  double gb_per_s() const {
    const double coding = gigatransfers < 6 ? 8.0 / 10 : 128.0 / 130;
    return gigatransfers * static_cast<double>(lanes) * coding / 8;
  }
  std::string text() const { return fmt::format("{} GT/s x{}", rounded(gigatransfers), lanes); }
};

/// `which`: "current" or "max". The kernel writes "8.0 GT/s PCIe", or "Unknown".
std::optional<Link> link_of(const fs::path& device, const std::string& which) {
  const std::string speed = first_line_of(device / (which + "_link_speed"));
  const Link link{.gigatransfers = std::strtod(speed.c_str(), nullptr),
                  .lanes = number_of(device / (which + "_link_width")).value_or(0)};
  return link.gigatransfers > 0 && link.lanes > 0 ? std::optional(link) : std::nullopt;
}

/// Returns the folders with the temperature of an NVMe disk: its controller or, before Linux 5.15,
/// the PCI device.
std::vector<fs::path> sensors_of(const fs::path& controller) {
  std::vector<fs::path> sensors;
  for (const fs::path& place : {controller, controller / "hwmon", controller / "device/hwmon"}) {
    for (const std::string& name : names_in(place)) {
      if (name.starts_with("hwmon") && name.size() > 5) sensors.push_back(place / name);
    }
  }
  return sensors;
}

}  // namespace

Findings examine_queue(const BlockDevice& disk, std::uint64_t block_size, const std::string& root) {
  Findings findings;
  const fs::path queue = folder_of(disk, root) / "queue";
  const std::string shown = "/sys/block/" + disk.name + "/queue/";
  const std::string scheduler = chosen(first_line_of(queue / "scheduler"));
  const bool fits = scheduler.empty() || scheduler == "none" || scheduler == "mq-deadline";
  if (!fits && !disk.rotational) {
    findings.push_back({.name = "scheduler",
                        .level = Level::Warn,
                        .value = disk.name + ": " + scheduler,
                        .meaning = "made for slow disks: it costs CPU time and queue depth",
                        .fix = "echo none >" + shown + "scheduler"});
  }
  const auto now_kib = number_of(queue / "max_sectors_kb").value_or(0);
  const auto able_kib = number_of(queue / "max_hw_sectors_kb").value_or(0);
  if (now_kib <= 0 || able_kib <= 0) return findings;
  const auto useful_kib =
      std::min(able_kib, static_cast<std::int64_t>(std::min(block_size, request_enough) / 1024));
  if (now_kib * 2 > useful_kib) return findings;
  findings.push_back(
      {.name = "request_size",
       .level = Level::Warn,
       .value = fmt::format("{}: at most {} KiB, of {} that it can", disk.name, now_kib, able_kib),
       .meaning = "each block of " + format_size(block_size) +
                  " is cut into many requests, which cost CPU time",
       .fix = fmt::format("echo {} >{}max_sectors_kb", useful_kib, shown)});
  return findings;
}

Findings examine_link(const BlockDevice& disk, const std::string& root) {
  if (!disk.nvme || disk.over_network) return {};
  fs::path device = folder_of(disk, root);
  std::error_code ignored;
  while (device.has_relative_path() && !fs::exists(device / "current_link_speed", ignored)) {
    device = device.parent_path();
  }
  const auto now = link_of(device, "current");
  const auto most = link_of(device, "max");
  // Small differences come from rounding or inexact registers.
  if (!now || !most || now->gb_per_s() > 0.95 * most->gb_per_s()) return {};
  return {{.name = "pcie_link",
           .level = Level::Warn,
           .value = disk.name + ": " + now->text() + ", of " + most->text() + " that it can",
           .meaning = "no more than " + rounded(now->gb_per_s()) + " GB/s in one direction, of " +
                      rounded(most->gb_per_s()),
           .fix = "a slot as fast and wide (lspci -vv, LnkSta), the link's speed in the BIOS, or a "
                  "firmer seat; a disk at rest may save power: look again during a run"}};
}

Findings examine_temperature(const BlockDevice& disk, const std::string& root) {
  if (!disk.nvme || disk.over_network) return {};
  std::error_code failed;
  const fs::path controller = fs::canonical(folder_of(disk, root) / "device", failed);
  if (failed) return {};
  for (const fs::path& sensor : sensors_of(controller)) {
    const auto now = number_of(sensor / "temp1_input");
    const auto limit = number_of(sensor / "temp1_max");
    if (!now || !limit || *limit <= 0 || *limit > limit_max || *now < *limit - limit_near) continue;
    return {
        {.name = "temperature",
         .level = Level::Warn,
         .value = fmt::format("{}: {} °C, its limit is {}", disk.name, *now / 1000, *limit / 1000),
         .meaning = "at its limit a disk slows itself down",
         .fix = "more air, or a heat sink on the disk"}};
  }
  return {};
}

Findings examine_device(const BlockDevice& disk, std::uint64_t block_size,
                        const std::string& root) {
  Findings all = examine_queue(disk, block_size, root);
  for (Findings more : {examine_link(disk, root), examine_temperature(disk, root)}) {
    all.insert(all.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  }
  return all;
}

}  // namespace artesian::tools
