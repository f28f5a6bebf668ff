// What this process's launcher set in the environment: the rank, the number of ranks, and where
// they meet. torchrun sets all of it. mpirun and Slurm's srun set only the rank and the count; the
// user sets MASTER_ADDR and MASTER_PORT, unless all ranks are on this machine.
//
// Thread: any, while no other thread changes the environment.
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
  bool store_is_there = false;  // true if the launcher has started the store; else rank 0 does
  std::uint32_t gpu = 0;        // this rank's GPU, among those that the process sees
  std::uint64_t attempt = 0;    // how often the launcher has restarted all ranks
};

/// Reads the environment; one rank if no launcher has started several. Errors: Invalid (a variable
/// is missing or wrong).
Result<Launch> launch_of(const Environment& environment);
/// launch_of() for the environment of this process.
Result<Launch> this_launch();

}  // namespace artesian::comm
