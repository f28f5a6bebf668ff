// What a run writes must not be what it reads, nor two of its outputs one file: opening an output
// empties it. Files are compared, not names: links, "./" and hard links lead to the same one.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::tools {

struct FlagPath {
  std::string flag;
  std::string path;  // empty: the flag is not given
};

/// `inputs` are files, or folders with all that lies in them. What is there and no regular file (a
/// terminal, a pipe, /dev/null) loses nothing and may be given twice. Looks only, and at folders
/// only where there is an output that would be replaced.
/// Errors: Invalid, one line per output at fault.
Result<void> check_outputs(const std::vector<FlagPath>& outputs,
                           const std::vector<FlagPath>& inputs);

/// Looks whether each output could be opened, without making or emptying it: long before a run gets
/// there. Errors: Io, one line per output at fault.
Result<void> check_writable(const std::vector<FlagPath>& outputs);

}  // namespace artesian::tools
