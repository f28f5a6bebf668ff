// What the launcher of this process says in the environment: which of how many ranks it is, and
// where they meet. torchrun says all of it; mpirun and Slurm's srun say the first half, and the
// user the second, as MASTER_ADDR and MASTER_PORT, unless all are on this machine.
//
// Thread: one that is not beside another which changes the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/launcher.h"
#include "base/result.h"
#include "comm/group.h"

namespace artesian::comm {

struct Launch {
  Place place;
  std::string address;          // address of the machine of rank 0
  std::uint16_t port = 0;       // port of PyTorch's store there
  bool store_is_there = false;  // the launcher has started it; else rank 0 does
  std::uint32_t gpu = 0;        // of those that the process sees, the rank's own
  std::uint64_t attempt = 0;    // how often the launcher has started all ranks anew
};

/// One rank, if no launcher has started several. Errors: Invalid (a variable that is missing or
/// wrong).
Result<Launch> launch_of(const Environment& environment);
/// The same of this process.
Result<Launch> this_launch();

}  // namespace artesian::comm
