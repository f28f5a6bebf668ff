// The output files of `aio_bench tune`. They are checked, as far as possible, before the
// measurement; afterwards each is written even if others fail. stdout, which may be closed or full,
// is written last.
#pragma once

#include <string>

#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/report.h"

namespace artesian::bench {

/// Paths; empty if the flag is absent.
struct TuneOutputs {
  std::string json;  // a file, or "-" for stdout
  std::string config_out, apply, plot;
};

void add_output_flags(CLI::App& command);
TuneOutputs read_outputs(FlagReader& flags);

/// Writes all outputs, and reports those that could not be written. Returns the exit code.
int hand_over(const TuneOutputs& outputs, const TuneReport& report);

}  // namespace artesian::bench
