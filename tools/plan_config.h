// What a plan asks of a config file beside what a run does: no schedule, as nothing is trained by
// one, and the buckets of DeepSpeed's communication, which a run has no use for.
#pragma once

#include <string>

#include "base/result.h"
#include "tools/planner.h"
#include "zero3/config.h"

namespace artesian::tools {

struct PlanConfig {
  zero3::Config config;
  DeepSpeedBuckets buckets;
};

/// A schedule whose end the config leaves to `--steps` gets one. Errors: as zero3::read_config.
Result<PlanConfig> read_plan_config(const std::string& path, zero3::ConfigArguments arguments);

}  // namespace artesian::tools
