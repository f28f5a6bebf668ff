#include "base/machine.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

#include "base/control_group.h"
#include "base/log.h"

namespace artesian {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

// The number after `key` (and spaces) at the beginning of a line; nothing if there is no such line.
std::optional<std::uint64_t> value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t start = line.find_first_not_of(" \t", key.size());
    if (start == std::string::npos) continue;
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(line.data() + start, line.data() + line.size(), value);
    (void)end;
    if (error == std::errc{}) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> kib_of(const std::string& path, const std::string& key) {
  const auto kib = value_of(path, key);
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

// Names of the same files in the two versions of control groups.
struct MemoryFiles {
  GroupVersion version;
  const char* limit;
  const char* usage;
  const char* reclaimable;
};
constexpr MemoryFiles version_1{GroupVersion::One, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file "};
constexpr MemoryFiles version_2{GroupVersion::Two, "memory.max", "memory.current",
                                "inactive_file "};

std::uint64_t available_in_group(const MemoryFiles& files, const std::string& folder) {
  const auto limit = value_of(folder + "/" + files.limit, "");
  if (!limit) return unlimited;  // "max", or a level without a limit
  const auto usage = value_of(folder + "/" + files.usage, "").value_or(0);
  const auto reclaimable =
      std::min(usage, value_of(folder + "/memory.stat", files.reclaimable).value_or(0));
  const std::uint64_t used = usage - reclaimable;
  return *limit > used ? *limit - used : 0;
}

// The minimum over the group and all visible groups above it.
std::uint64_t available_in_groups(const MemoryFiles& files, const std::string& root) {
  std::uint64_t available = unlimited;
  for (const std::string& folder : control_group_folders(files.version, "memory", root)) {
    available = std::min(available, available_in_group(files, folder));
  }
  return available;
}

// Used if /proc is not mounted. An underestimate, as the page cache does not count as free.
std::optional<std::uint64_t> free_memory() {
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return std::nullopt;
  log_once(LogLevel::Warning,
           "/proc/meminfo cannot be read: available memory is taken to be what sysinfo says is "
           "free, without the page cache");
  return (machine.freeram + machine.bufferram) * std::uint64_t{machine.mem_unit};
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  auto machine = kib_of(root + "/proc/meminfo", "MemAvailable:");
  if (!machine.has_value() && root.empty()) machine = free_memory();
  const std::uint64_t available =
      std::min({machine.value_or(unlimited), available_in_groups(version_1, root),
                available_in_groups(version_2, root)});
  return available == unlimited ? 0 : available;
}

ProcessMemory process_memory(const std::string& root) {
  const std::string status = root + "/proc/self/status";
  return {.bytes = kib_of(status, "VmRSS:").value_or(0),
          .bytes_peak = kib_of(status, "VmHWM:").value_or(0),
          .bytes_file = kib_of(status, "RssFile:").value_or(0)};
}

}  // namespace artesian
