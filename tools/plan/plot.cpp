#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "tools/plan/report.h"
#include "tools/shell/print.h"
#include "tools/shell/svg.h"

namespace artesian::tools {
namespace {

constexpr auto escaped = svg_escaped;

using Kind = zero3::StepEvent::Kind;

constexpr double width = 960, left = 150, right = 24, bar_height = 30, lane_height = 26;
constexpr double plot_width = width - left - right;
constexpr double memory_top = 112, memory_step = 62;
constexpr double time_top = memory_top + 3 * memory_step + 60;

// Kinds in memory_rows use the first styles; parameters, gradients and optimizer state have the
// same colour in both halves.
constexpr const char* work_names[] = {"parameters come",   "gradients, norm", "optimizer", "",
                                      "forward, backward", "kept inputs"};

int look_of(Kind kind) {
  switch (kind) {
    case Kind::Fetch:
    case Kind::Await: return 0;
    case Kind::Update: return 2;
    case Kind::Compute: return 4;
    case Kind::Input: return 5;
    default: return 1;
  }
}

/// Prints all digits of numbers from 1000 on, where %g would print an exponent.
std::string figure(double value, int digits = 4) {
  return value < 999.5 ? print("%.*g", digits, value) : print("%.0f", value);
}

/// Formats 70.12e9, as accepted by --params.
std::string count(double value) {
  int exponent = 0;
  for (; value >= 999.95; exponent += 3) value /= 1000;
  return print("%.4g", value) + (exponent == 0 ? "" : print("e%d", exponent));
}

template <typename Names>
std::string legend(const Names& names, double y) {
  constexpr double mark = 12, to_text = 18, to_next = 14, font_size = 11;
  std::string svg;
  double x = left + 40;
  int look = 0;
  for (const char* name : names) {
    if (name[0] != 0) {
      svg += print("<rect class=\"k%d\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>",
                   look, x, y - 10, mark, mark) +
             print("<text class=\"small\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", x + to_text, y, name);
      x += to_text + svg_text_width(name, font_size) + to_next;
    }
    ++look;
  }
  return svg;
}

std::vector<const char*> memory_names() {
  std::vector<const char*> names;
  for (const MemoryRow& row : memory_rows) names.push_back(row.name);
  return names;
}

/// Draws one tier to its own scale: its budget or its content; for a disk only the content.
std::string tier_svg(const TierColumn& column, const TierBytes& tier, double y) {
  const bool fills = column.member != &PlanFigures::nvme;
  const auto scale =
      static_cast<double>(std::max({fills ? tier.budget : 0, tier.used(), std::uint64_t{1}}));
  std::string svg = print("<text class=\"end\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", left - 10,
                          y + 20, column.name);
  double x = left;
  int look = 0;
  for (const MemoryRow& row : memory_rows) {
    const std::uint64_t part = tier.*row.member;
    const double length = static_cast<double>(part) / scale * plot_width;
    if (part != 0) {
      svg += print("<rect class=\"k%d bar\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\">",
                   look, x, y, length, bar_height) +
             "<title>" + row.name + ": " + format_size(part) + "</title></rect>\n";
    }
    x += length;
    ++look;
  }
  svg += print("<rect class=\"chosen\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n",
               left, y, plot_width, bar_height);
  const std::string of = tier.budget == 0 ? "" : " of " + format_size(tier.budget);
  return svg + print("<text class=\"small\" x=\"%.0f\" y=\"%.0f\">", left, y + bar_height + 14) +
         format_size(tier.used()) + of + "</text>\n";
}

struct Bar {
  zero3::StepSpan span;
  double busy = 0.0;  // busy seconds in it
};

/// Merges spans closer than a pixel into one bar, paler if there are gaps, so that a picture of
/// thousands of spans stays small.
std::vector<Bar> bars_of(std::vector<zero3::StepSpan> spans, double seconds) {
  const double pixel = seconds / plot_width;
  std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return a.resource != b.resource ? a.resource < b.resource : a.begin < b.begin;
  });
  std::vector<Bar> bars;
  for (zero3::StepSpan span : spans) {
    span.begin = std::max(span.begin, 0.0);
    span.end = std::min(span.end, seconds);
    if (span.end <= span.begin) continue;
    const double busy = span.end - span.begin;
    const bool joins = !bars.empty() && bars.back().span.resource == span.resource &&
                       look_of(bars.back().span.kind) == look_of(span.kind) &&
                       span.begin - bars.back().span.end < pixel;
    if (joins) {
      bars.back().span.end = std::max(bars.back().span.end, span.end);
      bars.back().busy += busy;
    } else {
      bars.push_back({span, busy});
    }
  }
  return bars;
}

std::string bar_svg(const Bar& bar, double seconds, double y) {
  const zero3::StepSpan& span = bar.span;
  const double x = left + span.begin / seconds * plot_width;
  const double length = span.end - span.begin;
  return print("<rect class=\"k%d\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"",
               look_of(span.kind), x, y, std::max(length / seconds * plot_width, 0.3),
               lane_height - 5) +
         print(" fill-opacity=\"%.2f\">", std::clamp(bar.busy / length, 0.15, 1.0)) + "<title>" +
         work_names[look_of(span.kind)] + ": " + figure(span.begin) + " s to " + figure(span.end) +
         " s</title></rect>\n";
}

/// The largest of 1, 2 and 5 times a power of ten that gives at least four parts.
double round_step(double seconds) {
  const double power = std::pow(10.0, std::floor(std::log10(seconds / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (factor * power * 4 <= seconds) return factor * power;
  }
  return power;
}

std::string ticks_svg(double seconds, double y) {
  constexpr double margin = 30;  // a label at the picture's end is right-aligned
  const double step = round_step(seconds);
  std::string svg;
  for (int tick = 0; tick * step <= seconds * (1 + 1e-9); ++tick) {
    const double x = left + plot_width * std::min(tick * step / seconds, 1.0);
    const bool inside = x <= left + plot_width - margin;
    svg +=
        print("<text class=\"%s small\" x=\"%.0f\" y=\"%.0f\">", inside ? "middle" : "end", x, y) +
        figure(tick * step, 3) + " s</text>\n";
  }
  return svg;
}

std::string timeline_svg(const zero3::StepTime& time, double* bottom) {
  std::string svg;
  double y = time_top;
  const auto bars = bars_of(time.spans, time.seconds);
  for (std::size_t index = 0; index < zero3::resource_count; ++index) {
    const auto resource = static_cast<zero3::Resource>(index);
    if (time.busy[index] <= 0) continue;
    svg += print("<text class=\"end small\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", left - 10, y + 15,
                 zero3::resource_name(resource)) +
           print("<path class=\"grid\" d=\"M%.0f %.0fh%.0f\"/>\n", left, y + lane_height - 2,
                 plot_width);
    for (const Bar& bar : bars) {
      if (bar.span.resource == resource) svg += bar_svg(bar, time.seconds, y);
    }
    y += lane_height;
  }
  svg += ticks_svg(time.seconds, y + 16) +
         print("<text class=\"small\" x=\"%.0f\" y=\"%.0f\">", left, y + 34) +
         "A pale bar is many short ones: the paler, the more of its time is idle.</text>\n";
  *bottom = y + 46;
  return svg;
}

}  // namespace

std::string plan_svg(const PlanReport& report) {
  const PlanFigures& figures = report.figures;
  double bottom = 0;
  const std::string timeline = timeline_svg(figures.time, &bottom);
  const std::string title = report.plan->model->model_type + ", " +
                            count(static_cast<double>(figures.elements)) +
                            " parameters: " + figure(figures.time.seconds) + " s a step";
  const std::string line =
      figure(figures.tokens_per_s) +
      print(" tokens/s, compute idle %.0f%%, bottleneck ", figures.idle_share * 100) +
      figures.bottleneck;
  std::string svg =
      print("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
            width, bottom) +
      "<title>artesian plan: " + escaped(title) + "</title>\n" + svg_style +
      print("<rect class=\"ground\" width=\"%.0f\" height=\"%.0f\"/>\n", width, bottom) +
      "<text class=\"title\" x=\"16\" y=\"32\">" + escaped(title) + "</text>\n" +
      "<text x=\"16\" y=\"56\">" + escaped(line) + "</text>\n" +
      print("<text class=\"head\" x=\"16\" y=\"%.0f\">Memory of a rank</text>\n", memory_top - 22) +
      legend(memory_names(), memory_top - 22);
  double y = memory_top;
  for (const TierColumn& tier : tiers) {
    svg += tier_svg(tier, figures.*tier.member, y);
    y += memory_step;
  }
  svg += print("<text class=\"head\" x=\"16\" y=\"%.0f\">One step</text>\n", time_top - 16) +
         legend(work_names, time_top - 16);
  return svg + timeline + "</svg>\n";
}

}  // namespace artesian::tools
