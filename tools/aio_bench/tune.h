// `aio_bench tune`: searches the settings for one or more disks, and hands them over: as a config's
// aio section, in a config, as a machine profile for the planner, as a plot.
#pragma once

#include <CLI/CLI.hpp>

namespace artesian::bench {

void add_tune_flags(CLI::App& command);
/// Returns the exit code.
int tune_command(const CLI::App& command);

}  // namespace artesian::bench
