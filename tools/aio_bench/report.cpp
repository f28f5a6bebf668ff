#include "tools/aio_bench/report.h"

#include <algorithm>
#include <cstdio>

#include "tools/aio_bench/config_edit.h"
#include "tools/shell/print.h"

namespace artesian::bench {
namespace {

using Json = nlohmann::ordered_json;

Json rates_json(const std::vector<Sample>& samples) {
  const Spread rate = spread_of(samples, &Sample::gb_per_s);
  return {{"gb_per_s", rate.middle},
          {"min", rate.low},
          {"max", rate.high},
          {"repeats", samples.size()},
          {"lat_us",
           {{"p50", spread_of(samples, &Sample::latency_us_p50).middle},
            {"p95", spread_of(samples, &Sample::latency_us_p95).middle},
            {"p99", spread_of(samples, &Sample::latency_us_p99).middle}}}};
}

Json point_json(const Point& point) {
  Json json = tiering::aio_section(engine_options(point.settings));
  json["engine"] = engine_kind_name(point.settings.engine);
  for (const Access access : accesses) {
    json[std::string(access_name(access)) + "_gb_per_s"] = point.gb_per_s(access);
  }
  json["repeats"] = point.of(Access::Read).size();
  return json;
}

Json path_json(const PathReport& path) {
  Json curve = Json::array();
  for (const CurvePoint& point : path.curve) {
    Json json = {{"block_size", point.block_size}, {"op", access_name(point.access)}};
    json.update(rates_json(point.samples));
    curve.push_back(std::move(json));
  }
  return {{"path", path.path},
          {"file_system", path.file_system},
          {"device", path.device},
          {"duplex", path.profile.duplex},
          {"profile", path.profile_file},
          {"by_block_size", std::move(curve)}};
}

}  // namespace

Spread spread_of(const std::vector<Sample>& samples, double Sample::*figure) {
  std::vector<double> values(samples.size());
  std::transform(samples.begin(), samples.end(), values.begin(),
                 [&](const Sample& sample) { return sample.*figure; });
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {.low = *low, .middle = median(values), .high = *high};
}

Json to_json(const TuneReport& report) {
  const SearchResult& found = report.found;
  Json json = {{"aio", tiering::aio_section(engine_options(found.winner.settings))},
               {"engine", engine_kind_name(found.winner.settings.engine)},
               {"polling", polling_name(found.winner.settings.polling)}};
  for (const Access access : accesses) {
    json[access_name(access)] = rates_json(found.winner.of(access));
  }
  const auto [low, high] =
      std::minmax_element(found.head_to_head.begin(), found.head_to_head.end());
  json["head_to_head"] = {{"against", point_json(found.runner_up)},
                          {"ratio", median(found.head_to_head)},
                          {"min", *low},
                          {"max", *high},
                          {"pairs", found.head_to_head.size()}};
  json["over_defaults"] = found.over_defaults > 0 ? Json(found.over_defaults) : Json();
  json["paths"] = Json::array();
  for (const PathReport& path : report.paths) json["paths"].push_back(path_json(path));
  json["points"] = Json::array();
  for (const Point& point : found.points) json["points"].push_back(point_json(point));
  json["size"] = report.size;
  json["direct"] = report.direct;
  json["verified"] = report.verified;
  json["seconds"] = report.seconds;
  json["warnings"] = report.warnings;
  return json;
}

/// Describes the gain of tuning, and whether the next best settings are clearly worse.
std::string worth(const SearchResult& found) {
  std::string text = describe_at_length(found.winner.settings);
  if (found.over_defaults > 0) text += tools::print("; %.2f x the defaults", found.over_defaults);
  if (found.winner.settings == found.runner_up.settings) return text + "\n";
  const auto [low, high] =
      std::minmax_element(found.head_to_head.begin(), found.head_to_head.end());
  text += tools::print("; %.2f x the next (%.2f..%.2f in %zu pairs%s)", median(found.head_to_head),
                       *low, *high, found.head_to_head.size(),
                       *low <= 1 && *high >= 1 ? ": within noise" : "");
  return text + "\n";
}

std::string to_text(const TuneReport& report) {
  std::string text = print_settings(report.found.winner.settings, report.automatic);
  for (const Access access : accesses) {
    const auto& samples = report.found.winner.of(access);
    const Spread rate = spread_of(samples, &Sample::gb_per_s);
    char line[160];
    std::snprintf(line, sizeof line,
                  "%-5s %6.3f GB/s (%.3f..%.3f), latency p50 %.0f us, p99 %.0f us\n",
                  access_name(access), rate.middle, rate.low, rate.high,
                  spread_of(samples, &Sample::latency_us_p50).middle,
                  spread_of(samples, &Sample::latency_us_p99).middle);
    text += line;
  }
  return text + worth(report.found);
}

}  // namespace artesian::bench
