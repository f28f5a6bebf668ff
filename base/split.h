// Splits text at a separator: "a,b".
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace artesian {

/// Returns the pieces between the separators, empty ones too: n separators give n + 1 pieces. The
/// pieces are views into `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

}  // namespace artesian
