// Text in pieces: "a,b".
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace artesian {

/// Returns what lies between the separators, empty pieces too: n separators make n + 1 of them.
/// They are parts of `text`, which outlives them.
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
