// The log of a resumed run: checks it, and cuts off lines after the checkpoint's step.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace artesian::tools {

struct LogCut {
  std::uint64_t step = 0;  // lines after this step are removed; 0: the run starts afresh
  std::string line{};      // the step's line, as stored in its checkpoint; empty: unknown
  // the most lines that a run without a checkpoint may have left; 0: no limit
  std::uint64_t lines_max = 0;
};

/// Checks the log without changing it. Errors: those of cut_log().
Result<void> check_log(const std::string& path, const LogCut& cut);

/// Makes a log end with the line of a step, as later steps are repeated. If only that line is
/// missing, it is appended. If the run starts afresh, the lines of an earlier run without a
/// checkpoint are moved to PATH.1, or the first free number; so are torn lines after the step's
/// line, as a power cut leaves them. A log that does not exist, is empty, or is not a file is not
/// changed. Errors: Invalid: the file is not a log of the steps up to that one, each once and in
/// order; it is then not changed; Io.
Result<void> cut_log(const std::string& path, const LogCut& cut);

}  // namespace artesian::tools
