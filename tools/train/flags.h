// The flags of `artesian train`, and the faults of given ones.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "tools/train/train.h"

namespace artesian::tools {

/// Values stay text until read_train_flags looks at them, so that all faults come in one form.
void add_train_flags(CLI::App& train);

/// After parsing. Errors: Invalid or Unsupported, one line per fault, at most 5, each
/// "FLAG: got X, allowed Y; FIX" or "not supported yet: FLAG".
Result<TrainOptions> read_train_flags(const CLI::App& train);

}  // namespace artesian::tools
