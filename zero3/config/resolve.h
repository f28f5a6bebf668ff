// From checked settings to the Config that the engine runs: defaults, "auto", the command line's
// arguments, batch arithmetic and the rules that concern several keys.
#pragma once

#include "zero3/config/config.h"
#include "zero3/config/faults.h"
#include "zero3/config/settings.h"

namespace artesian::zero3 {

/// Fills a Config (its notes, too). Faults are collected; the Config is of use only without any.
Config resolve_config(const Settings& settings, const ConfigArguments& arguments, Faults& faults);

/// The batch sizes and what the command line says against the config: config_batch.cpp.
void resolve_batch(const Settings& settings, const ConfigArguments& arguments, Config& config,
                   Faults& faults);

/// One fault that lists every contradiction between command line and config.
void check_arguments(const Settings& settings, const ConfigArguments& arguments, Faults& faults);

/// Checks rules over several keys whose values are valid by themselves: rules.cpp.
void check_rules(const Settings& settings, Faults& faults);

/// The type that gradients are accumulated in where data_types.grad_accum_dtype names none: fp32
/// where a step adds at least 8 of them, else the parameters'. A sum of K terms that is rounded to
/// bf16 behind each is off by 0.4 % at 8 of them and by 1 % at 64; one that is rounded once by 0.2
/// %. It follows from the number of terms alone, so that N ranks have the bits of one rank with N
/// times the micro-batches. `micro_batches`: of a step and rank.
DType default_grad_accum_dtype(DType param_dtype, std::uint64_t micro_batches,
                               std::uint64_t ranks) noexcept;

/// "0.001", "3e-05": the shortest text that reads back as the same number.
std::string shortest(double value);

}  // namespace artesian::zero3
