// `aio_bench compare`: our engine beside fio, on the same file system, with the same blocks, depth
// and memory, in turn.
#pragma once

#include <CLI/CLI.hpp>

namespace artesian::bench {

void add_compare_flags(CLI::App& command);
/// Returns the exit code.
int compare_command(const CLI::App& command);

}  // namespace artesian::bench
