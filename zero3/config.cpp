#include "zero3/config.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include "zero3/config_resolve.h"
#include "zero3/config_settings.h"
#include "zero3/config_text.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t file_size_max = (1 << 20) + 1;  // one more than the parser takes

Result<std::string> read_text(const std::string& path) {
  const auto fail = [&] {
    Error error = make_error(ErrorCode::Io, "cannot read the config", errno);
    error.file = path;
    return error;
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) return fail();
  std::string text(file_size_max, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return fail();
  return text;
}

}  // namespace

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
  const Settings settings(root, faults, notes);
  Config config = resolve_config(settings, arguments, faults);
  if (!faults.empty()) return faults.to_error();
  config.notes.insert(config.notes.end(), notes.begin(), notes.end());
  return config;
}

Result<Config> read_config(const std::string& path, const ConfigArguments& arguments) {
  ARTESIAN_TRY(text, read_text(path));
  return parse_config(text, path, arguments);
}

}  // namespace artesian::zero3
