#include "tools/aio_bench/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "tools/shell/print.h"
#include "tools/shell/svg.h"

namespace artesian::bench {
namespace {

using tools::print;
constexpr auto escaped = tools::svg_escaped;

constexpr double width = 960;
constexpr double panel_width = 460;
constexpr double panel_height = 300;
constexpr double head_height = 92;
constexpr double left = 56, right = 14, top = 46, bottom = 46;  // margins around a panel's axes

struct Mark {
  std::size_t at = 0;  // index of its x label
  Spread spread;
  std::string tip;
};

struct Line {
  std::string name;
  char kind = 'a';  // style: colour, dash and marker
  std::vector<Mark> marks;
};

struct Chart {
  std::string title;
  std::string x_title;
  std::vector<std::string> x_labels;
  std::vector<Line> lines;
  std::size_t chosen = ~std::size_t{0};  // index among the x labels
};

double largest(const Chart& chart) {
  double value = 0;
  for (const Line& line : chart.lines) {
    for (const Mark& mark : line.marks) value = std::max(value, mark.spread.high);
  }
  return value;
}

/// 1, 2 or 5 times a power of ten, so that four to eight steps reach the value.
double step_for(double value) {
  const double power = std::pow(10, std::floor(std::log10(std::max(value, 1e-9) / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (value / (factor * power) <= 8) return factor * power;
  }
  return 10 * power;
}

std::string mark_svg(char kind, double x, double y, const std::string& tip) {
  const std::string inside = "<title>" + escaped(tip) + "</title>";
  switch (kind) {
    case 'a':
      return print("<circle class=\"mark a\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\">", x, y) + inside +
             "</circle>\n";
    case 'b':
      return print("<rect class=\"mark b\" x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\">", x - 4,
                   y - 4) +
             inside + "</rect>\n";
    default:
      return print("<path class=\"mark c\" d=\"M%.1f %.1fl5 9h-10z\">", x, y - 5) + inside +
             "</path>\n";
  }
}

/// A bar from the least to the greatest measured value.
std::string range_svg(char kind, double x, double low, double high) {
  if (low - high < 1) return "";
  return print("<path class=\"range %c\" d=\"M%.1f %.1fV%.1f\"/>\n", kind, x, low, high);
}

std::string chart_svg(const Chart& chart, double x0, double y0) {
  const double plot_width = panel_width - left - right;
  const double plot_height = panel_height - top - bottom;
  const double highest = std::max(largest(chart), 1e-9);
  const double step = step_for(highest);
  const auto lines = static_cast<int>(std::ceil(highest / step));
  const double limit = lines * step;
  const double spacing =
      plot_width / static_cast<double>(std::max<std::size_t>(chart.x_labels.size(), 1));
  const auto x_of = [&](std::size_t index) {
    return left + spacing * (static_cast<double>(index) + 0.5);
  };
  const auto y_of = [&](double value) { return top + plot_height * (1 - value / limit); };
  std::string svg = print("<g transform=\"translate(%.0f %.0f)\">\n", x0, y0);
  svg += "<text class=\"head\" x=\"8\" y=\"16\">" + escaped(chart.title) + "</text>\n";
  for (int line = 0; line <= lines; ++line) {
    const double value = line * step;
    svg += print("<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/>", left, y_of(value), plot_width) +
           print("<text class=\"end small\" x=\"%.1f\" y=\"%.1f\">%g</text>\n", left - 6,
                 y_of(value) + 4, value);
  }
  for (std::size_t index = 0; index < chart.x_labels.size(); ++index) {
    svg += print("<text class=\"middle small\" x=\"%.1f\" y=\"%.1f\">", x_of(index),
                 top + plot_height + 17) +
           escaped(chart.x_labels[index]) + "</text>\n";
  }
  svg += print("<text class=\"middle small\" x=\"%.1f\" y=\"%.1f\">", left + plot_width / 2,
               panel_height - 10) +
         escaped(chart.x_title) + "</text>\n";
  double legend = left;
  for (const Line& line : chart.lines) {
    std::string path;
    for (const Mark& mark : line.marks) {
      path +=
          print("%s%.1f %.1f", path.empty() ? "M" : "L", x_of(mark.at), y_of(mark.spread.middle));
    }
    if (!path.empty()) svg += print("<path class=\"line %c\" d=\"", line.kind) + path + "\"/>\n";
    for (const Mark& mark : line.marks) {
      const double y = y_of(mark.spread.middle);
      svg += range_svg(line.kind, x_of(mark.at), y_of(mark.spread.low), y_of(mark.spread.high));
      svg += mark_svg(line.kind, x_of(mark.at), y, mark.tip);
      if (mark.at != chart.chosen) continue;
      svg +=
          print("<circle class=\"chosen\" cx=\"%.1f\" cy=\"%.1f\" r=\"9\"/>\n", x_of(mark.at), y);
    }
    svg += print("<path class=\"line %c\" d=\"M%.1f 32h26\"/>", line.kind, legend) +
           mark_svg(line.kind, legend + 13, 32, line.name) +
           print("<text x=\"%.1f\" y=\"36\">", legend + 32) + escaped(line.name) + "</text>\n";
    legend += 110;
  }
  return svg + "</g>\n";
}

char look_of(Access access) {
  return "abc"[static_cast<std::size_t>(access)];
}

std::vector<std::uint64_t> blocks_of(const PathReport& path) {
  std::vector<std::uint64_t> blocks;
  for (const CurvePoint& point : path.curve) {
    if (blocks.empty() || blocks.back() != point.block_size) blocks.push_back(point.block_size);
  }
  return blocks;
}

std::string short_size(std::uint64_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KiB", bytes >> 10)
                           : fmt::format("{} MiB", bytes >> 20);
}

template <typename T>
std::size_t index_of(const std::vector<T>& values, const T& value) {
  return static_cast<std::size_t>(std::find(values.begin(), values.end(), value) - values.begin());
}

Chart empty_chart(const std::string& title, const std::string& x_title,
                  const std::vector<std::uint64_t>& blocks, const Settings& chosen) {
  Chart chart{.title = title, .x_title = x_title, .x_labels = {}, .lines = {}};
  for (const std::uint64_t block : blocks) chart.x_labels.push_back(short_size(block));
  chart.chosen = index_of(blocks, chosen.block_size);
  return chart;
}

std::string queue_text(const Settings& settings) {
  return fmt::format("depth {}, {}{}", settings.queue_depth, settings.threads,
                     settings.threads == 1 ? " thread" : " threads");
}

std::string rate_text(const Spread& rates) {
  return print(": %.3f GB/s", rates.middle);
}

Chart rates_by_block(const PathReport& path, const Settings& chosen) {
  const auto blocks = blocks_of(path);
  Chart chart =
      empty_chart("GB/s by block size, " + queue_text(chosen), "block size", blocks, chosen);
  for (const Access access : accesses) {
    Line& line = chart.lines.emplace_back();
    line = {.name = access_name(access), .kind = look_of(access), .marks = {}};
    for (const CurvePoint& point : path.curve) {
      if (point.access != access) continue;
      const Spread rates = spread_of(point.samples, &Sample::gb_per_s);
      line.marks.push_back(
          {.at = index_of(blocks, point.block_size),
           .spread = rates,
           .tip = line.name + ", " + short_size(point.block_size) + rate_text(rates)});
    }
  }
  return chart;
}

Chart latencies_by_block(const PathReport& path, const Settings& chosen) {
  const auto blocks = blocks_of(path);
  Chart chart = empty_chart("latency of a block read, ms, " + queue_text(chosen), "block size",
                            blocks, chosen);
  const struct {
    const char* name;
    double Sample::*member;
  } percentiles[] = {{"p50", &Sample::latency_us_p50},
                     {"p95", &Sample::latency_us_p95},
                     {"p99", &Sample::latency_us_p99}};
  for (const auto& percentile : percentiles) {
    Line& line = chart.lines.emplace_back();
    line.name = percentile.name;
    line.kind = "abc"[chart.lines.size() - 1];
    for (const CurvePoint& point : path.curve) {
      if (point.access != Access::Read) continue;
      const Spread micros = spread_of(point.samples, percentile.member);
      line.marks.push_back({.at = index_of(blocks, point.block_size),
                            .spread = {micros.low * 1e-3, micros.middle * 1e-3, micros.high * 1e-3},
                            .tip = line.name + ", " + short_size(point.block_size) +
                                   print(": %.0f us", micros.middle)});
    }
  }
  return chart;
}

/// The settings that differ from the chosen ones only in block size and depth.
std::vector<const Point*> plane_of(const TuneReport& report) {
  std::vector<const Point*> plane;
  for (const Point& point : report.found.points) {
    Settings like = report.found.winner.settings;
    like.block_size = point.settings.block_size;
    like.queue_depth = point.settings.queue_depth;
    if (point.settings == like) plane.push_back(&point);
  }
  return plane;
}

/// The best settings for each block size and depth; at the chosen block size and depth, the chosen
/// settings.
std::vector<const Point*> best_by_block_and_depth(const TuneReport& report) {
  std::vector<const Point*> best;
  for (const Point& point : report.found.points) {
    const auto same = std::find_if(best.begin(), best.end(), [&](const Point* other) {
      return other->settings.block_size == point.settings.block_size &&
             other->settings.queue_depth == point.settings.queue_depth;
    });
    if (same == best.end()) {
      best.push_back(&point);
    } else if (point.settings == report.found.winner.settings ||
               ((*same)->settings != report.found.winner.settings &&
                point.score() > (*same)->score())) {
      *same = &point;
    }
  }
  return best;
}

template <typename Value>
std::vector<Value> sorted_values(const std::vector<const Point*>& points, Value Settings::*member) {
  std::vector<Value> values(points.size());
  std::transform(points.begin(), points.end(), values.begin(),
                 [&](const Point* point) { return point->settings.*member; });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Chart rates_by_depth(const TuneReport& report) {
  const Settings& chosen = report.found.winner.settings;
  std::vector<const Point*> points = plane_of(report);
  std::erase_if(
      points, [&](const Point* point) { return point->settings.block_size != chosen.block_size; });
  std::sort(points.begin(), points.end(), [](const Point* one, const Point* other) {
    return one->settings.queue_depth < other->settings.queue_depth;
  });
  const auto depths = sorted_values(points, &Settings::queue_depth);
  Chart chart{.title = "GB/s by queue depth, blocks of " + short_size(chosen.block_size),
              .x_title = "blocks in flight, per thread",
              .x_labels = {},
              .lines = {},
              .chosen = index_of(depths, chosen.queue_depth)};
  for (const std::uint32_t depth : depths) chart.x_labels.push_back(std::to_string(depth));
  for (const Access access : accesses) {
    Line& line = chart.lines.emplace_back();
    line = {.name = access_name(access), .kind = look_of(access), .marks = {}};
    for (const Point* point : points) {
      const std::uint32_t depth = point->settings.queue_depth;
      const Spread rates = spread_of(point->of(access), &Sample::gb_per_s);
      line.marks.push_back(
          {.at = index_of(depths, depth),
           .spread = rates,
           .tip = fmt::format("{}, depth {}{}", line.name, depth, rate_text(rates))});
    }
  }
  return chart;
}

/// Score by block size and depth: darker cells have more GB/s.
std::string heat_svg(const TuneReport& report, double x0, double y0) {
  const std::vector<const Point*> points = best_by_block_and_depth(report);
  const Settings& chosen = report.found.winner.settings;
  const auto blocks = sorted_values(points, &Settings::block_size);
  const auto depths = sorted_values(points, &Settings::queue_depth);
  double best = 1e-9;
  for (const Point* point : points) best = std::max(best, point->score());
  const double cell_width =
      (panel_width - left - right) / static_cast<double>(std::max<std::size_t>(blocks.size(), 1));
  const double cell_height = (panel_height - top - bottom + 14) /
                             static_cast<double>(std::max<std::size_t>(depths.size(), 1));
  std::string svg = print("<g transform=\"translate(%.0f %.0f)\">\n", x0, y0) +
                    "<text class=\"head\" x=\"8\" y=\"16\">GB/s of read, write and mixed "
                    "together (harmonic mean)</text>\n";
  const double above = top - 14;
  for (const Point* point : points) {
    const auto column = static_cast<double>(index_of(blocks, point->settings.block_size));
    const auto row = static_cast<double>(index_of(depths, point->settings.queue_depth));
    const double x = left + column * cell_width;
    const double y = above + (static_cast<double>(depths.size()) - 1 - row) * cell_height;
    const std::string box = print("x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", x + 1,
                                  y + 1, cell_width - 2, cell_height - 2);
    svg +=
        "<rect class=\"cell\" " + box +
        print(" fill-opacity=\"%.2f\"><title>", 0.05 + 0.5 * std::pow(point->score() / best, 2)) +
        escaped(describe(point->settings)) + print(": %.3f GB/s", point->score()) +
        "</title></rect>" +
        print("<text class=\"middle small\" x=\"%.1f\" y=\"%.1f\">%.2f</text>\n",
              x + cell_width / 2, y + cell_height / 2 + 4, point->score());
    if (point->settings.block_size == chosen.block_size &&
        point->settings.queue_depth == chosen.queue_depth) {
      svg += "<rect class=\"chosen\" " + box + "/>\n";
    }
  }
  for (std::size_t column = 0; column < blocks.size(); ++column) {
    svg += print("<text class=\"middle small\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                 left + (static_cast<double>(column) + 0.5) * cell_width,
                 panel_height - bottom + 17, short_size(blocks[column]).c_str());
  }
  for (std::size_t row = 0; row < depths.size(); ++row) {
    svg += print("<text class=\"end small\" x=\"%.1f\" y=\"%.1f\">%u</text>\n", left - 6,
                 above + (static_cast<double>(depths.size() - row) - 0.5) * cell_height + 4,
                 depths[row]);
  }
  return svg + print(
                   "<text class=\"middle small\" x=\"%.1f\" y=\"%.1f\">block size; "
                   "upwards: queue depth; framed: chosen</text>\n</g>\n",
                   left + (panel_width - left - right) / 2, panel_height - 10);
}

/// Returns the offsets at which the characters of UTF-8 text begin.
std::vector<std::size_t> characters(const std::string& text) {
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) begins.push_back(at);
  }
  return begins;
}

/// Shortens a long path in the middle, as its ends are most informative.
std::string shortened(const std::string& text, std::size_t characters_max) {
  const auto begins = characters(text);
  if (begins.size() <= characters_max) return text;
  const std::size_t half = (characters_max - 1) / 2;
  return text.substr(0, begins[half]) + "\u2026" + text.substr(begins[begins.size() - half]);
}

/// Draws the text above a path's charts: the path, and below it the parts that must not be cut off.
std::string path_svg(const PathReport& path, double y) {
  constexpr std::size_t characters_max = 110;  // characters that fit into the picture's width
  const std::string disk =
      path.file_system + (path.device.empty() ? "" : ", " + path.device) + ": ";
  return print("<text class=\"head\" x=\"16\" y=\"%.0f\">", y + 14) +
         escaped(shortened(path.path, characters_max)) + "<title>" + escaped(path.path) +
         "</title></text>\n" + print("<text class=\"small\" x=\"16\" y=\"%.0f\">", y + 31) +
         escaped(shortened(disk, characters_max)) + "reads and writes at once " +
         (path.profile.duplex ? "do not slow each other" : "share the bandwidth") + "</text>\n";
}

std::string headline(const TuneReport& report) {
  const Point& winner = report.found.winner;
  return describe_at_length(winner.settings) +
         print(": read %.3f, write %.3f, mixed %.3f GB/s", winner.gb_per_s(Access::Read),
               winner.gb_per_s(Access::Write), winner.gb_per_s(Access::Mixed));
}

}  // namespace

std::string plot_svg(const TuneReport& report) {
  const Settings& chosen = report.found.winner.settings;
  const auto rows = static_cast<double>(report.paths.size() + 1);
  const double caption = 44;
  const double height = head_height + rows * (panel_height + caption);
  std::string svg =
      print("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n",
            width, height) +
      "<title>aio_bench tune: " + escaped(headline(report)) + "</title>\n" + tools::svg_style +
      print("<rect class=\"ground\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height) +
      "<text class=\"title\" x=\"16\" y=\"34\">What this disk gives, and the settings to "
      "use</text>\n<text x=\"16\" y=\"60\">" +
      escaped(headline(report)) + "</text>\n<text class=\"small\" x=\"16\" y=\"80\">" +
      (report.direct ? "direct I/O" : "through the page cache") + ", files of " +
      escaped(format_size(report.size)) +
      "; marks are medians, the bars behind them from the least to the greatest; ringed: the "
      "chosen "
      "settings</text>\n";
  double y = head_height;
  for (const PathReport& path : report.paths) {
    svg += path_svg(path, y);
    svg += chart_svg(rates_by_block(path, chosen), 8, y + caption);
    svg += chart_svg(latencies_by_block(path, chosen), 8 + width / 2, y + caption);
    y += panel_height + caption;
  }
  svg += chart_svg(rates_by_depth(report), 8, y + caption / 2);
  svg += heat_svg(report, 8 + width / 2, y + caption / 2);
  return svg + "</svg>\n";
}

std::string plot_html(const TuneReport& report) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<title>aio_bench tune</title>\n<style>\n"
      ":root { color-scheme: light dark; } body { font: 14px system-ui, sans-serif; margin: 1em; "
      "max-width: 1100px; }\ntable { border-collapse: collapse; } th, td { padding: 2px 10px; "
      "text-align: right; border-bottom: 1px solid #8888; }\n</style>\n</head>\n<body>\n" +
      plot_svg(report) + "<pre>" + escaped(to_text(report)) + "</pre>\n";
  for (const std::string& warning : report.warnings) {
    html += "<p><strong>Warning:</strong> " + escaped(warning) + "</p>\n";
  }
  html +=
      "<table>\n<thead><tr><th>settings</th><th>read GB/s</th><th>write GB/s</th>"
      "<th>mixed GB/s</th><th>repeats</th></tr></thead>\n<tbody>\n";
  for (const Point& point : report.found.points) {
    html += "<tr><td>" + escaped(describe_at_length(point.settings)) + "</td>";
    for (const Access access : accesses) html += print("<td>%.3f</td>", point.gb_per_s(access));
    html += print("<td>%zu</td></tr>\n", point.of(Access::Read).size());
  }
  return html + "</tbody>\n</table>\n</body>\n</html>\n";
}

}  // namespace artesian::bench
