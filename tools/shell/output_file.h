// A file that a program writes for its user: checked before the work begins, and there as a whole
// or not at all.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// True if a file of this name may be written, or replaced: its folder is there, and writable.
bool may_write_file(const std::string& path);

/// Writes a file beside it and renames that. A link stays one: what it leads to is replaced.
/// Errors: Io.
Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace artesian::tools
