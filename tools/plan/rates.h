// The sources of a plan's rates: given by the user, measured on this machine, or assumed. Each rate
// names its source.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/planner.h"

namespace artesian::tools {

struct RateSource {
  std::string name;  // "nvme_read"
  double value = 0.0;
  std::string unit;    // "GB/s", "TFLOP/s" or "us"
  std::string source;  // "given", "measured ...", "assumed ..."
};

struct ChosenRates {
  std::vector<RateSource> rates;
  std::vector<std::string> notes;  // about the I/O settings of these rates (zero3/step/path_io.h)
};

/// Fills the rates and the compute seconds of `plan`. Errors: those of measuring.
Result<ChosenRates> choose_rates(const PlanOptions& options, PlanCase& plan);

}  // namespace artesian::tools
