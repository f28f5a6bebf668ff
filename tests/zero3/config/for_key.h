// A config for one key of the table: the smallest text in which that key is judged by itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zero3/config/config.h"
#include "zero3/config/keys.h"

namespace artesian::zero3 {

/// Returns the row that decides: an alias stands for another key.
inline const ConfigKey& meaning(const ConfigKey& key) {
  return key.effect == KeyEffect::Alias ? *find_config_key(key.detail) : key;
}

inline bool is_section(const ConfigKey& key) {
  return meaning(key).type == KeyType::Section || meaning(key).type == KeyType::OpenSection;
}

inline bool is_of_cycle(const std::string& path) {
  return path.starts_with("scheduler.params.cycle_") || path.starts_with("scheduler.params.decay_");
}

/// Returns an optimizer that has this parameter.
inline std::string optimizer_with(const std::string& path) {
  for (const char* name : {"momentum", "dampening", "nesterov"}) {
    if (path.ends_with(std::string(".") + name)) return "SGD";
  }
  if (path.ends_with(".alpha") || path.ends_with(".centered")) return "RMSprop";
  if (path.ends_with("_coeff") || path.ends_with(".eps_inside_sqrt")) return "Lamb";
  for (const char* name : {"muon_lr", "adam_lr", "ns_method", "per_head_muon"}) {
    if (path.ends_with(std::string(".") + name)) return "Muon";
  }
  const bool adagrad = path.ends_with(".lr_decay") || path.ends_with("accumulator_value");
  return adagrad ? "Adagrad" : "Adam";
}

/// Returns the keys that a config needs beside this one.
inline std::vector<std::string> companions(const std::string& path) {
  const bool cosine = path.ends_with("_ratio");
  if (path == "optimizer.type" || path == "scheduler.type") return {};
  if (path.starts_with("zero_optimization.cpu_offload")) return {"\"stage\": 3"};
  if (path.starts_with("optimizer")) return {"\"type\": \"" + optimizer_with(path) + "\""};
  if (path == "scheduler.params.total_num_steps") return {"\"type\": \"WarmupDecayLR\""};
  if (path.starts_with("scheduler.params.lr_range")) return {"\"type\": \"LRRangeTest\""};
  if (is_of_cycle(path)) return {"\"type\": \"OneCycle\""};
  if (path.starts_with("scheduler")) {
    return {cosine ? "\"type\": \"WarmupCosineLR\"" : "\"type\": \"WarmupLR\""};
  }
  return {};
}

/// Returns {"a": {"b": VALUE}} for a.b, with companions in the outermost object below the root.
inline std::string config_with(std::string_view path, const std::string& value) {
  const std::string whole(path);
  std::string text = value;
  std::string rest = whole;
  while (true) {
    const std::size_t dot = rest.rfind('.');
    const std::string name = dot == rest.npos ? rest : rest.substr(dot + 1);
    text = "\"" + name + "\": " + text;
    if (dot == rest.npos) break;
    if (rest.ends_with(".nesterov")) text += ", \"momentum\": 0.5";
    if (is_of_cycle(rest)) {
      for (const char* required : {"cycle_min_lr", "cycle_max_lr"}) {
        if (name != required) text += ", \"" + std::string(required) + "\": 0.5";
      }
    }
    rest = rest.substr(0, dot);
    if (rest.find('.') == rest.npos) {
      for (const std::string& companion : companions(whole)) text += ", " + companion;
    }
    text = "{" + text + "}";
  }
  return "{" + text + "}";
}

inline Result<Config> parse(const std::string& text) {
  ConfigArguments arguments;
  arguments.steps = std::nullopt;
  if (text.find("WarmupCosineLR") != text.npos) arguments.steps = 100;
  return parse_config(text, "ds.json", arguments);
}

}  // namespace artesian::zero3
