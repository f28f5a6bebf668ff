// Writes results to stdout, which may be closed or on a full disk: lost output is an error.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// Writes text. Errors: Io.
Result<void> write_stdout(const std::string& text);

/// Flushes earlier output. Errors: Io.
Result<void> flush_stdout();

}  // namespace artesian::tools
