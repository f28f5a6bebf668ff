// The one table of configuration keys: what the reader accepts, what its messages say, and what
// docs/config.md prints. Facts: DeepSpeed 0.19.8's keys, types and defaults; the `artesian` section
// is ours.
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
  Integer,      // low..high, a multiple of `multiple`; 1e9 is one
  Real,         // finite, low..high
  Choice,       // one of `choices`
  Text,         // a string
  Betas,        // two numbers from 0 to below 1
  TextList,     // a list of strings
  Folders,      // one, several with ',' between them, or a list
  Size,         // bytes: a number or a string such as "512MiB"
  PrintSteps,   // an integer, or Infinity for never
  Section,      // an object whose keys are in this table
  OpenSection,  // an object whose other keys are ignored
  Any           // ignored
};

enum class KeyEffect : std::uint8_t {
  InEffect,
  NoEffect,      // accepted and said once; `detail`: why
  NotSupported,  // refused by name; `detail`: the values that are accepted, '|' between them
  Alias,         // another name; `detail`: the path that it stands for
  Forbidden      // always an error; `detail`: what to do
};

/// As `high`: up to what a double can hold, said as no limit.
inline constexpr double any_finite = std::numeric_limits<double>::max();

/// One key. Defaults are the table's, nowhere else's.
struct ConfigKey {
  std::string_view path;  // dotted
  KeyType type = KeyType::Boolean;
  std::string_view fallback = "";  // the default as JSON; "": none, and "auto" is refused,
                                   // unless `automatic` says what "auto" means
  KeyEffect effect = KeyEffect::InEffect;
  std::string_view detail = "";  // meaning depends on `effect`, see above
  double low = 0.0;
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  std::uint64_t multiple = 1;
  std::string_view choices = "";    // '|' between them
  bool case_matters = true;         // whether choices are case-sensitive
  bool nullable = false;            // null means absent
  std::string_view automatic = "";  // what "auto" becomes; "": the default
  std::string_view text = "";       // one line
};

/// All keys, sections before their members.
const std::vector<ConfigKey>& config_keys();

/// The row of a path, or null.
const ConfigKey* find_config_key(std::string_view path);

/// True if DeepSpeed 0.19.8 has removed the feature that the key, or this name as its value, turns
/// on, and refuses it. Source: _REMOVED_TOP_LEVEL_CONFIG_KEYS and _REMOVED_ZERO_CONFIG_KEYS of its
/// runtime/config.py; DeepSpeed#8489 for the optimizers.
bool removed_from_deepspeed(const ConfigKey& key, std::string_view value) noexcept;

/// "an integer from 0 to 3", "none, cpu or nvme": what a key accepts.
std::string allowed_text(const ConfigKey& key);

/// "a, b or c" of "a|b|c".
std::string choices_text(std::string_view choices);

/// The parts between '|'.
std::vector<std::string_view> split_choices(std::string_view choices);

/// The table as Markdown: the text of docs/config.md.
std::string config_keys_markdown();

namespace detail {                           // the parts of the table, one a file
std::span<const ConfigKey> training_keys();  // batches, precision, optimizer, scheduler
std::span<const ConfigKey> zero_keys();      // zero_optimization, aio, artesian
std::span<const ConfigKey> other_keys();     // everything else of DeepSpeed
inline constexpr std::string_view no_exchange = "what ranks exchange does not depend on it";
}  // namespace detail

}  // namespace artesian::zero3
