#include "tools/shell/svg.h"

#include <nlohmann/json.hpp>

namespace artesian::tools {

const char* const svg_style = R"(<style>
svg { font: 13px system-ui, sans-serif; }
.ground { fill: #ffffff; } text { fill: #1a1a1a; }
.title { font-size: 20px; font-weight: 600; } .head { font-weight: 600; }
.grid { stroke: #d5d5d5; stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; }
.a { stroke: #0072b2; } .b { stroke: #d55e00; stroke-dasharray: 7 4; }
.c { stroke: #00835f; stroke-dasharray: 2 3; }
.range { fill: none; stroke-width: 5; stroke-opacity: 0.25; stroke-dasharray: none; }
.mark { stroke-dasharray: none; stroke-width: 2; fill: #ffffff; }
.chosen { fill: none; stroke: #1a1a1a; stroke-width: 2; }
.cell { fill: #0072b2; } .end { text-anchor: end; } .middle { text-anchor: middle; }
.small { font-size: 11px; }
.k0 { fill: #0072b2; } .k1 { fill: #d55e00; } .k2 { fill: #00835f; } .k3 { fill: #cc79a7; }
.k4 { fill: #8a8f98; } .k5 { fill: #e69f00; } .bar { stroke: #ffffff; stroke-width: 0.5; }
@media (prefers-color-scheme: dark) {
  .ground, .mark { fill: #14171a; } text { fill: #ececec; } .grid { stroke: #3b4046; }
  .a { stroke: #56b4e9; } .b { stroke: #f0a830; } .c { stroke: #3fd0a4; }
  .chosen { stroke: #ececec; } .cell { fill: #2f8fd0; }
}
</style>
)";

std::string svg_escaped(const std::string& text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string result;
  for (const char c : Json::parse(quoted).get<std::string>()) {
    switch (c) {
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '&': result += "&amp;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return result;
}

/// Our texts take at most 0.59 em per character in DejaVu Sans, which is wide, and 0.63 em in bold.
double svg_text_width(const std::string& text, double font_size) noexcept {
  return 0.65 * font_size * static_cast<double>(text.size());
}

}  // namespace artesian::tools
