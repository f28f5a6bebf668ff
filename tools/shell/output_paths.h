// Checks that no output of a run is one of its inputs, and no two outputs are the same file, as
// opening an output empties it. Files are compared, not names, so that links and "./" are
// recognised.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::tools {

struct FlagPath {
  std::string flag;
  std::string path;  // empty: the flag was not given
};

/// `inputs`: files, or folders with everything in them. Outputs that are not regular files (a
/// terminal, a pipe, /dev/null) lose nothing and may be given twice. Changes nothing; folders are
/// searched only if an output would be replaced. Errors: Invalid, one line per faulty output.
Result<void> check_outputs(const std::vector<FlagPath>& outputs,
                           const std::vector<FlagPath>& inputs);

/// Checks whether each output could be opened, without creating or emptying it, long before the run
/// writes it. Errors: Io, one line per faulty output.
Result<void> check_writable(const std::vector<FlagPath>& outputs);

}  // namespace artesian::tools
