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

/// "0.001", "3e-05": the shortest text that reads back as the same number.
std::string shortest(double value);

}  // namespace artesian::zero3
