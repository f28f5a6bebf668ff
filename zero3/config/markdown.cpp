#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "zero3/config/keys.h"

namespace artesian::zero3 {
namespace {

constexpr const char* introduction = R"(# Configuration keys

Artesian reads a DeepSpeed JSON config as it is. This page is printed from the table that the reader
itself uses (`zero3/config/keys*.cpp`), and a test compares the two. To print it again, run
`ARTESIAN_WRITE_DOCS=1 build/tests/zero3_config_keys_test`.

- **Effect.** Each section has a table of the keys that take effect. Below it are other names of
  keys; keys that are not supported yet, with the values that are accepted all the same; and
  keys that are accepted and have no effect here, which one note says. A feature that DeepSpeed
  0.19.8 has removed is refused, and the message says that.
- **Mistakes.** An unknown key is an error that suggests the nearest name. An error gives the
  key's path, the value and what is allowed; at most 5 are printed at a time. A key that is
  given twice, or under two names, is an error.
- **Syntax.** Comments (`//`, `/* */`, `#`), trailing commas, a byte order mark, non-breaking
  spaces and `Infinity` for an endless count are accepted.
- **Sizes** are elements, except for `aio.block_size` and the `artesian` section, which are
  bytes. `1e9` is an integer. The `artesian` section also takes strings such as `"512MiB"`: K,
  M, G and KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000. `aio` takes `"true"` and
  `"false"` in quotes.
- **`"auto"`** takes the value from the command line or the model where the table says so, and
  is the default everywhere else. One note lists what each became. The command line must not
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

std::string row(const ConfigKey& key) {
  std::string meaning(key.text);
  if (!key.automatic.empty()) meaning += "; \"auto\": " + std::string(key.automatic);
  return "| " + code(key.path) + " | " + cell(allowed_text(key)) + " | " + code(key.fallback) +
         " | " + cell(meaning) + " |\n";
}

/// True if the key has a row: it takes effect, or some of its words do.
bool has_row(const ConfigKey& key) {
  return key.effect == KeyEffect::InEffect ||
         (key.effect == KeyEffect::NotSupported && key.type == KeyType::Choice);
}

/// What a key without a row is listed under.
std::string list_of(const ConfigKey& key) {
  switch (key.effect) {
    case KeyEffect::NoEffect: return "No effect (" + std::string(key.detail) + ")";
    case KeyEffect::NotSupported:
      if (key.detail.empty()) return "Not supported yet";
      return "Not supported yet, except " + choices_text(key.detail);
    case KeyEffect::Alias: return "Other names";
    case KeyEffect::Forbidden: return "Refused (" + std::string(key.detail) + ")";
    case KeyEffect::InEffect: break;
  }
  return "";
}

/// The keys of a section that have this effect and no row: a line for each list.
std::string lists(const std::string& section, KeyEffect effect) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const ConfigKey& key : config_keys()) {
    if (key.effect != effect || section_of(key.path) != section || has_row(key)) continue;
    const std::string name = list_of(key);
    auto line = std::find_if(found.begin(), found.end(),
                             [&](const auto& each) { return each.first == name; });
    if (line == found.end()) line = found.emplace(found.end(), name, "");
    if (!line->second.empty()) line->second += ", ";
    line->second += code(key.path);
    if (effect == KeyEffect::Alias) line->second.append(" of ").append(code(key.detail));
  }
  std::string text;
  for (const auto& [name, keys] : found) text += "- " + name + ": " + keys + "\n";
  return text;
}

std::string table(const std::string& section) {
  std::string rows;
  for (const ConfigKey& key : config_keys()) {
    if (section_of(key.path) == section && has_row(key)) rows += row(key);
  }
  if (rows.empty()) return "";
  return "| key | allowed | default | meaning |\n| --- | --- | --- | --- |\n" + rows;
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
    const std::string rows = table(section);
    const std::string others =
        lists(section, KeyEffect::Alias) + lists(section, KeyEffect::NotSupported) +
        lists(section, KeyEffect::Forbidden) + lists(section, KeyEffect::NoEffect);
    text += rows + (rows.empty() || others.empty() ? "" : "\n") + others;
  }
  return text;
}

}  // namespace artesian::zero3
