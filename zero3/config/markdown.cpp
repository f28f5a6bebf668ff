#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "zero3/config/keys.h"

namespace artesian::zero3 {
namespace {

constexpr const char* introduction = R"(# Configuration keys

Artesian reads a DeepSpeed JSON config as it is. This page is printed from the reader's own table
(`zero3/config/keys*.cpp`) by `ARTESIAN_WRITE_DOCS=1 build/tests/zero3_config_keys_test`, and a test
compares the two.

- **Effect.** Each section has a table of the keys that take effect. Lists below it name keys that
  are not supported, with the values that are accepted all the same, and keys that are accepted
  without effect, which a note lists with the reason. A feature that DeepSpeed 0.19.8 has removed
  is refused.
- **Mistakes.** An unknown key is an error that suggests the nearest name, and so is a key that is
  given twice or under two names. An error gives the key's path, the value and what is allowed.
- **Syntax.** Comments (`//`, `/* */`, `#`), trailing commas, a byte order mark, non-breaking
  spaces and `Infinity` for an endless count are accepted.
- **Sizes** are elements, except for `aio.block_size` and the `artesian` section, which are bytes:
  numbers such as `1e9`, or strings such as `"512MiB"`. K, M, G, KiB, MiB and GiB are powers of
  1024; KB, MB and GB are powers of 1000. `aio` takes `"true"` and `"false"` in quotes.
- **`"auto"`** takes the value from the command line or the model where the table says so, and is
  the default everywhere else. One note lists the values. The command line must not contradict
  the config.
- **`null`** as a default means that the key is absent.
)";

std::string section_of(std::string_view path) {
  if (path.starts_with("zero_optimization.offload_")) {
    return std::string(path.substr(0, path.find('.', sizeof "zero_optimization")));
  }
  const std::size_t dot = path.find('.');
  return dot == path.npos ? "" : std::string(path.substr(0, dot));
}

/// Escapes text for a cell of a Markdown table.
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
  std::string quoted("`");  // appended, because g++ 12 warns wrongly about "`" + std::string
  return quoted.append(cell(text)).append("`");
}

/// Formats "0 to 3", ">= 1", "> 0"; limits that mean "any count" are left out.
std::string limits(const ConfigKey& key) {
  constexpr double any_count = 2147483647.0;
  if (key.high < any_count) return fmt::format("{} to {}", key.low, key.high);
  return fmt::format("{} {}", key.low_excluded ? ">" : ">=", key.low);
}

/// The values that a key accepts, in fewer words than allowed_text() uses in messages.
std::string allowed_cell(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::Boolean: return "boolean";
    case KeyType::Integer:
      return (key.multiple > 1 ? "multiple of " + std::to_string(key.multiple) + ", "
                               : "integer ") +
             limits(key);
    case KeyType::Real: return "number " + limits(key);
    case KeyType::PrintSteps: return "integer >= 1 or Infinity";
    case KeyType::Size: return "size";
    case KeyType::Text: return "string";
    default: return cell(allowed_text(key));
  }
}

std::string row(const ConfigKey& key) {
  std::string meaning(key.text);
  if (!key.automatic.empty()) meaning += "; \"auto\": " + std::string(key.automatic);
  return "| " + code(key.path) + " | " + allowed_cell(key) + " | " + code(key.fallback) + " | " +
         cell(meaning) + " |\n";
}

bool is_section(const ConfigKey& key) {
  return key.type == KeyType::Section || key.type == KeyType::OpenSection;
}

/// True if the key gets a row in the table: it takes effect, or some of its values do. A section's
/// text stands below its heading instead.
bool has_row(const ConfigKey& key) {
  return (key.effect == KeyEffect::InEffect && !is_section(key)) ||
         (key.effect == KeyEffect::NotSupported && key.type == KeyType::Choice);
}

/// True for "zero_optimization.stage3_x", an alias of "zero_optimization.x".
bool only_adds_stage3(const ConfigKey& key) {
  const std::string_view name = key.path.substr(key.path.rfind('.') + 1);
  return name.starts_with("stage3_") && key.detail.ends_with(name.substr(sizeof "stage3_" - 1));
}

/// The heading under which a key without a row is listed.
std::string list_of(const ConfigKey& key) {
  switch (key.effect) {
    case KeyEffect::NoEffect: return "No effect";  // the note at run time gives the reason
    case KeyEffect::NotSupported:
      if (key.detail.empty()) return "Not supported yet";
      return "Not supported yet, except " + choices_text(key.detail);
    case KeyEffect::Alias:
      return only_adds_stage3(key) ? "Other names, each of the key without `stage3_`"
                                   : "Other names";
    case KeyEffect::Forbidden: return "Refused (" + std::string(key.detail) + ")";
    case KeyEffect::InEffect: break;
  }
  return "";
}

/// The section's keys with this effect and without a row: one line for each list.
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
    if (effect == KeyEffect::Alias && !only_adds_stage3(key)) {
      line->second.append(" of ").append(code(key.detail));
    }
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

/// A section's text as a paragraph, if the section takes effect.
std::string about(const std::string& section) {
  const ConfigKey* key = section.empty() ? nullptr : find_config_key(section);
  if (key == nullptr || key->effect != KeyEffect::InEffect || key->text.empty()) return "";
  std::string text(key->text);
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text + ".\n\n";
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
    text += about(section);
    const std::string rows = table(section);
    const std::string others =
        lists(section, KeyEffect::Alias) + lists(section, KeyEffect::NotSupported) +
        lists(section, KeyEffect::Forbidden) + lists(section, KeyEffect::NoEffect);
    text += rows + (rows.empty() || others.empty() ? "" : "\n") + others;
  }
  return text;
}

}  // namespace artesian::zero3
