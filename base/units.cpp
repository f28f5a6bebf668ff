#include "base/units.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace artesian {
namespace {

struct Suffix {
  const char* text;
  double factor;
};

constexpr std::array<Suffix, 14> suffixes{{{"", 1.0},
                                           {"b", 1.0},
                                           {"k", 1024.0},
                                           {"m", 1048576.0},
                                           {"g", 1073741824.0},
                                           {"t", 1099511627776.0},
                                           {"kib", 1024.0},
                                           {"mib", 1048576.0},
                                           {"gib", 1073741824.0},
                                           {"tib", 1099511627776.0},
                                           {"kb", 1e3},
                                           {"mb", 1e6},
                                           {"gb", 1e9},
                                           {"tb", 1e12}}};

Error size_error(std::string_view text) {
  return make_error(ErrorCode::Invalid,
                    "got \"" + std::string(text) +
                        "\", allowed a size such as 4096, 512MiB, 2G (powers of 1024) or 1.5GB "
                        "(powers of 1000)");
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(number) || number < 0) return size_error(text);
  for (const char c : copy) {
    if (c == 'x' || c == 'X') return size_error(text);  // strtod would accept hexadecimal numbers
  }
  std::string suffix;
  for (; *end != '\0'; ++end) {
    if (*end != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*end)));
  }
  for (const Suffix& known : suffixes) {
    if (suffix != known.text) continue;
    const double bytes = number * known.factor;
    if (bytes > 9.2e18) return size_error(text);
    return static_cast<std::uint64_t>(std::llround(bytes));
  }
  return size_error(text);
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < names.size()) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  const int digits = unit == 0 || value >= 100.0 ? 0 : value >= 10.0 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, names[unit]);
  return text;
}

}  // namespace artesian
