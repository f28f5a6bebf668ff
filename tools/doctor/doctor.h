// `artesian doctor`: checks what matters for training on this machine; each line tells what it
// means and what to do.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace artesian::tools {

void add_doctor_flags(CLI::App& doctor);

/// Prints all findings and returns the exit code: 0, or 1 if something makes training impossible.
/// Errors: Invalid, one line per fault of the flags.
Result<int> run_doctor(const CLI::App& doctor);

}  // namespace artesian::tools
