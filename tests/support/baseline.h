// Baseline: the kernel resources that a process holds, to prove that a test leaves none behind.
#pragma once

#include <dirent.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <ostream>
#include <string>

namespace artesian::test_support {

struct Baseline {
  std::size_t descriptors = 0;
  std::size_t threads = 0;

  static Baseline now() {
    return {.descriptors = entries("/proc/self/fd"), .threads = entries("/proc/self/task")};
  }
  /// As now(), once it is at most `before` or 60 s have passed: the kernel lists a joined thread
  /// and a closed ring for a moment longer, and offers nothing to wait on. For the same reason
  /// `before` may have counted resources that were about to be released, so it is an upper bound.
  static Baseline settled(const Baseline& before) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    Baseline held = now();
    while (!(held <= before) && std::chrono::steady_clock::now() < end) {
      sched_yield();
      held = now();
    }
    return held;
  }
  bool operator<=(const Baseline& other) const {
    return descriptors <= other.descriptors && threads <= other.threads;
  }
  friend std::ostream& operator<<(std::ostream& stream, const Baseline& held) {
    return stream << held.descriptors << " descriptors, " << held.threads << " threads";
  }

 private:
  static std::size_t entries(const char* path) {
    std::size_t count = 0;
    DIR* directory = opendir(path);
    while (directory != nullptr && readdir(directory) != nullptr) ++count;
    if (directory != nullptr) closedir(directory);
    return count;
  }
};

/// A line of /proc/self/status in kB ("VmLck", "VmRSS", ...).
inline std::size_t status_kib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoul(line.substr(key.size() + 1));
  }
  return 0;
}

/// Mappings that the C library may make for threads and keep: two for each arena and each stack.
/// How many depends on how many threads ran at once, which is chance. A leak of one mapping a round
/// exceeds this number within a few more rounds.
constexpr std::size_t maps_of_threads = 80;

/// Number of mappings of this process.
inline std::size_t map_count() {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

/// True if some mapping of this process contains the address.
inline bool mapped(const void* address) {
  const auto wanted = reinterpret_cast<unsigned long>(address);
  std::ifstream file("/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    std::size_t used = 0;
    const unsigned long begin = std::stoul(line, &used, 16);
    const unsigned long end = std::stoul(line.substr(used + 1), nullptr, 16);
    if (begin <= wanted && wanted < end) return true;
  }
  return false;
}

}  // namespace artesian::test_support
