#include "base/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "base/split.h"

namespace artesian {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

// The number after `key` (then spaces) at the start of a line. Nothing if there is no such line.
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

// Whether a list like "cpu,memory" has the word.
bool lists(const std::string& list, const std::string& word) {
  const auto words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// How the two versions of control groups call the same things.
struct GroupVersion {
  const char* file_system;
  const char* limit;
  const char* usage;
  const char* reclaimable;
};
constexpr GroupVersion version_1{"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file "};
constexpr GroupVersion version_2{"cgroup2", "memory.max", "memory.current", "inactive_file "};

// This process's group in the hierarchy that counts memory: "/a/b". Line: "id:controllers:path".
std::optional<std::string> group_path(const GroupVersion& version, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool wanted = &version == &version_2 ? controllers.empty() : lists(controllers, "memory");
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string root;  // the group that is seen at `point`
  std::string point;
};

// Line of mountinfo: id parent device root point options [fields] - type source super-options.
std::optional<Mount> group_mount(const GroupVersion& version, const std::string& root) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(word.begin(), word.end(), "-");
    if (word.size() < 6 || word.end() - dash < 4 || dash[1] != version.file_system) continue;
    const bool counts_memory = &version == &version_2 || lists(dash[3], "memory");
    if (counts_memory) return Mount{.root = word[3], .point = word[4]};
  }
  return std::nullopt;
}

std::uint64_t available_in_group(const GroupVersion& version, const std::string& folder) {
  const auto limit = value_of(folder + "/" + version.limit, "");
  if (!limit) return unlimited;  // "max", or a level that counts nothing
  const auto usage = value_of(folder + "/" + version.usage, "").value_or(0);
  const auto reclaimable =
      std::min(usage, value_of(folder + "/memory.stat", version.reclaimable).value_or(0));
  const std::uint64_t used = usage - reclaimable;
  return *limit > used ? *limit - used : 0;
}

// The least over the group and all groups above it that can be seen.
std::uint64_t available_in_groups(const GroupVersion& version, const std::string& root) {
  const auto path = group_path(version, root);
  const auto mount = group_mount(version, root);
  if (!path || !mount) return unlimited;
  std::string below = *path;
  if (mount->root != "/" && below.rfind(mount->root, 0) == 0) below.erase(0, mount->root.size());
  const std::string top = root + mount->point;
  std::uint64_t available = available_in_group(version, top);
  while (below.size() > 1) {
    available = std::min(available, available_in_group(version, top + below));
    below.erase(std::min(below.find_last_of('/'), below.size()));
  }
  return available;
}

}  // namespace

std::uint64_t available_memory(const std::string& root) {
  const auto machine = kib_of(root + "/proc/meminfo", "MemAvailable:");
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
