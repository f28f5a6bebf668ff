// Doctor's lines about the machine and this process: kernel, io_uring, memory, limits, processor,
// NUMA nodes. `root` is prepended to every path, so that tests can simulate other machines.
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
/// Returns how to make this engine available again, given the error with which it could not be
/// made.
std::string fix_of_engine(aio::EngineKind kind, const Error& refusal, const std::string& root = "");
/// Sets up a ring with the options of a training run's engine, and closes it; if that is refused,
/// tries the next engine of "auto".
Finding examine_io_uring();
/// `bytes_of_machine`: available bytes ignoring control groups; 0 if unknown.
Finding examine_memory(std::uint64_t bytes_available, std::uint64_t bytes_of_machine = 0);

struct MemlockFacts {
  std::uint64_t limit = 0;  // bytes; RLIM_INFINITY if unlimited
  bool exempt = false;      // has CAP_IPC_LOCK
  std::uint64_t memory_available = 0;
};
MemlockFacts memlock_facts(const std::string& root = "");
Finding examine_memlock(const MemlockFacts& facts);

struct HugePageFacts {
  std::string mode;      // the system's mode of transparent huge pages; empty: not in this kernel
  std::string reserved;  // number of reserved huge pages (hugetlbfs)
  pinned::HugePages allowed = pinned::HugePages::Allowed;
  bool switched_on = false;       // they were disabled for this process, and were enabled
  std::uint64_t bytes_tried = 0;  // bytes allocated for a test just now
  std::uint64_t bytes_huge = 0;   // how many of them are on 2 MiB pages
};
HugePageFacts huge_page_facts(const std::string& root = "");
Finding examine_huge_pages(const HugePageFacts& facts);
Finding examine_descriptors(std::uint64_t limit);
Finding examine_processor(const std::string& root = "");
Finding examine_numa(const std::string& root = "");
/// Reports on which nodes a run's host memory is placed (tiering/host_nodes.h), and whether the
/// kernel allows that; no line if there is no choice. `subject`: the GPU; empty for a run on the
/// CPU.
Findings examine_host_memory(const pinned::NodePolicy& policy, const std::string& subject = "");

/// All examinations above, on this machine.
Findings examine_machine();

}  // namespace artesian::tools
