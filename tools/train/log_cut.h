// The log of a resumed run: what it must contain, and where it is cut.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace artesian::tools {

struct LogCut {
  std::uint64_t step = 0;       // lines behind this step's go; 0: the run starts afresh
  std::string line{};           // that step's line, as in its checkpoint; empty: unknown
  std::uint64_t lines_max = 0;  // as many may there be of a run without a checkpoint; 0: any number
};

/// Checks the log without changing it. Errors: those of cut_log().
Result<void> check_log(const std::string& path, const LogCut& cut);

/// Makes a log end with the line of a step: what came after has not happened. That line is
/// appended where it alone is missing. Of a run that starts afresh the lines of one before, which
/// left no checkpoint, go to PATH.1, or the first number that is free; so does what follows the
/// line of the step if it is torn, as a power cut leaves it. A log that is not there, is
/// empty, or is no file stays as it is. Errors: Invalid: the file is not a log of the steps up to
/// that one, each once and in order; then it stays as it is; Io.
Result<void> cut_log(const std::string& path, const LogCut& cut);

}  // namespace artesian::tools
