// `artesian inspect DIR`: shows what a folder of checkpoints, or one of them, contains, and whether
// it is complete.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "base/result.h"

namespace artesian::tools {

struct InspectOptions {
  std::string path;     // a folder of checkpoints, or one of them
  bool verify = false;  // read and verify every block
  bool json = false;    // print one JSON object on stdout
};

void add_inspect_flags(CLI::App& inspect);
/// Reads the flags. Errors: Invalid, one line for each fault.
Result<InspectOptions> read_inspect_flags(const CLI::App& inspect);

/// Prints the result to stdout. Returns the exit code: 1 if something is damaged. Errors: Invalid,
/// Io (no folder, or nothing in it).
Result<int> inspect(const InspectOptions& options);

}  // namespace artesian::tools
