#pragma once

#include <string>

#include "base/result.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

/// Reads and resolves a config file. Errors: those of parse_config; Io.
Result<Config> read_config(const std::string& path, const ConfigArguments& arguments);

}  // namespace artesian::zero3
