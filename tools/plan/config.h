// What a plan asks of a config file beside what a run does: no schedule, as nothing is trained by
// one; the buckets of DeepSpeed's communication, which a run has no use for; and what would stay as
// it is if something else were changed.
#pragma once

#include <string>

#include "base/result.h"
#include "tools/plan/planner.h"
#include "zero3/config/config.h"

namespace artesian::tools {

struct PlanConfig {
  zero3::Config config;
  DeepSpeedBuckets buckets;
  bool grad_accum_dtype_given = false;
};

/// A schedule whose end the config leaves to `--steps` gets one. Errors: as zero3::read_config.
Result<PlanConfig> read_plan_config(const std::string& path, zero3::ConfigArguments arguments);

}  // namespace artesian::tools
