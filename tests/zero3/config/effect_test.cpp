// Proves that no accepted key is without effect: for every row of the table that has one, under
// each of its names, some allowed value gives another Config than the key's absence. (Tests of its
// users prove that each field of Config does what it says.)
#include <gtest/gtest.h>

#include <set>

#include "tests/zero3/config/for_key.h"

namespace artesian::zero3 {
namespace {

/// Allowed values, of which at least one is not the default.
std::vector<std::string> candidates(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::Boolean: return {"true", "false"};
    case KeyType::Integer: return {"2", "3", "8192"};
    case KeyType::Real: return {"0.25", "2"};
    case KeyType::Choice: {
      std::vector<std::string> values;
      for (const auto choice : split_choices(key.choices)) {
        values.push_back("\"" + std::string(choice) + "\"");
      }
      return values;
    }
    case KeyType::Text: return {"\"elsewhere\""};
    case KeyType::Folders: return {"\"elsewhere\"", "[\"folder\", \"elsewhere\"]"};
    case KeyType::Betas: return {"[0.5, 0.6]"};
    case KeyType::Size: return {"\"3GiB\""};
    case KeyType::PrintSteps: return {"7"};
    default: return {};
  }
}

/// The settings under which a key has a meaning, as members of the object that holds it.
std::string context(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  if (path.starts_with("zero_optimization.cpu_offload")) return "\"stage\": 3";
  if (path.starts_with("zero_optimization.offload_") && name != "device") {
    const bool there = name == "nvme_path";
    return there ? "\"device\": \"nvme\"" : "\"device\": \"nvme\", \"nvme_path\": \"folder\"";
  }
  const bool precision = path.starts_with("fp16.") || path.starts_with("bf16.");
  const bool tracks = path.starts_with("tensorboard.") || path.starts_with("wandb.") ||
                      path.starts_with("csv_monitor.") || path.starts_with("comet.");
  if ((precision || tracks) && name != "enabled") return "\"enabled\": true";
  if (name == "nesterov") return "\"momentum\": 0.5";
  if (!is_of_cycle(std::string(path))) return "";
  if (name == "cycle_min_lr") return "\"cycle_max_lr\": 0.5";
  if (name == "cycle_max_lr") return "\"cycle_min_lr\": 0.5";
  return "\"cycle_min_lr\": 0.5, \"cycle_max_lr\": 0.5";
}

/// Returns {"a": {"b": {"c": VALUE}}} with the context in the innermost object, and with what the
/// outer ones need. Without the key itself if `value` is empty.
std::string config_about(std::string_view path, const std::string& value) {
  const std::size_t last = path.rfind('.');
  const std::string name(last == path.npos ? path : path.substr(last + 1));
  std::string members = value.empty() ? "" : "\"" + name + "\": " + value;
  const auto join = [&members](const std::string& more) {
    if (more.empty()) return;
    members += (members.empty() ? "" : ", ") + more;
  };
  join(context(path));
  std::string_view rest = last == path.npos ? "" : path.substr(0, last);
  while (!rest.empty()) {
    const std::size_t dot = rest.rfind('.');
    members = "\"" + std::string(rest.substr(dot == rest.npos ? 0 : dot + 1)) + "\": {" + members;
    members += "}";
    if (dot == rest.npos) break;
    rest = rest.substr(0, dot);
    if (rest == "optimizer") {
      join("\"type\": \"" + optimizer_with("optimizer.params." + name) + "\"");
    }
    if (rest == "scheduler") {
      const bool cosine = name.ends_with("_ratio");
      join(name.starts_with("lr_range")              ? "\"type\": \"LRRangeTest\""
           : is_of_cycle("scheduler.params." + name) ? "\"type\": \"OneCycle\""
           : cosine                                  ? "\"type\": \"WarmupCosineLR\""
                                                     : "\"type\": \"WarmupDecayLR\"");
    }
    if (rest == "zero_optimization") join("\"stage\": 3");
  }
  if (path == "data_types.grad_accum_dtype") join("\"bf16\": {\"enabled\": true}");
  return "{" + members + "}";
}

Result<Config> parsed(const std::string& text) {
  ConfigArguments arguments;
  if (text.find("total_num_steps") == text.npos) arguments.steps = 100;  // they would contradict
  Result<Config> config = parse_config(text, "ds.json", arguments);
  if (config.has_value()) config->notes.clear();
  return config;
}

bool changes_something(std::string_view path, const ConfigKey& key) {
  const Result<Config> without = parsed(config_about(path, ""));
  for (const std::string& value : candidates(key)) {
    const Result<Config> with = parsed(config_about(path, value));
    if (!with.has_value()) continue;  // needs another key, or is not supported
    if (!without.has_value() || !(*with == *without)) return true;
  }
  return false;
}

TEST(ConfigEffect, EveryAcceptedKeyChangesTheConfig) {
  int reached = 0;
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.effect != KeyEffect::InEffect || is_section(row)) continue;
    if (row.path == "checkpoint.tag_validation") continue;  // saving.py reads it: ranks_python_test
    EXPECT_TRUE(changes_something(row.path, key)) << config_about(row.path, "VALUE");
    ++reached;
  }
  EXPECT_GT(reached, 60);
}

}  // namespace
}  // namespace artesian::zero3
