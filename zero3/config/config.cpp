#include "zero3/config/config.h"

#include "base/check.h"
#include "zero3/config/resolve.h"
#include "zero3/config/settings.h"
#include "zero3/config/text.h"

namespace artesian::zero3 {
Result<Config> parse_config(std::string_view text, const std::string& path,
                            const ConfigArguments& arguments) {
  ARTESIAN_CHECK(arguments.world_size >= 1);
  ARTESIAN_TRY(root, read_json(text, path));
  if (root.kind != JsonValue::Kind::Object) {
    return make_error(ErrorCode::Invalid, (path.empty() ? "config" : path) + ": got " +
                                              print_json(root) + ", allowed an object {...}");
  }
  Faults faults;
  std::vector<std::string> notes;
  const Settings settings(root, arguments.unknown_keys, faults, notes);
  Config config = resolve_config(settings, arguments, faults);
  if (!faults.empty()) return faults.to_error();
  config.notes.insert(config.notes.end(), notes.begin(), notes.end());
  return config;
}

}  // namespace artesian::zero3
