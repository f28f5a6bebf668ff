#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace artesian {

void check_failed(const char* expression, const char* file, int line,
                  const std::string& values) noexcept {
  std::fprintf(stderr, "artesian: CHECK failed: %s at %s:%d (%s)\n", expression, file, line,
               values.c_str());
  std::abort();
}

}  // namespace artesian
