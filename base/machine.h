// What this machine and this process can tell about memory. Read from /proc and the control groups
// each time: the answers change. `root` is put before every path, so that tests can show other
// machines.
#pragma once

#include <cstdint>
#include <string>

namespace artesian {

/// Bytes that this process may still take without swapping or being killed: the least of
/// MemAvailable (where /proc is not mounted, what sysinfo says is free) and, for each memory
/// control group (v1 or v2) that it is in, limit minus usage; cached file pages of the group that
/// can go count as unused. 0 if nothing is known.
std::uint64_t available_memory(const std::string& root = "");

struct ProcessMemory {
  std::uint64_t bytes = 0;       // resident now
  std::uint64_t bytes_peak = 0;  // resident at most, since the start
  std::uint64_t bytes_file = 0;  // resident now and backed by files: code and data of libraries
};

ProcessMemory process_memory(const std::string& root = "");

}  // namespace artesian
