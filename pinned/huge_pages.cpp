#include "pinned/huge_pages.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>

#include "base/kernel_files.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::pinned {
namespace {

// A flag of Linux 6.18 in the answer of PR_GET_THP_DISABLE: huge pages are disabled except for
// memory that asks for them, as ours does.
constexpr int except_advised = 1 << 1;

std::atomic<bool> switched_on = false;
std::atomic<bool> meant_to_be_off = false;

bool off_in_process() noexcept {
  const int answer = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
  return answer > 0 && (answer & except_advised) == 0;
}

bool off_in_system(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage/";
  // Since Linux 6.8 each size has its own setting, which mostly inherits the general one.
  std::string mode = first_line_of(folder + "hugepages-2048kB/enabled");
  if (mode.empty() || mode.find("[inherit]") != std::string::npos) {
    mode = first_line_of(folder + "enabled");
  }
  return mode.find('[') == std::string::npos || mode.find("[never]") != std::string::npos;
}

const char* cause(HugePages allowed) noexcept {
  switch (allowed) {
    case HugePages::OffInSystem:
      return "they are off in /sys/kernel/mm/transparent_hugepage/enabled; to allow them: echo "
             "madvise >/sys/kernel/mm/transparent_hugepage/enabled";
    case HugePages::OffInProcess:
      return "they are off for this process (PR_SET_THP_DISABLE, inherited from what started it); "
             "to allow them: prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) at the program's start";
    case HugePages::Allowed: break;
  }
  return "the kernel had no more of them, as memory is in small pieces; to join them: echo 1 "
         ">/proc/sys/vm/compact_memory before the start";
}

}  // namespace

HugePages huge_pages_allowed(const std::string& root) {
  if (off_in_system(root)) return HugePages::OffInSystem;
  return off_in_process() ? HugePages::OffInProcess : HugePages::Allowed;
}

bool allow_huge_pages() noexcept {
  if (!off_in_process()) return false;
  switched_on = prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0 && !off_in_process();
  return switched_on;
}

bool huge_pages_switched_on() noexcept {
  return switched_on;
}

bool forbid_huge_pages() noexcept {
  meant_to_be_off = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0;
  return meant_to_be_off;
}

PageCount count_pages(const std::byte* data, std::uint64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = begin + bytes;
  std::ifstream mappings("/proc/self/smaps");
  PageCount count;
  std::uint64_t inside = 0;  // bytes of the present mapping that belong to the range
  for (std::string line; std::getline(mappings, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    std::uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      if (first >= end) break;
      // A range consists of several mappings if only a part of it is locked.
      inside = last <= begin ? 0 : std::min(last, end) - std::max(first, begin);
    } else if (inside != 0 && std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      count.bytes_resident += std::min(kib << 10, inside);
    } else if (inside != 0 && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) {
      count.bytes_huge += std::min(kib << 10, inside);
    }
  }
  return count;
}

void warn_of_small_pages(const PageCount& count) {
  static std::atomic<bool> warned = false;
  if (meant_to_be_off || warned.exchange(true)) return;
  log(LogLevel::Warning, "of " + format_size(count.bytes_resident) + " for transfers " +
                             format_size(count.bytes_huge) +
                             " are on 2 MiB pages, the rest on 4 KiB, which costs direct I/O up to "
                             "a third of its bandwidth: " +
                             cause(huge_pages_allowed()));
}

}  // namespace artesian::pinned
