// Doctor's lines about the machine and this process: kernel, io_uring, memory, limits, processor,
// NUMA nodes. `root` is put before every path, so that tests can show other machines.
#pragma once

#include <cstdint>
#include <string>

#include "aio/engine.h"
#include "base/result.h"
#include "pinned/huge_pages.h"
#include "pinned/nodes.h"
#include "tools/doctor/report.h"

namespace artesian::tools {

Finding examine_kernel(const std::string& release);
/// Returns what gives this engine back, by the error with which it could not be made.
std::string fix_of_engine(aio::EngineKind kind, const Error& refusal, const std::string& root = "");
/// Sets up a ring with the options of a training run's engine, and closes it; if that is refused,
/// tries the next engine of "auto".
Finding examine_io_uring();
/// `bytes_of_machine`: available bytes without control groups; 0 if unknown.
Finding examine_memory(std::uint64_t bytes_available, std::uint64_t bytes_of_machine = 0);

struct MemlockFacts {
  std::uint64_t limit = 0;  // bytes; RLIM_INFINITY if there is none
  bool exempt = false;      // CAP_IPC_LOCK
  std::uint64_t memory_available = 0;
};
MemlockFacts memlock_facts(const std::string& root = "");
Finding examine_memlock(const MemlockFacts& facts);

struct HugePageFacts {
  std::string mode;      // the system's mode of transparent huge pages; empty: not in this kernel
  std::string reserved;  // huge pages of the other kind
  pinned::HugePages allowed = pinned::HugePages::Allowed;
  bool switched_on = false;       // they were off for this process, and were switched on
  std::uint64_t bytes_tried = 0;  // taken just now
  std::uint64_t bytes_huge = 0;   // bytes on 2 MiB pages
};
HugePageFacts huge_page_facts(const std::string& root = "");
Finding examine_huge_pages(const HugePageFacts& facts);
Finding examine_descriptors(std::uint64_t limit);
Finding examine_processor(const std::string& root = "");
Finding examine_numa(const std::string& root = "");
/// Reports where a run's host memory lies, by tiering/host_nodes.h, and whether the kernel lets it;
/// no line where there is no choice. `subject`: the GPU; empty for a run on the CPU.
Findings examine_host_memory(const pinned::NodePolicy& policy, const std::string& subject = "");

/// All of the above, of this machine.
Findings examine_machine();

}  // namespace artesian::tools
