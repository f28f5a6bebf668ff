// Proves that the table is complete: every row is reached by a config made from the row itself (a
// valid value is accepted; a wrong type and a value out of range are refused with the key's path;
// an unsupported value is refused by name), and docs/config.md is what the table prints.
#include "zero3/config/keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/zero3/config/for_key.h"

namespace artesian::zero3 {
namespace {

std::string valid_value(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::Boolean: return "true";
    case KeyType::Integer:
      return std::to_string(static_cast<long long>(key.low) > 0 ? static_cast<long long>(key.low)
                                                                : 1);
    case KeyType::Real: return "0.5";
    case KeyType::Choice: {
      const auto parts =
          split_choices(key.effect == KeyEffect::NotSupported ? key.detail : key.choices);
      return "\"" + std::string(parts[0]) + "\"";
    }
    case KeyType::Text: return "\"folder\"";
    case KeyType::Betas: return "[0.8, 0.9]";
    case KeyType::TextList: return "[\"one\"]";
    case KeyType::Folders: return "\"folder\"";
    case KeyType::Size: return "\"1GiB\"";
    case KeyType::PrintSteps: return "10";
    case KeyType::Section:
    case KeyType::OpenSection: return "{}";
    case KeyType::Any: return "1";
  }
  return "";
}

/// An allowed value; for refused features the first allowed one.
std::string accepted_value(const ConfigKey& key) {
  if (key.effect != KeyEffect::NotSupported) return valid_value(key);
  if (key.type == KeyType::Choice) return valid_value(key);
  return std::string(split_choices(key.detail)[0]);
}

std::string wrong_type_value(const ConfigKey& key) {
  return key.type == KeyType::TextList || key.type == KeyType::Betas ? "{}" : "[1]";
}

TEST(ConfigKeys, PathsAreUniqueAndSectionsStandBeforeTheirKeys) {
  std::set<std::string_view> seen;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    const std::size_t dot = key.path.rfind('.');
    EXPECT_TRUE(dot == key.path.npos || seen.contains(key.path.substr(0, dot))) << key.path;
    if (key.effect == KeyEffect::Alias) {
      ASSERT_NE(find_config_key(key.detail), nullptr) << key.path;
      EXPECT_NE(find_config_key(key.detail)->effect, KeyEffect::Alias) << key.path;
    } else {
      EXPECT_FALSE(key.text.empty()) << key.path;
    }
    EXPECT_TRUE(key.effect != KeyEffect::NoEffect || !key.detail.empty()) << key.path;
  }
  EXPECT_GT(seen.size(), 200u);
}

TEST(ConfigKeys, EveryKeyAcceptsAnAllowedValue) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.effect == KeyEffect::Forbidden) continue;
    if (key.effect == KeyEffect::NotSupported && key.detail.empty()) continue;
    if (key.path == "optimizer" || key.path == "scheduler") continue;  // need their type
    const bool open = key.type == KeyType::OpenSection;
    const std::string value = open ? (key.detail == "null" ? "null" : "{}") : accepted_value(key);
    const std::string text = config_with(row.path, value);
    const Result<Config> config = parse(text);
    const bool trains_decay =
        text.find("WarmupDecayLR") != text.npos && row.path == "scheduler.type";
    if (trains_decay) continue;
    EXPECT_TRUE(config.has_value()) << text << "\n" << config.error().message;
    if (!config.has_value()) continue;
    bool said = false;
    for (const std::string& note : config->notes) {
      said = said || note.starts_with(std::string(row.path) + ": accepted, has no effect here (");
    }
    EXPECT_TRUE(said || key.effect != KeyEffect::NoEffect) << text;
  }
}

TEST(ConfigKeys, EveryKeyRefusesAWrongTypeByItsTypedPath) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.type == KeyType::Any || key.effect == KeyEffect::Forbidden) continue;
    const std::string value = wrong_type_value(key);
    const Result<Config> config = parse(config_with(row.path, value));
    ASSERT_FALSE(config.has_value()) << row.path;
    EXPECT_EQ(config.error().code, ErrorCode::Invalid);
    EXPECT_EQ(config.error().message,
              std::string(row.path) + ": got " + value + ", allowed " + allowed_text(key));
  }
}

TEST(ConfigKeys, EveryRangeIsEnforcedOnBothSides) {
  int reached = 0;
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    const bool number = key.type == KeyType::Integer || key.type == KeyType::Real ||
                        key.type == KeyType::PrintSteps;
    if (!number || key.effect == KeyEffect::Forbidden) continue;
    std::vector<std::string> values{std::to_string(static_cast<long long>(key.low) - 1)};
    if (key.low_excluded) values.push_back(std::to_string(static_cast<long long>(key.low)));
    if (std::isfinite(key.high)) {
      values.push_back(std::to_string(static_cast<long long>(key.high) + 1));
    }
    if (key.multiple > 1) {
      values.push_back(std::to_string(static_cast<long long>(key.low) + 1));
    }
    for (const std::string& value : values) {
      const Result<Config> config = parse(config_with(row.path, value));
      ASSERT_FALSE(config.has_value()) << row.path << " " << value;
      EXPECT_EQ(config.error().message,
                std::string(row.path) + ": got " + value + ", allowed " + allowed_text(key));
      ++reached;
    }
    if (key.type != KeyType::Real) {
      const Result<Config> config = parse(config_with(row.path, "4096.5"));
      ASSERT_FALSE(config.has_value()) << row.path;
      EXPECT_TRUE(config.error().message.starts_with(std::string(row.path) + ": got 4096.5, "));
    }
  }
  EXPECT_GE(reached, 80);
}

TEST(ConfigKeys, EveryChoiceRefusesAnotherName) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.type != KeyType::Choice) continue;
    const Result<Config> config = parse(config_with(row.path, "\"qqqqqqqq\""));
    ASSERT_FALSE(config.has_value()) << row.path;
    EXPECT_EQ(config.error().message,
              std::string(row.path) + ": got \"qqqqqqqq\", allowed " + allowed_text(key));
  }
}

constexpr const char* removed =
    "DeepSpeed 0.19.8 has removed this feature, and Artesian does not have it";

TEST(ConfigKeys, EveryChoiceIsAcceptedOrRefusedByName) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.type != KeyType::Choice || key.effect != KeyEffect::NotSupported) continue;
    const auto supported = split_choices(key.detail);
    for (const std::string_view choice : split_choices(key.choices)) {
      if (std::find(supported.begin(), supported.end(), choice) != supported.end()) continue;
      const std::string value = "\"" + std::string(choice) + "\"";
      const Result<Config> config = parse(config_with(row.path, value));
      ASSERT_FALSE(config.has_value()) << row.path << " " << choice;
      EXPECT_EQ(config.error().code, ErrorCode::Unsupported);
      const std::string line =
          std::string(row.path) + ": got " + value + ", allowed " + choices_text(key.detail);
      EXPECT_EQ(config.error().message, removed_from_deepspeed(key, choice)
                                            ? line + "; " + removed
                                            : "not supported yet: " + line);
    }
  }
}

TEST(ConfigKeys, EveryUnsupportedFeatureIsRefusedByName) {
  int reached = 0;
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.effect != KeyEffect::NotSupported || key.type == KeyType::Choice) continue;
    std::string value;
    std::string named(row.path);
    if (key.type == KeyType::OpenSection) {
      const bool by_enabled = key.detail == "enabled: false";
      if (by_enabled && find_config_key(named + ".enabled") != nullptr) continue;  // has a row
      value = by_enabled ? "{\"inner\": {\"enabled\": true}}" : "{\"mode\": 1}";
      if (by_enabled) named += ".inner.enabled";
    } else if (key.type == KeyType::Boolean) {
      value = key.detail == "true" ? "false" : "true";
    } else {
      value = key.type == KeyType::Real ? "0.25" : "7";
    }
    const Result<Config> config = parse(config_with(row.path, value));
    ASSERT_FALSE(config.has_value()) << row.path;
    EXPECT_EQ(config.error().code, ErrorCode::Unsupported) << config.error().message;
    const bool gone = removed_from_deepspeed(key, "");
    EXPECT_TRUE(config.error().message.starts_with((gone ? "" : "not supported yet: ") + named))
        << config.error().message;
    EXPECT_EQ(config.error().message.ends_with(removed), gone) << config.error().message;
    ++reached;
  }
  EXPECT_GT(reached, 55);
}

TEST(ConfigKeys, NullMeansAbsentWhereAllowedAndIsRefusedElsewhere) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (key.type == KeyType::Any || key.effect == KeyEffect::Forbidden) continue;
    const std::string text = config_with(row.path, "null");
    if (text.find("WarmupDecayLR") != text.npos) continue;  // needs its total
    EXPECT_EQ(parse(text).has_value(), key.nullable) << text;
  }
}

TEST(ConfigKeys, AutoIsAcceptedByEveryKeyWithADefault) {
  for (const ConfigKey& row : config_keys()) {
    const ConfigKey& key = meaning(row);
    if (is_section(row) || key.type == KeyType::Any || key.effect == KeyEffect::Forbidden) continue;
    const std::string text = config_with(row.path, "\"auto\"");
    if (text.find("WarmupDecayLR") != text.npos) continue;  // needs its total
    const Result<Config> config = parse(text);
    EXPECT_EQ(config.has_value(), !key.fallback.empty())
        << text << (config.has_value() ? "" : config.error().message);
  }
}

TEST(ConfigKeys, DefaultsOfTheTableAreDefaultsOfTheStruct) {
  const Result<Config> empty = parse("{}");
  ASSERT_TRUE(empty.has_value());
  const Config fresh;
  EXPECT_EQ(empty->gradient_clipping, fresh.gradient_clipping);
  EXPECT_EQ(empty->loss_scale.initial_scale_power, fresh.loss_scale.initial_scale_power);
  EXPECT_EQ(empty->loss_scale.loss_scale_window, fresh.loss_scale.loss_scale_window);
  EXPECT_EQ(empty->loss_scale.hysteresis, fresh.loss_scale.hysteresis);
  EXPECT_EQ(empty->loss_scale.min_loss_scale, fresh.loss_scale.min_loss_scale);
  EXPECT_EQ(empty->optimizer.decoupled_decay, fresh.optimizer.decoupled_decay);
  EXPECT_EQ(empty->optimizer.lr, fresh.optimizer.lr);
  EXPECT_EQ(empty->optimizer.beta1, fresh.optimizer.beta1);
  EXPECT_EQ(empty->optimizer.beta2, fresh.optimizer.beta2);
  EXPECT_EQ(empty->optimizer.eps, fresh.optimizer.eps);
  EXPECT_EQ(empty->zero.stage, fresh.zero.stage);
  EXPECT_EQ(empty->zero.sub_group_size, fresh.zero.sub_group_size);
  EXPECT_EQ(empty->zero.prefetch_bucket_size, fresh.zero.prefetch_bucket_size);
  EXPECT_EQ(empty->zero.param_persistence_threshold, fresh.zero.param_persistence_threshold);
  EXPECT_EQ(empty->zero.max_live_parameters, fresh.zero.max_live_parameters);
  EXPECT_EQ(empty->zero.max_reuse_distance, fresh.zero.max_reuse_distance);
  EXPECT_EQ(empty->zero.model_persistence_threshold, 9223372036854775807u);
  EXPECT_EQ(empty->zero.offload_param.buffer_count, 5u);
  EXPECT_EQ(empty->zero.offload_optimizer.buffer_count, 4u);
  EXPECT_EQ(empty->zero.offload_param.buffer_size, fresh.zero.offload_param.buffer_size);
  EXPECT_EQ(empty->zero.offload_param.max_in_cpu, fresh.zero.offload_param.max_in_cpu);
  EXPECT_EQ(empty->zero.offload_param.pin_memory, fresh.zero.offload_param.pin_memory);
  EXPECT_EQ(empty->aio.block_size, fresh.aio.block_size);
  EXPECT_EQ(empty->aio.queue_depth, fresh.aio.queue_depth);
  EXPECT_EQ(empty->aio.overlap_events, fresh.aio.overlap_events);
  EXPECT_EQ(empty->check_grad_overflow, fresh.check_grad_overflow);
  EXPECT_EQ(empty->artesian.speculative_update, fresh.artesian.speculative_update);
  EXPECT_EQ(empty->artesian.skipped_steps_max, fresh.artesian.skipped_steps_max);
}

TEST(ConfigKeys, DocsAreWhatTheTablePrints) {
  const std::string path = ARTESIAN_SOURCE_DIR "/docs/config.md";
  if (std::getenv("ARTESIAN_WRITE_DOCS") != nullptr) {
    std::ofstream(path) << config_keys_markdown();
  }
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == config_keys_markdown())
      << "docs/config.md is not what the table prints; run this test with ARTESIAN_WRITE_DOCS=1";
}

}  // namespace
}  // namespace artesian::zero3
