// A file that a program writes for its user: checked before the work begins, and there as a whole
// or not at all.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// True if a file of this name can be written or replaced: its folder exists and is writable.
bool may_write_file(const std::string& path);

/// Writes a temporary file beside the path and renames it. A link is kept: the file that it leads
/// to is replaced. Errors: Io.
Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace artesian::tools
