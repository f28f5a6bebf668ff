// Checks one value against one row of the table.
#pragma once

#include <optional>
#include <string>

#include "zero3/config/keys.h"
#include "zero3/config/text.h"

namespace artesian::zero3 {

/// Returns what is wrong with the value: "got X, allowed Y; FIX", or nothing. Normalizes the value:
/// choices in the table's spelling, sizes as bytes, aio's "true" as true.
std::optional<std::string> value_fault(const ConfigKey& key, JsonValue& value);

/// True if a NotSupported key accepts this value.
bool value_supported(const ConfigKey& key, const JsonValue& value);

}  // namespace artesian::zero3
