// `artesian inspect DIR`: what a folder of checkpoints, or one of them, holds, and whether it is
// whole.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "base/result.h"

namespace artesian::tools {

struct InspectOptions {
  std::string path;     // a folder of checkpoints, or one of them
  bool verify = false;  // reads every block
  bool json = false;    // one object on stdout
};

void add_inspect_flags(CLI::App& inspect);
/// Errors: Invalid, one line for each fault.
Result<InspectOptions> read_inspect_flags(const CLI::App& inspect);

/// Prints it to stdout. Returns the exit code: 1 where something is damaged. Errors: Invalid, Io:
/// no folder, nothing in it.
Result<int> inspect(const InspectOptions& options);

}  // namespace artesian::tools
