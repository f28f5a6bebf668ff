#include "zero3/config/keys.h"

namespace artesian::zero3 {
namespace {

constexpr const char* introduction = R"(# Configuration keys

Artesian reads a DeepSpeed JSON config as it is. This page is printed from the table that the
reader itself uses (`zero3/config/keys*.cpp`); a test compares the two. To print it again, run
`ARTESIAN_WRITE_DOCS=1 build/tests/zero3_config_keys_test`.

- Every key is *in effect*, *refused* with "not supported yet: KEY" unless it has one of the values
  listed, or *accepted* and said once to have no effect here. Where DeepSpeed 0.19.8 has removed a
  feature, the refusal says that. An unknown key is an error that offers the nearest name. Errors
  come at most 5 at a time, each with the key's path, the value and what is allowed.
- Accepted as people paste them: a byte order mark, non-breaking spaces, comments (`//`, `/* */`,
  `#`), trailing commas, `Infinity` where a count may be endless. Keys given twice, or under two
  names, are errors.
- Sizes are elements, except `aio.block_size` and the `artesian` section, which are bytes. `1e9` is
  an integer. Strings such as `"512MiB"` are accepted in the `artesian` section only: K, M, G and
  KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000. `"true"` and `"false"` in quotes are
  accepted in `aio` only.
- `"auto"` takes its value from the command line or the model where the tables say so, and is the
  default everywhere else; one note lists what each became. What the command line says must not
  contradict the config.
)";

std::string section_of(std::string_view path) {
  if (path.starts_with("zero_optimization.offload_")) {
    return std::string(path.substr(0, path.find('.', sizeof "zero_optimization")));
  }
  const std::size_t dot = path.find('.');
  return dot == path.npos ? "" : std::string(path.substr(0, dot));
}

/// Text that may stand between two '|' of a table.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string code(std::string_view text) {
  if (text.empty()) return "";
  std::string quoted("`");  // appended to: g++ 12 warns wrongly about "`" + std::string
  return quoted.append(cell(text)).append("`");
}

std::string effect_text(const ConfigKey& key) {
  switch (key.effect) {
    case KeyEffect::InEffect: return "in effect";
    case KeyEffect::NoEffect: return "accepted, no effect: " + std::string(key.detail);
    case KeyEffect::NotSupported:
      if (key.detail.empty()) return "not supported yet";
      return "not supported yet, except " + choices_text(key.detail);
    case KeyEffect::Alias: return "another name of `" + std::string(key.detail) + "`";
    case KeyEffect::Forbidden: return "refused: " + std::string(key.detail);
  }
  return "";
}

std::string row(const ConfigKey& key) {
  const bool alias = key.effect == KeyEffect::Alias;
  std::string meaning(key.text);
  if (!key.automatic.empty()) meaning += "; \"auto\": " + std::string(key.automatic);
  return "| " + code(key.path) + " | " + (alias ? "" : cell(allowed_text(key))) + " | " +
         code(key.fallback) + " | " + cell(effect_text(key)) + " | " + cell(meaning) + " |\n";
}

}  // namespace

std::string config_keys_markdown() {
  std::vector<std::string> order{""};
  for (const ConfigKey& key : config_keys()) {
    const std::string section = section_of(key.path);
    bool known = false;
    for (const std::string& seen : order) known = known || seen == section;
    if (!known) order.push_back(section);
  }
  std::string text = introduction;
  for (const std::string& section : order) {
    text += section.empty() ? "\n## Top level\n\n" : "\n## `" + section + "`\n\n";
    text += "| key | allowed | default | effect | meaning |\n| --- | --- | --- | --- | --- |\n";
    for (const ConfigKey& key : config_keys()) {
      if (section_of(key.path) == section) text += row(key);
    }
  }
  return text;
}

}  // namespace artesian::zero3
