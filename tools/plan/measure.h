// `artesian plan --measure`: runs the planned settings for a few steps on this machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/plan/planner.h"

namespace artesian::tools {

struct MeasureOptions {
  std::string device = "cpu";  // device to train on, as in zero3::EngineOptions
  std::uint64_t count = 3;     // number of candidates
  /// Called before each candidate, with its number.
  std::function<void(const Candidate& candidate, std::uint64_t number)> progress;
};

/// Trains the fastest candidates on random tokens from random weights, within the budgets that each
/// was planned with, and records in each the median seconds of its steady steps. Candidates that
/// this config cannot run, or for which the disk has no room, are skipped with a note. Returns the
/// notes. Errors: Cancelled (a signal); Io, Busy (nvme_path).
Result<std::vector<std::string>> measure_candidates(const PlanCase& plan,
                                                    std::vector<Candidate>& candidates,
                                                    const MeasureOptions& options);

}  // namespace artesian::tools
