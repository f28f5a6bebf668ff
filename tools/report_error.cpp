#include "tools/report_error.h"

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

}  // namespace artesian::tools
