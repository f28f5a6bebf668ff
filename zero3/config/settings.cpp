#include "zero3/config/settings.h"

#include <algorithm>

#include "base/check.h"
#include "base/nearest.h"
#include "zero3/config/value.h"

namespace artesian::zero3 {
namespace {

using Kind = JsonValue::Kind;

/// The current position in the tree; both paths end in '.' or are empty.
struct TreePosition {
  std::string canonical;
  std::string typed;
  bool open = false;  // unknown keys are ignored
};

/// The typed path of a nested "enabled" that is on, or "".
std::string enabled_path(const JsonValue& section, const std::string& path) {
  for (const auto& [name, value] : section.members) {
    std::string here = path + "." + name;
    if (name == "enabled") {
      const bool off = value.kind == Kind::Null ||
                       (value.kind == Kind::Boolean && !value.boolean) ||
                       (value.kind == Kind::String && value.text == "auto");
      if (!off) return here;
    }
    if (value.kind == Kind::Object) {
      std::string nested = enabled_path(value, here);
      if (!nested.empty()) return nested;
    }
  }
  return "";
}

/// The path of the key whose last component is nearest to the name, in any section; or "".
std::string near_path(const std::string& name) {
  std::vector<std::string_view> last_names;
  for (const ConfigKey& key : config_keys()) {
    last_names.push_back(key.path.substr(key.path.rfind('.') + 1));
  }
  const std::string nearest = nearest_name(name, last_names);
  if (nearest.empty()) return "";
  const auto found = std::find(last_names.begin(), last_names.end(), nearest);
  return std::string(config_keys()[static_cast<std::size_t>(found - last_names.begin())].path);
}

/// Names of the keys below a canonical prefix.
std::vector<std::string_view> names_under(const std::string& prefix) {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : config_keys()) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string_view rest = key.path.substr(prefix.size());
    if (!rest.empty() && rest.find('.') == rest.npos) names.push_back(rest);
  }
  return names;
}

/// Returns a hint for a key that is not in the table.
std::string unknown_hint(const TreePosition& place, const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot != name.npos && find_config_key(place.canonical + name) != nullptr) {
    return "unknown key; write it as \"" + name.substr(0, dot) + "\": {\"" + name.substr(dot + 1) +
           "\": ...}";
  }
  // If this section has a key with a similar name, keys of other sections are not suggested.
  const auto in_this_section = [&](const ConfigKey& key) {
    return !place.canonical.empty() && key.path.starts_with(place.canonical);
  };
  const auto has_the_name = [&](const ConfigKey& key) {
    return key.path.size() > name.size() && key.path.ends_with("." + name);
  };
  const auto& keys = config_keys();
  const bool here = std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return has_the_name(key) && in_this_section(key);
  });
  std::string places;
  int count = 0;
  for (const ConfigKey& key : keys) {
    if (has_the_name(key) && (!here || in_this_section(key))) {
      places += (++count > 1 ? " or " : "") + std::string(key.path);
    }
  }
  if (count == 1 || count == 2) return "unknown key here; it belongs at " + places;
  if (find_config_key(name) != nullptr) return "unknown key here; it belongs at top level";
  const std::string nearest = nearest_name(name, names_under(place.canonical));
  if (!nearest.empty()) return "unknown key; did you mean \"" + nearest + "\"?";
  const std::string path = count == 0 ? near_path(name) : "";
  if (!path.empty()) return "unknown key; did you mean \"" + path + "\"?";
  return "unknown key; the keys are listed in docs/config.md";
}

}  // namespace

/// Walks over the tree once.
class SettingsReader {
 public:
  SettingsReader(Settings& settings, UnknownKeys unknown, Faults& faults,
                 std::vector<std::string>& notes)
      : settings_(settings), unknown_(unknown), faults_(faults), notes_(notes) {}

  void object(const JsonValue& object, const TreePosition& place) {
    for (const auto& [name, value] : object.members) {
      const ConfigKey* key = find_config_key(place.canonical + name);
      // A dot inside a name does not separate components.
      if (name.find('.') != name.npos) key = nullptr;
      if (key != nullptr) {
        member(*key, value, place.typed + name);
      } else if (!place.open && unknown_ == UnknownKeys::AreNoted) {
        notes_.push_back(place.typed + print_key(name) + ": ignored; " + unknown_hint(place, name));
      } else if (!place.open) {
        faults_.invalid(place.typed + print_key(name) + ": " +
                        (faults_.full() ? "unknown key" : unknown_hint(place, name)));
      }
    }
  }

 private:
  void member(const ConfigKey& row, const JsonValue& value, const std::string& typed) {
    const ConfigKey& key = row.effect == KeyEffect::Alias ? *find_config_key(row.detail) : row;
    const std::string canonical(key.path);
    const auto [first, fresh] = seen_.emplace(canonical, typed);
    if (!fresh) {
      faults_.invalid(typed + ": the same key as " + first->second + "; keep one");
      settings_.broken_.emplace(canonical, typed);
      return;
    }
    if (value.kind == Kind::Null && key.nullable) return;
    Setting setting{&key, typed, print_json(value), false, value};
    if (key.path == "zero_optimization" && value.kind == Kind::Boolean) {
      stage_of_boolean(value.boolean, typed);
      return;
    }
    if (key.effect == KeyEffect::Forbidden) {
      return wrong(setting, "not allowed; " + std::string(key.detail));
    }
    if (value.kind == Kind::String && value.text == "auto" &&
        (!key.fallback.empty() || !key.automatic.empty())) {
      setting.automatic = true;
      if (key.effect == KeyEffect::NoEffect) note_no_effect(setting);
      settings_.settings_.emplace(canonical, std::move(setting));
      return;
    }
    if (const auto fault = value_fault(key, setting.value)) return wrong(setting, *fault);
    if (!effect_allows(setting)) return;
    const bool section = key.type == KeyType::Section || key.type == KeyType::OpenSection;
    settings_.settings_.emplace(canonical, setting);
    if (section) enter(setting);
  }

  void wrong(const Setting& setting, const std::string& what) {
    faults_.invalid(setting.typed_path + ": " + what);
    settings_.broken_.emplace(setting.key->path, setting.typed_path);
  }

  void unsupported(const Setting& setting, const std::string& line) {
    removed_from_deepspeed(*setting.key, setting.value.text) ? faults_.removed(line)
                                                             : faults_.unsupported(line);
    settings_.broken_.emplace(setting.key->path, setting.typed_path);
  }

  void note_no_effect(const Setting& setting) {
    notes_.push_back(setting.typed_path + ": accepted, has no effect here (" +
                     std::string(setting.key->detail) + ")");
  }

  /// Handles notes and refusals by the row's effect. False: the key needs no further handling.
  bool effect_allows(const Setting& setting) {
    const ConfigKey& key = *setting.key;
    if (key.effect == KeyEffect::NoEffect) note_no_effect(setting);
    if (key.effect != KeyEffect::NotSupported) return true;
    if (key.type == KeyType::OpenSection) {
      if (key.detail == "{}" && setting.value.members.empty()) return true;
      if (key.detail == "enabled: false") {
        // The separate row for ".enabled" handles it better.
        if (find_config_key(std::string(key.path) + ".enabled") != nullptr) return true;
        const std::string enabled = enabled_path(setting.value, setting.typed_path);
        if (enabled.empty()) return true;
        unsupported(setting, enabled);
        return false;
      }
      unsupported(setting, setting.typed_path);
      return false;
    }
    if (value_supported(key, setting.value)) return true;
    if (key.detail.empty()) {
      unsupported(setting, setting.typed_path + " (" + std::string(key.text) + ")");
    } else {
      unsupported(setting, setting.typed_path + ": got " + setting.typed_value + ", allowed " +
                               choices_text(key.detail));
    }
    return false;
  }

  /// `zero_optimization: true` means stage 1, as in DeepSpeed's first releases.
  void stage_of_boolean(bool on, const std::string& typed) {
    const ConfigKey* key = find_config_key("zero_optimization.stage");
    JsonValue stage{.kind = Kind::Number, .number = on ? 1.0 : 0.0, .exact = true};
    stage.integer = on ? 1 : 0;
    stage.text = std::to_string(stage.integer);
    settings_.settings_.emplace(key->path,
                                Setting{key, typed, on ? "true" : "false", false, stage});
  }

  void enter(const Setting& section) {
    const ConfigKey& key = *section.key;
    if (key.effect == KeyEffect::NoEffect) return;  // one note covers the whole section
    TreePosition place{std::string(key.path) + ".", section.typed_path + ".",
                       key.type == KeyType::OpenSection};
    const bool typed_section = key.path == "optimizer" || key.path == "scheduler";
    if (!typed_section) return object(section.value, place);
    const JsonValue* type = section.value.find("type");
    const ConfigKey* row = find_config_key(place.canonical + "type");
    if (type == nullptr && !row->fallback.empty()) {
      notes_.push_back(place.typed + "type: absent: " +
                       std::string(row->fallback.substr(1, row->fallback.size() - 2)));
    } else if (type == nullptr) {
      faults_.invalid(place.typed + "type: missing, allowed " + allowed_text(*row));
      settings_.broken_.emplace(row->path, "");
    } else {
      member(*row, *type, place.typed + "type");
    }
    JsonValue rest = section.value;  // parameters of an unsupported type are not checked
    const bool known = !settings_.broken(place.canonical + "type");
    std::erase_if(rest.members, [&](const auto& member) {
      return member.first == "type" || (!known && member.first == "params");
    });
    object(rest, place);
  }

  Settings& settings_;
  UnknownKeys unknown_;
  Faults& faults_;
  std::vector<std::string>& notes_;
  std::map<std::string, std::string> seen_;  // canonical path -> typed path
};

Settings::Settings(const JsonValue& root, UnknownKeys unknown, Faults& faults,
                   std::vector<std::string>& notes) {
  SettingsReader(*this, unknown, faults, notes).object(root, TreePosition{});
}

bool Settings::given(std::string_view path) const {
  const auto found = settings_.find(std::string(path));
  return found != settings_.end() && !found->second.automatic;
}

bool Settings::automatic(std::string_view path) const {
  const auto found = settings_.find(std::string(path));
  return found != settings_.end() && found->second.automatic;
}

JsonValue Settings::value(std::string_view path) const {
  if (given(path)) return settings_.at(std::string(path)).value;
  const ConfigKey* key = find_config_key(path);
  ARTESIAN_CHECK(key != nullptr);
  Result<JsonValue> fallback = read_json(key->fallback, "default");
  ARTESIAN_CHECK(fallback.has_value());
  return std::move(fallback).value();
}

/// The value of a key whose row has this kind.
JsonValue Settings::value_of(std::string_view path, Kind kind) const {
  JsonValue found = value(path);
  ARTESIAN_CHECK(found.kind == kind || found.kind == Kind::Null, static_cast<int>(found.kind));
  return found;
}

bool Settings::boolean(std::string_view path) const {
  return value_of(path, Kind::Boolean).boolean;
}
std::uint64_t Settings::integer(std::string_view path) const {
  return value_of(path, Kind::Number).integer;
}
double Settings::real(std::string_view path) const {
  return value_of(path, Kind::Number).number;
}
std::string Settings::text(std::string_view path) const {
  return value_of(path, Kind::String).text;
}

std::string Settings::name(std::string_view path) const {
  const auto found = settings_.find(std::string(path));
  return found == settings_.end() ? std::string(path) : found->second.typed_path;
}

std::string Settings::typed(std::string_view path) const {
  const auto found = settings_.find(std::string(path));
  return found == settings_.end() ? "absent" : found->second.typed_value;
}

}  // namespace artesian::zero3
