// The plot of `aio_bench tune --plot`: one SVG without scripts, fonts or other external parts,
// legible on light and dark backgrounds and for colour-blind readers (Okabe and Ito's palette;
// every line also has its own marker and dash pattern).
#pragma once

#include <string>

#include "tools/aio_bench/report.h"

namespace artesian::bench {

std::string plot_svg(const TuneReport& report);
/// The same as an HTML page, with the figures as a table.
std::string plot_html(const TuneReport& report);

}  // namespace artesian::bench
