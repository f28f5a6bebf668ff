// `aio_bench tune`: searches the best settings for one or more disks, and writes them as a config's
// aio section, into a config, as a machine profile for the planner, and as a plot.
#pragma once

#include <CLI/CLI.hpp>

namespace artesian::bench {

void add_tune_flags(CLI::App& command);
/// Runs the command. Returns the exit code.
int tune_command(const CLI::App& command);

}  // namespace artesian::bench
