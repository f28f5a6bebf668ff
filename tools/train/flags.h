// The flags of `artesian train`, and the checks of their values.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "tools/train/train.h"

namespace artesian::tools {

/// Values remain text until read_train_flags checks them, so that all faults have the same form.
void add_train_flags(CLI::App& train);

/// Call it after parsing. Errors: Invalid or Unsupported, one line per fault, at most 5, each
/// "FLAG: got X, allowed Y; FIX" or "not supported yet: FLAG".
Result<TrainOptions> read_train_flags(const CLI::App& train);

}  // namespace artesian::tools
