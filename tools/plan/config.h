// How a plan reads a config file, where it differs from a run: it needs no schedule; it reads the
// buckets of DeepSpeed's communication, which a run ignores; and it records which values depend on
// others.
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

/// If the config leaves the end of its schedule to `--steps`, one is assumed. Errors: as
/// zero3::read_config.
Result<PlanConfig> read_plan_config(const std::string& path, zero3::ConfigArguments arguments);

}  // namespace artesian::tools
