// The words that our pictures share: a style that follows light and dark, text as XML may hold it,
// and the room that it takes.
#pragma once

#include <string>

namespace artesian::tools {

/// Plain rules, and the dark ones over them: viewers that know no media queries show the light
/// look.
extern const char* const svg_style;

/// As XML may hold it.
std::string svg_escaped(const std::string& text);

/// Pixels that ASCII text of this font size takes: more than in any font that `system-ui` is likely
/// to stand for.
double svg_text_width(const std::string& text, double font_size) noexcept;

}  // namespace artesian::tools
