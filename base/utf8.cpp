#include "base/utf8.h"

#include <fmt/core.h>

namespace artesian {

std::size_t utf8_sequence(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 && first <= 0xf4   ? 4
                             : first >= 0xe0 && first <= 0xef ? 3
                             : first >= 0xc2 && first <= 0xdf ? 2
                                                              : 0;
  if (length == 0) return 0;
  for (std::size_t i = 1; i < length && i < text.size(); ++i) {
    const unsigned low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return 0;
  }
  return length;  // cut off by the end: counts in full
}

std::string as_utf8(std::string_view bytes) {
  std::string escaped;
  bool all = true;
  for (std::string_view rest = bytes; !rest.empty();) {
    const std::size_t length = utf8_sequence(rest);
    if (length == 0 || length > rest.size()) {
      escaped += fmt::format("\\x{:02X}", static_cast<unsigned char>(rest.front()));
      rest.remove_prefix(1);
      all = false;
      continue;
    }
    escaped += rest.front() == '\\' ? "\\\\" : std::string(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  return all ? std::string(bytes) : escaped;
}

}  // namespace artesian
