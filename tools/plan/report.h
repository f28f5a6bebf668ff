// Output of a plan, for people and programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/plan/planner.h"
#include "tools/plan/rates.h"

namespace artesian::tools {

struct PlanReport {
  const PlanCase* plan = nullptr;
  std::uint64_t gpus = 0;  // GPUs per node; 0: a CPU
  std::uint64_t nodes = 1;
  double exposed_bus = 0.0;  // seconds of a step that the bus takes beside everything else
  std::string shape;         // how the model's shape was chosen, if it was not given
  std::vector<RateSource> rates;
  PlanFigures figures;
  std::vector<Change> changes;        // best first
  std::vector<Candidate> candidates;  // fastest first
  std::vector<std::string> advice;
  std::vector<std::string> notes;
};

/// What a tier holds, by kind; and the tiers, in the order of the output.
struct MemoryRow {
  const char* name;
  const char* field;
  std::uint64_t TierBytes::*member;
};
inline constexpr MemoryRow memory_rows[] = {
    {"parameters", "param", &TierBytes::param},
    {"gradients", "grad", &TierBytes::grad},
    {"optimizer state", "optimizer", &TierBytes::optimizer},
    {"gathered parameters", "gathered", &TierBytes::gathered},
    {"buffers", "buffers", &TierBytes::buffers},
    {"kept inputs", "input", &TierBytes::input}};

struct TierColumn {
  const char* name;
  TierBytes PlanFigures::*member;
};
inline constexpr TierColumn tiers[] = {
    {"device", &PlanFigures::device}, {"host", &PlanFigures::host}, {"nvme", &PlanFigures::nvme}};

/// "ZeRO-3, optimizer on cpu, activation_checkpointing, micro-batch 2 x 4".
std::string candidate_text(const Candidate& candidate);

std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);
/// A plot of memory by tier and one step's timeline.
std::string plan_svg(const PlanReport& report);

}  // namespace artesian::tools
