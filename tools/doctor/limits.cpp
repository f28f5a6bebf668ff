#include "tools/doctor/limits.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <optional>
#include <sstream>

#include "base/control_group.h"
#include "base/kernel_files.h"

namespace artesian::tools {
namespace {

using tiering::BlockDevice;

// For engines, LibTorch's pools, and the user's programs.
constexpr std::int64_t threads_least = 128;
constexpr std::int64_t aio_requests_least = 1024;  // four rings of 256

/// A kind of limit, under its names in both versions of control groups and for people.
struct Kind {
  const char* key;   // key in io.max
  const char* file;  // file of cgroup version 1
  const char* text;
  bool bytes;
};
constexpr Kind kinds[] = {
    {"rbps=", "blkio.throttle.read_bps_device", "read", true},
    {"wbps=", "blkio.throttle.write_bps_device", "written", true},
    {"riops=", "blkio.throttle.read_iops_device", "reads", false},
    {"wiops=", "blkio.throttle.write_iops_device", "writes", false},
};

std::string rate_text(const Kind& kind, const std::string& digits) {
  std::ostringstream text;
  text << std::setprecision(3);
  double value = 0;
  std::istringstream(digits) >> value;
  if (!kind.bytes) return digits + " " + kind.text + "/s";
  text << (value < 1e9 ? value / 1e6 : value / 1e9) << (value < 1e9 ? " MB/s " : " GB/s ");
  return text.str() + kind.text;
}

Finding io_limit(const std::string& disk, const std::string& limits, const std::string& fix) {
  return {.name = "io_limit",
          .level = Level::Warn,
          .value = disk + ": " + limits,
          .meaning = "a control group holds this process to that, however fast the disk is",
          .fix = fix};
}

/// The rest of the line that begins with this device's number.
std::string line_of(const std::string& file, const std::string& number) {
  return value_after(file, number + " ");
}

/// Parses "8:16 rbps=1048576 wbps=max riops=max wiops=max".
std::string limits_of_version_2(const std::string& line) {
  std::string limits;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    for (const Kind& kind : kinds) {
      if (!word.starts_with(kind.key) || word.ends_with("=max")) continue;
      limits += (limits.empty() ? "" : ", ") + rate_text(kind, word.substr(word.find('=') + 1));
    }
  }
  return limits;
}

void add_version_2(const BlockDevice& disk, const std::string& number, const std::string& root,
                   Findings& findings) {
  for (const std::string& folder : control_group_folders(GroupVersion::Two, "io", root)) {
    const std::string file = folder + "/io.max";
    const std::string limits = limits_of_version_2(line_of(file, number));
    if (limits.empty()) continue;
    findings.push_back(io_limit(disk.name, limits,
                                "echo \"" + number + " rbps=max wbps=max riops=max wiops=max\" >" +
                                    file.substr(root.size())));
  }
}

/// Only the group's own limits, as limits of groups above do not apply in version 1.
void add_version_1(const BlockDevice& disk, const std::string& number, const std::string& root,
                   Findings& findings) {
  const auto folders = control_group_folders(GroupVersion::One, "blkio", root);
  if (folders.empty()) return;
  for (const Kind& kind : kinds) {
    const std::string file = folders.front() + "/" + kind.file;
    const std::string limit = line_of(file, number);
    if (limit.empty() || limit == "0") continue;
    findings.push_back(io_limit(disk.name, rate_text(kind, limit),
                                "echo \"" + number + " 0\" >" + file.substr(root.size())));
  }
}

}  // namespace

Findings examine_io_limits(const std::vector<BlockDevice>& disks, const std::string& root) {
  Findings findings;
  for (const BlockDevice& disk : disks) {
    const std::string number = first_line_of(root + "/sys/class/block/" + disk.name + "/dev");
    if (number.empty()) continue;
    add_version_2(disk, number, root, findings);
    add_version_1(disk, number, root, findings);
  }
  return findings;
}

Findings examine_thread_limit(const std::string& root) {
  std::optional<std::int64_t> least;
  std::string where;
  for (const GroupVersion version : {GroupVersion::One, GroupVersion::Two}) {
    for (const std::string& folder : control_group_folders(version, "pids", root)) {
      const auto limit = number_of(folder + "/pids.max");  // none if it is "max"
      const auto used = number_of(folder + "/pids.current");
      if (!limit || !used || (least && *limit - *used >= *least)) continue;
      least = std::max<std::int64_t>(0, *limit - *used);
      where = folder.substr(root.size()) + "/pids.max";
    }
  }
  if (!least || *least >= threads_least) return {};
  return {{.name = "threads",
           .level = Level::Warn,
           .value = fmt::format("{} more, by a control group's limit", *least),
           .meaning = "where no thread can be started, a run ends",
           .fix = "a larger " + where + " (docker: --pids-limit)"}};
}

Findings examine_aio_requests(const std::string& root) {
  const auto used = number_of(root + "/proc/sys/fs/aio-nr");
  const auto limit = number_of(root + "/proc/sys/fs/aio-max-nr");
  if (!used || !limit || *limit - *used >= aio_requests_least) return {};
  return {{.name = "aio_requests",
           .level = Level::Warn,
           .value = fmt::format("{} of the machine's {} used", *used, *limit),
           .meaning = "where libaio is the engine, it may get none",
           .fix = "sysctl fs.aio-max-nr=1048576"}};
}

}  // namespace artesian::tools
