// Where `aio_bench tune` puts what it found. What can be known of these files is checked before the
// minute; after it every one of them is tried, whatever becomes of the others, and stdout, which
// may be closed or full, comes last.
#pragma once

#include <string>

#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/report.h"

namespace artesian::bench {

/// Files; empty where the flag is absent.
struct TuneOutputs {
  std::string json;  // a file, or "-" for stdout
  std::string config_out, apply, plot;
};

void add_output_flags(CLI::App& command);
TuneOutputs read_outputs(FlagReader& flags);

/// Writes everything, and says what could not be written. Returns the exit code.
int hand_over(const TuneOutputs& outputs, const TuneReport& report);

}  // namespace artesian::bench
