// Turns checked settings into the Config that the engine runs: applies defaults, "auto", the
// command line's arguments, batch arithmetic and the rules about several keys.
#pragma once

#include "zero3/config/config.h"
#include "zero3/config/faults.h"
#include "zero3/config/settings.h"

namespace artesian::zero3 {

/// Fills a Config and its notes. Faults are collected; the Config is valid only if there are none.
Config resolve_config(const Settings& settings, const ConfigArguments& arguments, Faults& faults);

/// Resolves batch sizes, and checks the command line against the config: config_batch.cpp.
void resolve_batch(const Settings& settings, const ConfigArguments& arguments, Config& config,
                   Faults& faults);

/// Adds one fault that lists all contradictions between command line and config.
void check_arguments(const Settings& settings, const ConfigArguments& arguments, Faults& faults);

/// Checks rules about several keys, each of whose values is valid by itself: rules.cpp.
void check_rules(const Settings& settings, Faults& faults);

/// The dtype in which gradients are accumulated if data_types.grad_accum_dtype is not set: fp32 if
/// a step adds at least 8 gradients, else the parameters' dtype. A sum of K terms that is rounded
/// to bf16 after each addition is off by 0.4 % for K = 8 and by 1 % for K = 64; a sum rounded once
/// is off by 0.2 %. The dtype depends only on the number of terms, so that N ranks give the bits of
/// one rank with N times the micro-batches. `micro_batches`: per step and rank.
DType default_grad_accum_dtype(DType param_dtype, std::uint64_t micro_batches,
                               std::uint64_t ranks) noexcept;

/// "0.001", "3e-05": the shortest text that parses to the same number.
std::string shortest(double value);

}  // namespace artesian::zero3
