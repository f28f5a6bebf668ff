#include "tools/aio_bench/config_edit.h"

#include <algorithm>
#include <vector>

#include "tools/aio_bench/json_edit.h"
#include "zero3/config/text.h"

namespace artesian::bench {
namespace {

using zero3::JsonValue;

struct Setting {
  const char* name;
  std::string value;
};

/// The settings for one section of a config.
struct Section {
  const char* name;
  std::vector<Setting> settings;
};

Section aio_section(const Settings& settings) {
  const auto boolean = [](bool value) { return std::string(value ? "true" : "false"); };
  return {"aio",
          {{"block_size", std::to_string(settings.block_size)},
           {"queue_depth", std::to_string(settings.queue_depth)},
           {"intra_op_parallelism", std::to_string(settings.threads)},
           {"single_submit", boolean(settings.single_submit)},
           {"overlap_events", boolean(settings.overlap_events)}}};
}

/// One of our keys, and its value.
struct Word {
  const char* key;
  std::string value;
};

Section our_section(const std::vector<Word>& words) {
  Section section{"artesian", {}};
  for (const Word& word : words) section.settings.push_back({word.key, '"' + word.value + '"'});
  return section;
}

/// Returns the required value of artesian.polling.
std::string polling_word(const Settings& settings) {
  const bool polls = settings.engine == aio::EngineKind::IoUring;
  return polling_name(polls ? settings.polling : aio::Polling::None);
}

/// The text of a section whose first line begins after `"aio": `.
std::string section_text(const Section& section, const std::string& indent) {
  std::string text = "{";
  const char* separator = "";
  for (const Setting& setting : section.settings) {
    text += std::string(separator) + "\n" + indent + "  \"" + setting.name + "\": " + setting.value;
    separator = ",";
  }
  return text + "\n" + indent + "}";
}

std::vector<Edit> edits_within(std::string_view text, std::size_t open, const Section& section) {
  Scanner scanner(text);
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  std::vector<Edit> edits;
  std::vector<std::string> added;
  for (const Setting& setting : section.settings) {
    bool there = false;
    for (const Member& member : members) {
      if (member.key != setting.name) continue;
      there = true;
      edits.push_back({.begin = member.begin, .end = member.end, .text = setting.value});
    }
    if (!there) added.push_back(std::string("\"") + setting.name + "\": " + setting.value);
  }
  if (added.empty()) return edits;
  for (Edit& edit : insertion(text, open, close, members, added)) edits.push_back(std::move(edit));
  return edits;
}

bool is_object(const JsonValue* value) {
  return value != nullptr && value->kind == JsonValue::Kind::Object;
}

const Member* find(const std::vector<Member>& members, const char* key) {
  for (const Member& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

/// True if the section in a config's tree has these settings.
bool has_settings(const JsonValue& tree, const Section& section) {
  const auto& wanted = section.settings;
  return std::all_of(wanted.begin(), wanted.end(), [&](const Setting& setting) {
    const JsonValue* value = tree.find(setting.name);
    return value != nullptr && zero3::print_json(*value) == setting.value;
  });
}

Error refusal(const std::string& path, const std::string& what) {
  return make_error(ErrorCode::Invalid, path + ": " + what);
}

Error not_found(const std::string& path, const std::string& name) {
  return refusal(path, name + ": cannot be found; write it by hand");
}

std::size_t index_of(const std::vector<Member>& members, std::string_view key) {
  const auto same = [&](const Member& member) { return member.key == key; };
  const auto found = std::find_if(members.begin(), members.end(), same);
  return static_cast<std::size_t>(found - members.begin());
}

/// Moves an `aio` in zero_optimization, where DeepSpeed ignores it, to top level, or removes it if
/// there is one.
Result<void> lift_section(OneForm& form, const std::string& path, bool keep) {
  Scanner scanner(form.text);
  const std::size_t open = scanner.first_value();
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  const Member* zero = find(members, "zero_optimization");
  if (zero == nullptr) return not_found(path, "zero_optimization");
  const std::vector<Member> inner = scanner.members(zero->begin);
  const std::size_t index = index_of(inner, "aio");
  if (index == inner.size()) return not_found(path, "aio");
  std::vector<Edit> edits = removal(form.text, inner, index);
  if (keep) {
    const std::string section =
        form.text.substr(inner[index].begin, inner[index].end - inner[index].begin);
    for (Edit& edit : insertion(form.text, open, close, members, {"\"aio\": " + section})) {
      edits.push_back(std::move(edit));
    }
  }
  form.text = apply_edits(form.text, std::move(edits));
  form.removed.emplace_back("zero_optimization.aio");
  return {};
}

/// Renames the first alias if the right name is free; removes the others.
Result<void> rename_threads(OneForm& form, const std::string& path, const char* other) {
  Scanner scanner(form.text);
  const std::vector<Member> members = scanner.members(scanner.first_value());
  const Member* section = find(members, "aio");
  if (section == nullptr) return not_found(path, "aio");
  const std::vector<Member> inner = scanner.members(section->begin);
  const std::size_t index = index_of(inner, other);
  if (index == inner.size()) return not_found(path, std::string("aio.") + other);
  const bool taken = index_of(inner, "intra_op_parallelism") != inner.size();
  const std::size_t key = inner[index].key_begin;
  const Edit renamed{
      .begin = key, .end = key + inner[index].key.size() + 2, .text = "\"intra_op_parallelism\""};
  form.text =
      apply_edits(form.text, taken ? removal(form.text, inner, index) : std::vector<Edit>{renamed});
  form.removed.push_back(std::string("aio.") + other);
  return {};
}

/// The config's text with the section's settings: in the existing section, else in a new one at the
/// end.
Result<std::string> with_section(std::string_view text, const std::string& path,
                                 const Section& section) {
  const std::string name = section.name;
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  if (!is_object(&tree)) {
    return refusal(path, "got " + zero3::print_json(tree) + ", allowed an object {...}");
  }
  const JsonValue* there = tree.find(section.name);
  if (there != nullptr && !is_object(there)) {
    return refusal(path, name + ": got " + zero3::print_json(*there) +
                             ", allowed an object {...}; correct it first");
  }
  Scanner scanner(text);
  const std::size_t open = scanner.first_value();
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  std::vector<Edit> edits;
  if (there == nullptr) {
    const bool one_line = text.substr(open, close - open).find('\n') == std::string_view::npos;
    const std::string indent = members.empty() || one_line
                                   ? indentation(text, open) + "  "
                                   : indentation(text, members.back().key_begin);
    edits = insertion(text, open, close, members,
                      {'"' + name + "\": " + section_text(section, indent)});
  } else {
    const Member* inner = find(members, section.name);
    if (inner == nullptr) return not_found(path, name);
    edits = edits_within(text, inner->begin, section);
  }
  match_newlines(text, edits);
  std::string edited = apply_edits(text, std::move(edits));
  // Checks that the edited text parses as intended before it is written.
  auto again = zero3::read_json(edited, path);
  if (!again) return not_found(path, name);
  const JsonValue* got = again->find(section.name);
  if (!is_object(got) || !has_settings(*got, section)) return not_found(path, name);
  return edited;
}

/// Returns the values needed in our section for these settings to be used; nothing if they are
/// there already, or not needed.
Result<std::vector<Word>> words_to_write(std::string_view text, const std::string& path,
                                         const Settings& settings, aio::EngineKind automatic) {
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  const JsonValue* section = is_object(&tree) ? tree.find("artesian") : nullptr;
  std::vector<Word> words;
  const auto want = [&](const char* key, const std::string& word, const std::string& absent,
                        const std::string& as_good) {
    const JsonValue* given = is_object(section) ? section->find(key) : nullptr;
    const std::string now = given == nullptr ? '"' + absent + '"' : zero3::print_json(*given);
    if (now != '"' + word + '"' && now != '"' + as_good + '"') words.push_back({key, word});
  };
  const std::string engine = engine_kind_name(settings.engine);
  want("engine", settings.engine == automatic ? "auto" : engine, "auto", engine);
  want("polling", polling_word(settings), "off", polling_word(settings));
  return words;
}

}  // namespace

std::string print_settings(const Settings& settings, aio::EngineKind automatic) {
  std::string text = "{\n  \"aio\": " + section_text(aio_section(settings), "  ");
  std::vector<Word> words;
  if (settings.engine != automatic) words.push_back({"engine", engine_kind_name(settings.engine)});
  if (polling_word(settings) != "off") words.push_back({"polling", polling_word(settings)});
  if (!words.empty()) text += ",\n  \"artesian\": " + section_text(our_section(words), "  ");
  return text + "\n}\n";
}

Result<OneForm> in_one_form(std::string_view text, const std::string& path) {
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  OneForm form{.text = std::string(text), .removed = {}};
  const JsonValue* zero = tree.find("zero_optimization");
  const JsonValue* nested = is_object(zero) ? zero->find("aio") : nullptr;
  const JsonValue* section = tree.find("aio");
  if (nested != nullptr) ARTESIAN_TRY_VOID(lift_section(form, path, section == nullptr));
  if (section == nullptr) section = nested;
  if (!is_object(section)) return form;
  for (const char* other : {"thread_count", "num_threads"}) {
    if (section->find(other) != nullptr) ARTESIAN_TRY_VOID(rename_threads(form, path, other));
  }
  return form;
}

Result<std::string> with_settings(std::string_view text, const std::string& path,
                                  const Settings& settings, aio::EngineKind automatic) {
  ARTESIAN_TRY(form, in_one_form(text, path));
  ARTESIAN_TRY(edited, with_section(form.text, path, aio_section(settings)));
  ARTESIAN_TRY(words, words_to_write(edited, path, settings, automatic));
  if (words.empty()) return edited;
  return with_section(edited, path, our_section(words));
}

Result<void> check_settings_alone(std::string_view text, const std::string& path) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return {};
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  if (!is_object(&tree)) return refusal(path, "got " + zero3::print_json(tree));
  const Section known[] = {aio_section({}), our_section({{"engine", ""}, {"polling", ""}})};
  for (const auto& member : tree.members) {
    const std::string& name = member.first;
    const JsonValue& value = member.second;
    const auto same = [&](const auto& each) { return name == each.name; };
    const auto* const section = std::find_if(std::begin(known), std::end(known), same);
    if (section == std::end(known) || !is_object(&value)) {
      return refusal(path, "got the key " + zero3::print_key(name));
    }
    const auto& settings = section->settings;
    for (const auto& inner : value.members) {
      const std::string& key = inner.first;
      const bool ours = std::any_of(settings.begin(), settings.end(),
                                    [&](const Setting& setting) { return key == setting.name; });
      if (!ours) return refusal(path, "got the key " + name + "." + zero3::print_key(key));
    }
  }
  return {};
}

}  // namespace artesian::bench
