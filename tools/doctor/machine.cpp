#include "tools/doctor/machine.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "aio/engine.h"
#include "base/kernel_files.h"
#include "base/machine.h"
#include "base/units.h"
#include "kernels/dispatch.h"
#include "pinned/memory_range.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t memory_least = std::uint64_t{2} << 30;
constexpr std::uint64_t descriptors_least = 256;
constexpr unsigned cap_ipc_lock = 14;
constexpr std::uint64_t huge_pages_tried = std::uint64_t{16} << 20;
constexpr const char* more_locked_memory =
    "ulimit -l unlimited; for good, a line \"USER - memlock unlimited\" in "
    "/etc/security/limits.conf (docker: --ulimit memlock=-1)";
constexpr const char* more_threads =
    "ulimit -u 4096; for good, a line \"USER - nproc 4096\" in /etc/security/limits.conf; in a "
    "container, a larger pids.max (docker: --pids-limit)";

/// Reads MemAvailable.
std::uint64_t memory_of_machine() {
  const std::string text = value_after("/proc/meminfo", "MemAvailable");
  std::uint64_t kib = 0;
  std::from_chars(text.data(), text.data() + text.size(), kib);
  return kib * 1024;
}

}  // namespace

Finding examine_kernel(const std::string& release) {
  int major = 0, minor = 0;
  const bool known = std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2;
  Finding finding{.name = "kernel", .value = release};
  if (!known || major > 5 || (major == 5 && minor >= 7)) {
    finding.meaning = "new enough for io_uring";
    return finding;
  }
  finding.level = Level::Warn;
  finding.meaning = "io_uring needs 5.7; the line io_uring says what takes its place";
  finding.fix = "a newer kernel; 6.1 also states the alignment of direct I/O";
  return finding;
}

std::string fix_of_engine(aio::EngineKind kind, const Error& refusal, const std::string& root) {
  const bool ring = kind == aio::EngineKind::IoUring;
  if (refusal.code == ErrorCode::Exhausted) return more_threads;
  switch (refusal.system_error) {
    case EMFILE: return "ulimit -n 1024";
    case EOPNOTSUPP: return std::string("a kernel of ") + (ring ? "5.7" : "4.18") + " or newer";
    case ENOMEM:
      if (ring) return more_locked_memory;
      return "end other programs, or raise the control group's limit of memory";
    case EAGAIN:
      if (!ring) return "sysctl fs.aio-max-nr=1048576";
      break;
    case EPERM:
    case EACCES:
      if (ring && number_of(root + "/proc/sys/kernel/io_uring_disabled").value_or(0) != 0) {
        return "sysctl kernel.io_uring_disabled=0";
      }
      break;
    default: break;
  }
  return std::string("in a container, a seccomp profile that allows ") +
         (ring ? "io_uring" : "io_setup and io_submit") +
         " (docker: --security-opt seccomp=FILE); else a kernel built with it";
}

Finding examine_io_uring() {
  using aio::EngineKind;
  Finding finding{.name = "io_uring", .value = "works"};
  const aio::EngineOptions options{.queue_depth = 32};
  const auto engine = aio::make_engine(EngineKind::IoUring, options);
  if (engine.has_value()) {
    finding.meaning = "transfers are submitted in batches, without a thread for each";
    return finding;
  }
  finding.level = Level::Warn;
  finding.value = engine.error().to_string();
  finding.fix = fix_of_engine(EngineKind::IoUring, engine.error());
  const auto next = aio::make_engine(EngineKind::Libaio, options);
  if (next.has_value()) {
    finding.meaning = "artesian.engine auto takes libaio here: asynchronous with direct I/O alone";
    return finding;
  }
  const auto last = aio::make_engine(EngineKind::Threads, options);
  finding.level = last.has_value() ? Level::Warn : Level::Fail;
  finding.meaning = last.has_value()
                        ? "artesian.engine auto takes the thread pool here, at more CPU time; "
                          "libaio, which comes first, is refused, too: " +
                              next.error().to_string()
                        : "nor can any other engine be made: no run can use a disk";
  return finding;
}

Finding examine_memory(std::uint64_t bytes_available, std::uint64_t bytes_of_machine) {
  Finding finding{.name = "memory", .value = format_size(bytes_available) + " available"};
  // A smaller difference is due to other programs.
  const bool grouped = bytes_available < bytes_of_machine / 10 * 9;
  if (grouped) {
    finding.value +=
        " within its control group, " + format_size(bytes_of_machine) + " on the machine";
  }
  finding.meaning = "the default host budget is half of it";
  if (bytes_available >= memory_least) return finding;
  finding.level = Level::Warn;
  finding.fix = std::string(grouped ? "raise the control group's limit (docker: --memory)"
                                    : "end other programs") +
                ", or set small artesian.device_memory and artesian.host_memory";
  return finding;
}

MemlockFacts memlock_facts(const std::string& root) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string effective = value_after(root + "/proc/self/status", "CapEff");
  std::uint64_t capabilities = 0;
  std::from_chars(effective.data(), effective.data() + effective.size(), capabilities, 16);
  return {.limit = limit.rlim_cur,
          .exempt = (capabilities >> cap_ipc_lock & 1) != 0,
          .memory_available = available_memory(root)};
}

Finding examine_memlock(const MemlockFacts& facts) {
  Finding finding{.name = "memlock"};
  const bool unlimited = facts.limit == RLIM_INFINITY;
  finding.value = unlimited ? "unlimited" : format_size(facts.limit);
  if (facts.exempt) finding.value += ", but this user may lock any amount";
  if (facts.exempt || unlimited || facts.limit >= facts.memory_available / 2) {
    finding.meaning = "the default host budget can be page-locked";
    return finding;
  }
  finding.level = Level::Warn;
  finding.meaning = "less than the default host budget, " +
                    format_size(facts.memory_available / 2) +
                    ": beyond it buffers can be swapped out, and are not registered with io_uring";
  finding.fix = more_locked_memory;
  return finding;
}

HugePageFacts huge_page_facts(const std::string& root) {
  HugePageFacts facts{.mode = first_line_of(root + "/sys/kernel/mm/transparent_hugepage/enabled"),
                      .reserved = value_after(root + "/proc/meminfo", "HugePages_Total"),
                      .allowed = pinned::huge_pages_allowed(root),
                      .switched_on = pinned::huge_pages_switched_on()};
  auto range = pinned::MemoryRange::map(huge_pages_tried, "a try");
  if (!range.has_value()) return facts;
  std::memset(range->data(), 1, huge_pages_tried);
  facts.bytes_tried = huge_pages_tried;
  facts.bytes_huge = pinned::count_pages(range->data(), huge_pages_tried).bytes_huge;
  return facts;
}

Finding examine_huge_pages(const HugePageFacts& facts) {
  Finding finding{.name = "huge_pages"};
  finding.value = "transparent: " + (facts.mode.empty() ? "not in this kernel" : facts.mode) +
                  "; reserved: " + (facts.reserved.empty() ? "0" : facts.reserved);
  finding.level = Level::Warn;
  finding.meaning =
      "buffers are on 4 KiB pages, which costs direct I/O a quarter to a third of its bandwidth";
  if (facts.allowed == pinned::HugePages::OffInSystem) {
    finding.fix = "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled";
  } else if (facts.allowed == pinned::HugePages::OffInProcess) {
    finding.value += "; off for this process";
    finding.fix =
        "a container or batch system that neither sets PR_SET_THP_DISABLE nor refuses prctl, by "
        "which artesian and aio_bench would take it back";
  } else if (facts.bytes_huge < facts.bytes_tried / 4 * 3) {
    finding.value += "; of " + format_size(facts.bytes_tried) + " taken just now, " +
                     format_size(facts.bytes_huge) + " are on 2 MiB pages";
    finding.meaning = "free memory is in small pieces: " + finding.meaning;
    finding.fix = "echo 1 >/proc/sys/vm/compact_memory before a run, or fewer other programs";
  } else {
    finding.level = Level::Ok;
    finding.meaning =
        "buffers are on 2 MiB pages, which direct I/O moves fastest; none need be "
        "reserved";
  }
  if (facts.switched_on) {
    finding.value += "; off for what was started here (PR_SET_THP_DISABLE)";
    finding.meaning +=
        "; artesian and aio_bench allow them for themselves, a program of your own has to: "
        "prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) at its start";
  }
  return finding;
}

Finding examine_descriptors(std::uint64_t limit) {
  Finding finding{.name = "descriptors"};
  finding.value = limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
  if (limit >= descriptors_least) {
    finding.meaning = "enough open files for rings, swap files and libraries";
    return finding;
  }
  finding.level = Level::Warn;
  finding.meaning = "each ring takes two, each swap file two, and libraries some dozens";
  finding.fix = "ulimit -n 1024";
  return finding;
}

Finding examine_processor(const std::string& root) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const bool known = sched_getaffinity(0, sizeof(usable), &usable) == 0;
  const std::string model = value_after(root + "/proc/cpuinfo", "model name");
  std::istringstream flags(value_after(root + "/proc/cpuinfo", "flags"));
  std::string wide;
  for (std::string flag; flags >> flag;) {
    if (flag == "avx512_bf16" || flag == "amx_bf16") wide += (wide.empty() ? "" : ", ") + flag;
  }
  Finding finding{.name = "processor"};
  finding.value = fmt::format("{}, {} cores usable, kernels in {}, bf16: {}",
                              model.empty() ? "not named" : model,
                              known ? std::to_string(CPU_COUNT(&usable)) : "unknown",
                              kernels::active_target_name(), wide.empty() ? "none" : wide);
  // The same rule as in zero3/torch/compute_device.cpp.
  const bool amd = value_after(root + "/proc/cpuinfo", "vendor_id") == "AuthenticAMD";
  const bool gains = wide.find("amx_bf16") != std::string::npos || (amd && !wide.empty());
  finding.meaning = std::string(gains ? "on the CPU bf16 training is computed in bf16"
                                      : "on the CPU 16-bit training is computed in fp32") +
                    ", unless artesian.compute_dtype says otherwise";
  return finding;
}

Finding examine_numa(const std::string& root) {
  std::size_t nodes = 0;
  for (const std::string& name : names_in(root + "/sys/devices/system/node")) {
    nodes += name.starts_with("node") && name.find_first_of("0123456789") == 4;
  }
  Finding finding{.name = "numa",
                  .value = fmt::format("{}{}", nodes, nodes == 1 ? " node" : " nodes")};
  if (nodes == 0) finding.value = "not known";
  if (nodes <= 1) {
    finding.meaning = "all memory is equally near";
    return finding;
  }
  finding.meaning = "memory far from the disk or the GPU is slower; their lines say where they are";
  return finding;
}

Findings examine_host_memory(const pinned::NodePolicy& policy, const std::string& subject) {
  if (policy.nodes.empty()) return {};
  Finding finding{.name = "host_memory", .value = describe(policy), .subject = subject};
  finding.meaning = "a run's host memory, as near as can be to what moves its bytes";
  auto range = pinned::MemoryRange::map(4096, "a try");
  const auto placed = range.has_value() ? range->place(policy) : Result<void>(range.error());
  if (placed.has_value()) return {finding};
  finding.level = Level::Warn;
  finding.value += ", if the kernel let it: " + system_error_text(placed.error().system_error);
  finding.meaning = "it lies wherever the kernel puts it, and transfers may cross the machine";
  finding.fix = "in a container, --cap-add=SYS_NICE, or a seccomp profile that allows mbind";
  return {finding};
}

Findings examine_machine() {
  utsname system{};
  uname(&system);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  return {examine_kernel(system.release),
          examine_io_uring(),
          examine_memory(available_memory(), memory_of_machine()),
          examine_memlock(memlock_facts()),
          examine_huge_pages(huge_page_facts()),
          examine_descriptors(files.rlim_cur),
          examine_processor(),
          examine_numa()};
}

}  // namespace artesian::tools
