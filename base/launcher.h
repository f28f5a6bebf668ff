// How many processes this process's launcher started together, read from the launcher's environment
// variables. Processes that do not know of each other would each train the whole model that they
// are meant to share. comm/launch.h tells which rank this process is.
//
// If there are several launchers, the innermost counts: torchrun before all others, MPI before
// Slurm. SLURM_NTASKS is ignored, since it is also set in a batch script, which is one process.
//
// Thread: any, while no other thread changes the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace artesian {

struct Launch {
  std::string variable;  // name of the variable that tells the count
  std::uint64_t processes = 0;
};

/// Returns a variable's value, or nullptr.
using Environment = std::function<const char*(const char* name)>;

/// Returns the launcher that started several processes, or nothing. A value that is not a number is
/// ignored.
std::optional<Launch> launched_together(const Environment& environment);

/// `takes_group`: tells the user how to join several processes, if that is possible here. Errors:
/// Unsupported if this process is one of several.
Result<void> check_one_process(const std::string& takes_group = {});

}  // namespace artesian
