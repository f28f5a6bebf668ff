// Errors as every program of ours prints them: one stderr line per fault, at most 5.
#pragma once

#include <string>

#include "base/result.h"

namespace artesian::tools {

/// Prints "PROGRAM: error: ..." for each line of the error, at most 5, and returns `exit_code`.
int report_error(const char* program, const Error& error, int exit_code);
int report_error(const char* program, const std::string& message, int exit_code);

}  // namespace artesian::tools
