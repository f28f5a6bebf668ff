// Whether the process's other threads are idle. The kernel offers nothing to wait on for that.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"

namespace artesian::test_support {

/// True if every other thread of the process falls asleep.
inline bool others_fall_asleep() {
  const Deadline deadline = Deadline::after_seconds(20);
  for (int quiet = 0; quiet < 20; usleep(1000)) {
    if (monotonic_ns() > deadline.at_ns) return false;
    bool asleep = true;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == std::to_string(gettid())) continue;
      std::ifstream stat(task.path() / "stat");
      std::string line;
      std::getline(stat, line);
      const std::size_t name_end = line.rfind(')');
      asleep = asleep && name_end != line.npos && line[name_end + 2] == 'S';
    }
    quiet = asleep ? quiet + 1 : 0;
  }
  return true;
}

}  // namespace artesian::test_support
