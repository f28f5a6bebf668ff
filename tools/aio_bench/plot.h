// The picture of `aio_bench tune --plot`: one SVG, without scripts, fonts or anything else from
// outside, that reads well on light and dark grounds and by readers who see few colours (Okabe and
// Ito's palette; every line has a mark and a dash of its own as well).
#pragma once

#include <string>

#include "tools/aio_bench/report.h"

namespace artesian::bench {

std::string plot_svg(const TuneReport& report);
/// The same in a page, with the figures as a table.
std::string plot_html(const TuneReport& report);

}  // namespace artesian::bench
