// Reads JSON as people paste it: a BOM, U+00A0 outside strings, comments (// and /* */ and #),
// trailing commas and the numbers Infinity, -Infinity, NaN and 1e999 are accepted, as in Python, so
// that a bad key can be refused by name. All other deviations from JSON are errors with line and
// column. Keys keep their order and numbers their spelling, so that messages can show what the user
// typed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace artesian::zero3 {

/// One JSON value. Only the fields of its kind are set.
struct JsonValue {
  enum class Kind : std::uint8_t { Null, Boolean, Number, String, Array, Object };

  Kind kind = Kind::Null;
  bool boolean = false;
  double number = 0.0;        // may be infinite or NaN
  bool exact = false;         // the number is an integer and fits `integer`
  std::uint64_t integer = 0;  // exact value of a non-negative integer
  std::string text = {};      // content of a string; a number as typed
  std::vector<JsonValue> elements = {};
  std::vector<std::pair<std::string, JsonValue>> members = {};

  /// The member with this name, or null.
  const JsonValue* find(std::string_view name) const noexcept;
};

/// Parses a whole text. `path` is for messages. Errors: Invalid, "PATH: line L, column C: what", or
/// one line per key that is given twice. Texts larger than 1 MiB or nested deeper than 64 are
/// refused.
Result<JsonValue> read_json(std::string_view text, const std::string& path);

/// The value as JSON on one line, cut to about 60 characters, for "got X".
std::string print_json(const JsonValue& value);

/// A key, made safe to print: unchanged, or as JSON if it is empty, very long or contains control
/// characters.
std::string print_key(const std::string& name);

}  // namespace artesian::zero3
