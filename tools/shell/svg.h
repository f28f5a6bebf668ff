// Shared parts of our SVG plots: a style for light and dark mode, escaping of text, and text
// widths.
#pragma once

#include <string>

namespace artesian::tools {

/// Plain rules, overridden by rules for dark mode: viewers without media queries show the light
/// style.
extern const char* const svg_style;

/// Escapes text for XML.
std::string svg_escaped(const std::string& text);

/// Width in pixels of ASCII text in this font size: an upper bound for the likely fonts of
/// `system-ui`.
double svg_text_width(const std::string& text, double font_size) noexcept;

}  // namespace artesian::tools
