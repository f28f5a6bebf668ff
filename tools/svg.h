// The words that our pictures share: a style that follows light and dark, printf into strings, and
// text as XML may hold it.
#pragma once

#include <string>

namespace artesian::tools {

/// Plain rules, and the dark ones over them: viewers that know no media queries show the light
/// look.
extern const char* const svg_style;

[[gnu::format(printf, 1, 2)]] std::string svg_print(const char* format, ...);

/// As XML may hold it.
std::string svg_escaped(const std::string& text);

}  // namespace artesian::tools
