#include "tools/shell/report_error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace artesian::tools {

int report_error(const char* program, const std::string& message, int exit_code) {
  constexpr int lines_max = 5;
  std::size_t begin = 0;
  for (int line = 0; line < lines_max && begin <= message.size(); ++line) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    std::fprintf(stderr, "%s: error: %.*s\n", program, static_cast<int>(end - begin),
                 message.data() + begin);
    begin = end + 1;
  }
  return exit_code;
}

int report_error(const char* program, const Error& error, int exit_code) {
  return report_error(program, error.to_string(), exit_code);
}

int report_error(const char* program, const std::vector<Error>& errors, int exit_code) {
  std::string lines;
  for (const Error& error : errors) lines += (lines.empty() ? "" : "\n") + error.to_string();
  return report_error(program, lines, exit_code);
}

Error with_parameter_count(Error error, std::uint64_t parameters) {
  const std::size_t place = error.message.find(" bytes missing");
  if (parameters == 0 || place == std::string::npos) return error;
  const std::size_t end = std::min(error.message.find('\n', place), error.message.size());
  error.message.insert(end, fmt::format(". The model has {} parameters", parameters));
  return error;
}

Error naming(const std::string& flag, Error error) {
  std::string named;
  for (std::size_t begin = 0; begin <= error.message.size();) {
    const std::size_t end = std::min(error.message.find('\n', begin), error.message.size());
    const std::string line = error.message.substr(begin, end - begin);
    const bool begins_so = ("--" + line).starts_with(flag + ": ");
    named += (begin == 0 ? "" : "\n") + (begins_so ? "--" : flag + ": ") + line;
    begin = end + 1;
  }
  error.message = std::move(named);
  return error;
}

}  // namespace artesian::tools
