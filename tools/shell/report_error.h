// Prints errors in the form of all our programs: one stderr line per fault, at most 5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::tools {

/// Prints "PROGRAM: error: ..." for each line of the error, at most 5, and returns `exit_code`.
int report_error(const char* program, const Error& error, int exit_code);
int report_error(const char* program, const std::string& message, int exit_code);
/// Prints the first lines of several errors.
int report_error(const char* program, const std::vector<Error>& errors, int exit_code);

/// Returns the error with the model's size added, if it is about missing bytes.
Error with_parameter_count(Error error, std::uint64_t parameters);

/// Returns the error with the flag that it is about at the beginning of each line.
Error naming(const std::string& flag, Error error);

template <typename T>
Result<T> naming(const std::string& flag, Result<T> result) {
  if (result.has_value()) return result;
  return naming(flag, std::move(result).error());
}

}  // namespace artesian::tools
