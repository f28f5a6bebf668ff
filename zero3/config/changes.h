// Compares the configuration of a resumed run with the saved one.
#pragma once

#include <string>
#include <vector>

#include "zero3/config/text.h"

namespace artesian::zero3 {

/// Returns the keys that differ and affect what a step computes, each with both values:
/// "optimizer.params.lr was 0.001, is 0.0003". Placement, budgets, I/O and printing do not change
/// results and are not compared.
std::vector<std::string> config_changes(const JsonValue& before, const JsonValue& after);

}  // namespace artesian::zero3
