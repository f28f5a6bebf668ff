// `artesian plan --measure`: runs the planned settings for some steps on this machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/plan/planner.h"

namespace artesian::tools {

struct MeasureOptions {
  std::string device = "cpu";  // device to train on, as in zero3::EngineOptions
  std::uint64_t count = 3;     // number of candidates
  /// Told before each: which, and how many.
  std::function<void(const Candidate& candidate, std::uint64_t number)> progress;
};

/// Trains the fastest candidates on random tokens from random weights, within the budgets that each
/// was planned with, and notes in each the median seconds of its steady steps. One that this config
/// cannot run, or this disk has no room for, is passed over; the note says why. Returns the notes.
/// Errors: Cancelled (a signal); Io, Busy (nvme_path).
Result<std::vector<std::string>> measure_candidates(const PlanCase& plan,
                                                    std::vector<Candidate>& candidates,
                                                    const MeasureOptions& options);

}  // namespace artesian::tools
