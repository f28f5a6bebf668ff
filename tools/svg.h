// The words that our pictures share: a style that follows light and dark, and text as XML may hold
// it.
#pragma once

#include <string>

namespace artesian::tools {

/// Plain rules, and the dark ones over them: viewers that know no media queries show the light
/// look.
extern const char* const svg_style;

/// As XML may hold it.
std::string svg_escaped(const std::string& text);

}  // namespace artesian::tools
