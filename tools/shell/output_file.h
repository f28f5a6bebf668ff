// A file that a program writes for its user: checked before the work begins, and written
// atomically.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// True if a file of this name can be created or replaced: its folder exists and is writable.
bool may_write_file(const std::string& path);

/// Writes a temporary file beside the path and renames it. If the path is a symbolic link, its
/// target is replaced. Errors: Io.
Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace artesian::tools
