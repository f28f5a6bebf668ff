// Puts the settings found by `aio_bench tune` into a training config, as text: order, layout and
// comments of the rest do not change.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/aio_bench/search.h"

namespace artesian::bench {

/// Returns the config text {"aio": {...}}, on several lines. It includes "artesian": {"engine":
/// ...} if the settings are for another engine than `automatic`, the one that "auto" selects here,
/// or for polling.
std::string print_settings(const Settings& settings, aio::EngineKind automatic);

/// Returns the config's text with these settings: in its `aio` section, rewritten to the form that
/// DeepSpeed reads, or else in a new section at the end. artesian.engine and artesian.polling are
/// written only if the config would otherwise use others. `path` is for messages. Errors: Invalid
/// (the config does not parse, or is not an object).
Result<std::string> with_settings(std::string_view text, const std::string& path,
                                  const Settings& settings, aio::EngineKind automatic);

/// A config whose `aio` section has the one form that DeepSpeed reads, and the keys removed for
/// that.
struct OneForm {
  std::string text;
  std::vector<std::string> removed;  // paths of keys
};

/// Returns the config's text with its `aio` section at top level, where intra_op_parallelism
/// replaces thread_count and num_threads, which DeepSpeed ignores. Errors: as with_settings.
Result<OneForm> in_one_form(std::string_view text, const std::string& path);

/// Checks that an existing config contains only keys that print_settings writes, so that
/// overwriting it loses nothing else. Errors: Invalid (naming the key that would be lost, or why
/// the text is not a config), Io.
Result<void> check_settings_alone(const std::string& path);
/// As above, for the config's text. `path` is for messages.
Result<void> check_settings_alone(std::string_view text, const std::string& path);

/// Checks in advance whether apply_settings can work: the config can be read and edited, and a file
/// can be created beside it (one is created and removed). Errors: Invalid, Io, NoSpace.
Result<void> check_apply_settings(const std::string& path);

/// Applies the settings to the file, which is replaced atomically. It keeps its permissions, and
/// its owner if this user may change owners (else one warning). Returns the path of a backup of the
/// old file: beside it, .bak, or .bak.1 and so on if that exists. If the path is a symbolic link,
/// its target is edited. A file that cannot be replaced, such as a single file mounted into a
/// container, is overwritten once the backup is on the disk. Errors: Invalid, Io, NoSpace.
Result<std::string> apply_settings(const std::string& path, const Settings& settings,
                                   aio::EngineKind automatic);

}  // namespace artesian::bench
