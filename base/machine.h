// What can be learnt about the memory of this machine and this process. Read from /proc and the
// control groups at each call, as values change. `root` is prepended to every path, so that tests
// can simulate other machines.
#pragma once

#include <cstdint>
#include <string>

namespace artesian {

/// Bytes that this process may still allocate without swapping or being killed: the minimum of
/// MemAvailable (or, if /proc is not mounted, the free memory that sysinfo reports) and, for each
/// memory control group (v1 or v2) of the process, limit minus usage; the group's reclaimable file
/// cache counts as unused. 0 if nothing is known.
std::uint64_t available_memory(const std::string& root = "");

struct ProcessMemory {
  std::uint64_t bytes = 0;       // resident now
  std::uint64_t bytes_peak = 0;  // resident at most, since the start
  // resident now and backed by files, as code and data of libraries are
  std::uint64_t bytes_file = 0;
};

ProcessMemory process_memory(const std::string& root = "");

}  // namespace artesian
