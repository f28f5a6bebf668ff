// A plan as people and programs read it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/plan_rates.h"
#include "tools/planner.h"

namespace artesian::tools {

struct PlanReport {
  const PlanCase* plan = nullptr;
  std::uint64_t gpus = 0;  // of a node; 0: a CPU
  std::uint64_t nodes = 1;
  std::string shape;  // how the model was chosen, where it was
  std::vector<RateSource> rates;
  PlanFigures figures;
  std::vector<Change> changes;        // best first
  std::vector<Candidate> candidates;  // fastest first
  std::vector<std::string> advice;
  std::vector<std::string> notes;
};

std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);
/// Memory by tier and one step's timeline.
std::string plan_svg(const PlanReport& report);

}  // namespace artesian::tools
