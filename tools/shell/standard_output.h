// Results on stdout, which may be a full disk or closed: what did not get there is an error.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// Errors: Io.
Result<void> write_stdout(const std::string& text);

/// For what was printed before. Errors: Io.
Result<void> flush_stdout();

}  // namespace artesian::tools
