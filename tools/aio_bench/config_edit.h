// Puts the settings that `aio_bench tune` found into a training config, as text: nothing else of
// the file changes, not its order, its layout or its comments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/aio_bench/search.h"

namespace artesian::bench {

/// {"aio": {...}} as a config takes it, on several lines; with "artesian": {"engine": ...} where
/// the settings are those of another engine than `automatic`, which is what "auto" stands for here,
/// or of one that polls.
std::string print_settings(const Settings& settings, aio::EngineKind automatic);

/// The config's text with these settings: in its `aio` section, which gets its one form, else in a
/// new one at the end. artesian.engine and artesian.polling are written only where
/// the config would else run with others. `path` is for messages. Errors: Invalid, where the config
/// does not parse, or is no object.
Result<std::string> with_settings(std::string_view text, const std::string& path,
                                  const Settings& settings, aio::EngineKind automatic);

/// A config whose `aio` section has the one form that DeepSpeed reads, and what that took away.
struct OneForm {
  std::string text;
  std::vector<std::string> removed;  // keys, as paths
};

/// The config's text with its `aio` section at top level, and in it intra_op_parallelism alone in
/// place of thread_count and num_threads, which DeepSpeed ignores. Errors: as with_settings.
Result<OneForm> in_one_form(std::string_view text, const std::string& path);

/// Checks that a config that is there has nothing that print_settings would not write: whoever
/// writes over it loses nothing else. Errors: Invalid (with the key that would be lost, or why the
/// text is no config), Io.
Result<void> check_settings_alone(const std::string& path);
/// The same of its text. `path` is for messages.
Result<void> check_settings_alone(std::string_view text, const std::string& path);

/// Checks what can be known of apply_settings before there are settings: the config can be read and
/// edited, and files can be made beside it (one is, and removed). Errors: Invalid, Io, NoSpace.
Result<void> check_apply_settings(const std::string& path);

/// Does so to the file, which is replaced as a whole and keeps its permissions, and its owner where
/// this user may give files away (else one warning); returns where the copy of what it was lies:
/// beside it, .bak, or .bak.1 and so on where that is taken. A link stays one: what it leads to is
/// edited. A file that cannot be replaced, such as one that is mounted by itself into a container,
/// is written over once the copy is on the disk. Errors: Invalid, Io, NoSpace.
Result<std::string> apply_settings(const std::string& path, const Settings& settings,
                                   aio::EngineKind automatic);

}  // namespace artesian::bench
