#include "tools/doctor/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace artesian::tools {

void put_worst_first(Findings& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& one, const Finding& other) {
    return one.level > other.level;
  });
}

const char* level_name(Level level) noexcept {
  switch (level) {
    case Level::Ok: return "ok";
    case Level::Warn: return "warn";
    case Level::Fail: return "fail";
  }
  return "";
}

std::size_t count_of(const Findings& findings, Level level) noexcept {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& finding) { return finding.level == level; }));
}

std::string to_text(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    std::string level = level_name(finding.level);
    level.resize(6, ' ');
    text += level + finding.name + (finding.subject.empty() ? "" : " " + finding.subject) + ": " +
            finding.value;
    if (!finding.meaning.empty()) text += "; " + finding.meaning;
    text += "\n";
    if (!finding.fix.empty()) text += "      fix: " + finding.fix + "\n";
  }
  for (const Level level : {Level::Ok, Level::Warn, Level::Fail}) {
    text += level == Level::Ok ? "" : ", ";
    text += fmt::format("{} {}", count_of(findings, level), level_name(level));
  }
  return text + "\n";
}

std::string to_json(const Findings& findings) {
  auto list = nlohmann::ordered_json::array();
  Level worst = Level::Ok;
  for (const Finding& finding : findings) {
    worst = std::max(worst, finding.level);
    list.push_back({{"name", finding.name},
                    {"subject", finding.subject},
                    {"status", level_name(finding.level)},
                    {"value", finding.value},
                    {"meaning", finding.meaning},
                    {"fix", finding.fix}});
  }
  const nlohmann::ordered_json whole{{"status", level_name(worst)}, {"findings", list}};
  // Paths and names of devices may contain any bytes.
  return whole.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace artesian::tools
