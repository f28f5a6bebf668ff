#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "base/split.h"

namespace artesian {
namespace {

// True if a list like "cpu,memory" contains the word.
bool lists(const std::string& list, const std::string& word) {
  const auto words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Path of this process's group in the controller's hierarchy: "/a/b". Parses lines
// "id:controllers:path".
std::optional<std::string> group_path(GroupVersion version, const std::string& controller,
                                      const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool wanted =
        version == GroupVersion::Two ? controllers.empty() : lists(controllers, controller);
    if (wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string root;  // the group that is mounted at `point`
  std::string point;
};

// Finds the mount of the hierarchy. Parses lines of mountinfo: id parent device root point options
// [fields] - type source super-options.
std::optional<Mount> group_mount(GroupVersion version, const std::string& controller,
                                 const std::string& root) {
  const std::string type = version == GroupVersion::Two ? "cgroup2" : "cgroup";
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(word.begin(), word.end(), "-");
    if (word.size() < 6 || word.end() - dash < 4 || dash[1] != type) continue;
    const bool controls = version == GroupVersion::Two || lists(dash[3], controller);
    if (controls) return Mount{.root = word[3], .point = word[4]};
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> control_group_folders(GroupVersion version, const std::string& controller,
                                               const std::string& root) {
  const auto path = group_path(version, controller, root);
  const auto mount = group_mount(version, controller, root);
  if (!path || !mount) return {};
  std::string below = *path;
  if (mount->root != "/" && below.rfind(mount->root, 0) == 0) below.erase(0, mount->root.size());
  const std::string top = root + mount->point;
  std::vector<std::string> folders;
  while (below.size() > 1) {
    folders.push_back(top + below);
    below.erase(std::min(below.find_last_of('/'), below.size()));
  }
  folders.push_back(top);
  return folders;
}

}  // namespace artesian
