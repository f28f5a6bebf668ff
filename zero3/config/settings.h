// Settings: the content of a config text, checked key by key against the table (keys.h) and looked
// up by canonical path. Rules about several keys are in resolve.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3/config/config.h"
#include "zero3/config/faults.h"
#include "zero3/config/keys.h"
#include "zero3/config/text.h"

namespace artesian::zero3 {

/// One key as the user gave it.
struct Setting {
  const ConfigKey* key = nullptr;
  std::string typed_path;  // the path as the user typed it
  std::string typed_value;
  bool automatic = false;  // the value is "auto": the resolver determines it
  JsonValue value;
};

class Settings {
 public:
  /// Checks the members of the root object. Adds all faults and notes to the two lists.
  Settings(const JsonValue& root, UnknownKeys unknown, Faults& faults,
           std::vector<std::string>& notes);

  /// True if the key has a valid value (neither "auto" nor null).
  bool given(std::string_view path) const;
  bool automatic(std::string_view path) const;
  /// True if the key was given with an invalid value: no further complaint about it makes sense.
  bool broken(std::string_view path) const { return broken_.contains(std::string(path)); }

  /// Returns the value, or the table's default; false, 0 or empty if that is null.
  bool boolean(std::string_view path) const;
  std::uint64_t integer(std::string_view path) const;
  double real(std::string_view path) const;
  std::string text(std::string_view path) const;
  /// The value as JSON; null if the key is absent and has no default.
  JsonValue value(std::string_view path) const;

  /// The path as the user typed it, else the canonical one.
  std::string name(std::string_view path) const;
  /// The value as the user typed it.
  std::string typed(std::string_view path) const;

  const std::map<std::string, Setting>& all() const noexcept { return settings_; }

 private:
  friend class SettingsReader;
  JsonValue value_of(std::string_view path, JsonValue::Kind kind) const;
  std::map<std::string, Setting> settings_;    // by dotted path
  std::map<std::string, std::string> broken_;  // canonical path -> typed path
};

}  // namespace artesian::zero3
