// How many processes the launcher of this one has started together, as the launcher's variables in
// the environment say. Several of them that know nothing of each other would each train the whole
// of a model that they are meant to share. comm/launch.h says which of them this is.
//
// The innermost launcher is asked, where it can be told: torchrun before all others, MPI before
// Slurm. Slurm's SLURM_NTASKS is not asked, since a batch script has it, too, and is one process.
//
// Thread: one that is not beside another which changes the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"

namespace artesian {

struct Launch {
  std::string variable;  // name of the variable that says so
  std::uint64_t processes = 0;
};

/// Returns a variable's value, or nullptr.
using Environment = std::function<const char*(const char* name)>;

/// Returns what started several processes, or nothing. A value that is no number says nothing.
std::optional<Launch> launched_together(const Environment& environment);

/// `takes_group`: how to join several processes, if that is possible here. Errors: Unsupported if
/// this process is one of several.
Result<void> check_one_process(const std::string& takes_group = {});

}  // namespace artesian
