// printf into a string.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace artesian::tools {

/// Formats at most 511 characters.
[[gnu::format(printf, 1, 2)]] inline std::string print(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace artesian::tools
