// Reads the keys of a model's config.json one by one. Every fault becomes one line with the file,
// the key, the given value and the allowed values; keys that were never read are listed in one
// note. The architectures (such as gpt2_config.h) define the keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace artesian::models {

struct IntegerRange {
  std::int64_t minimum;
  std::int64_t maximum;
};

struct NumberRange {
  double minimum;
  double maximum;
};

class ConfigReader {
 public:
  /// `object` must be a JSON object that outlives the reader; `path` names the file in messages,
  /// and `prefix` precedes each key there.
  ConfigReader(const nlohmann::json& object, std::string path, std::string prefix = "");

  /// Each returns the value of the first name that is present, or `absent` if there is none. Names
  /// of one list mean the same; if two are present and differ, that is a fault. A wrong type or
  /// range is a fault, and `absent` is returned.
  std::int64_t integer(std::initializer_list<const char*> names, IntegerRange range,
                       std::int64_t absent);
  std::int64_t integer_or_null(const char* name, IntegerRange range, std::int64_t absent);
  double number(const char* name, NumberRange range, double absent);
  std::optional<double> number_or_null(const char* name, NumberRange range);
  /// A list of `count` numbers; empty if the key is missing or invalid.
  std::vector<double> numbers(const char* name, std::size_t count, NumberRange range);
  bool boolean(const char* name, bool absent);
  /// The index of the given string in `allowed`. A string in `later` is a fault: not supported yet.
  std::size_t choice(const char* name, const std::vector<const char*>& allowed, std::size_t absent,
                     std::initializer_list<const char*> later = {});

  /// The string under `name`; nothing if the key is absent or invalid. Invalid values are faults.
  std::optional<std::string> text(const char* name);
  /// The list of strings under `name`; nothing if the key is absent, null or invalid.
  std::optional<std::vector<std::string>> texts(const char* name);
  bool has(const char* name) const;

  /// The members of the object under `name`, which messages call "name.key"; nothing if the key is
  /// absent, null, empty or invalid. Pass the section to absorb() after reading it.
  std::optional<ConfigReader> section(const char* name);
  /// Takes over the section's faults and notes.
  void absorb(ConfigReader section);

  /// A key that would change results if it were anything but absent, null or one of `neutral` (JSON
  /// texts such as "false", "{}"): any other value is a fault, and false is returned.
  bool refuse_unless(const char* name, std::initializer_list<const char*> neutral);

  /// Keys that have no effect on training this model; they are not noted.
  void ignore(std::initializer_list<std::string_view> names);

  /// Accepts a key that has no effect because `other` decides; notes any value except this one.
  void ignore_beside(const char* name, const char* other, std::int64_t value_of_other);

  void add_fault(std::string_view key, std::string_view got, std::string_view allowed);
  void add_note(std::string text);

  /// Returns the notes so far, including one that lists the keys that were never read.
  std::vector<std::string> take_notes();
  /// Errors: Invalid, one line per fault, at most 5.
  Result<void> finish() const;

 private:
  const nlohmann::json* find(const char* name);
  std::string shown(const nlohmann::json& value) const;

  const nlohmann::json& object_;
  std::string path_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> faults_;
  std::vector<std::string> notes_;
};

}  // namespace artesian::models
