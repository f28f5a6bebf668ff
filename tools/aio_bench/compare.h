// `aio_bench compare`: our engine and fio in turn, on the same file system, with the same blocks,
// depth and memory.
#pragma once

#include <CLI/CLI.hpp>

namespace artesian::bench {

void add_compare_flags(CLI::App& command);
/// Runs the command. Returns the exit code.
int compare_command(const CLI::App& command);

}  // namespace artesian::bench
