// Compares the configuration of a resumed run with the saved one.
#pragma once

#include <string>
#include <vector>

#include "zero3/config/text.h"

namespace artesian::zero3 {

/// Names the keys that differ and bear on what a step computes, each with both values:
/// "optimizer.params.lr was 0.001, is 0.0003". Placement, budgets, I/O and what is printed change
/// no bit, and are not looked at.
std::vector<std::string> config_changes(const JsonValue& before, const JsonValue& after);

}  // namespace artesian::zero3
