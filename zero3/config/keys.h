// The only table of configuration keys. It defines what the reader accepts, what its messages say,
// and what docs/config.md prints. Keys, types and defaults are those of DeepSpeed 0.19.8; the
// `artesian` section is our own.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace artesian::zero3 {

enum class KeyType : std::uint8_t {
  Boolean,
  Integer,      // low..high, a multiple of `multiple`; 1e9 counts as an integer
  Real,         // finite, low..high
  Choice,       // one of `choices`
  Text,         // a string
  Betas,        // two numbers from 0 to below 1
  TextList,     // a list of strings
  Folders,      // one folder, several separated by ',', or a list
  Size,         // bytes: a number, or a string such as "512MiB"
  PrintSteps,   // an integer, or Infinity for "never"
  Section,      // an object whose keys are in this table
  OpenSection,  // an object whose unknown keys are ignored
  Any           // any value, ignored
};

enum class KeyEffect : std::uint8_t {
  InEffect,
  NoEffect,      // accepted with one note; `detail`: why it has no effect
  NotSupported,  // refused by name; `detail`: the values that are accepted, separated by '|'
  Alias,         // another name for a key; `detail`: the path of that key
  Forbidden      // always an error; `detail`: what to do instead
};

/// Value of `high`: the largest double, printed as "no limit".
inline constexpr double any_finite = std::numeric_limits<double>::max();

/// One key. Defaults are defined only in the table.
struct ConfigKey {
  std::string_view path;  // dotted path
  KeyType type = KeyType::Boolean;
  std::string_view fallback = "";  // the default as JSON; "": no default, and "auto" is refused
                                   // unless `automatic` describes the meaning of "auto"
  KeyEffect effect = KeyEffect::InEffect;
  std::string_view detail = "";  // meaning depends on `effect`: see KeyEffect
  double low = 0.0;
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  std::uint64_t multiple = 1;
  std::string_view choices = "";    // separated by '|'
  bool case_matters = true;         // whether choices are case-sensitive
  bool nullable = false;            // null means absent
  std::string_view automatic = "";  // the value that "auto" becomes; "": the default
  std::string_view text = "";       // one line of documentation
};

/// All keys, sections before their members.
const std::vector<ConfigKey>& config_keys();

/// The row of a path, or null if there is none.
const ConfigKey* find_config_key(std::string_view path);

/// True if DeepSpeed 0.19.8 has removed, and now refuses, the feature that this key, or this value
/// of the key, turns on. Source: _REMOVED_TOP_LEVEL_CONFIG_KEYS and _REMOVED_ZERO_CONFIG_KEYS of
/// its runtime/config.py; DeepSpeed#8489 for the optimizers.
bool removed_from_deepspeed(const ConfigKey& key, std::string_view value) noexcept;

/// "an integer from 0 to 3", "none, cpu or nvme": what a key accepts.
std::string allowed_text(const ConfigKey& key);

/// Formats "a|b|c" as "a, b or c".
std::string choices_text(std::string_view choices);

/// Splits a text at '|'.
std::vector<std::string_view> split_choices(std::string_view choices);

/// The table as Markdown, for docs/config.md.
std::string config_keys_markdown();

namespace detail {                           // the parts of the table, one per file
std::span<const ConfigKey> training_keys();  // batches, precision, optimizer, scheduler
std::span<const ConfigKey> zero_keys();      // zero_optimization, aio, artesian
std::span<const ConfigKey> other_keys();     // all other sections of DeepSpeed
inline constexpr std::string_view no_exchange = "what ranks exchange does not depend on it";
}  // namespace detail

}  // namespace artesian::zero3
