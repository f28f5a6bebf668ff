#include "models/rotary_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/decoder_config.h"

namespace artesian::models {
namespace {

constexpr NumberRange theta_range{1.0, 1e15};
constexpr NumberRange factor_range{1.0, 1e9};
constexpr NumberRange small_range{0.0, 1e6};
constexpr NumberRange divisor_range{1e-6, 1e6};
constexpr std::int64_t phi3_original_positions = 4096;          // default if config.json has none
constexpr IntegerRange original_range{2, width_range.maximum};  // divided by its logarithm

struct ScalingName {
  const char* name;
  RotaryScaling scaling;
};

constexpr std::array<ScalingName, 6> scaling_names{{
    {"default", RotaryScaling::None},
    {"linear", RotaryScaling::Linear},
    {"dynamic", RotaryScaling::Dynamic},
    {"yarn", RotaryScaling::Yarn},
    {"longrope", RotaryScaling::LongRope},
    {"llama3", RotaryScaling::Llama3},
}};

/// The key "rope_type", formerly "type", which takes precedence if both exist. Phi-3 only has
/// longrope, which its first releases called "su" and "yarn".
RotaryScaling read_scaling(ConfigReader& section, bool phi3) {
  const auto old_name = section.text("type");
  const auto new_name = section.text("rope_type");
  const char* const key = new_name.has_value() ? "rope_type" : "type";
  const std::string name = new_name.value_or(old_name.value_or("default"));
  std::string list;
  if (phi3 && (name == "su" || name == "yarn")) return RotaryScaling::LongRope;
  for (const auto& entry : scaling_names) {
    const bool known =
        !phi3 || entry.scaling == RotaryScaling::None || entry.scaling == RotaryScaling::LongRope;
    if (!known) continue;
    if (name == entry.name) return entry.scaling;
    list += (list.empty() ? "" : ", ") + std::string(entry.name);
  }
  section.add_fault(key, '"' + name + '"', list + "; not supported yet: rope_type " + name);
  return RotaryScaling::None;
}

/// A factor that this scaling requires.
double read_required(ConfigReader& section, const char* name, NumberRange range) {
  if (!section.has(name)) {
    section.add_fault(name, "nothing", "a number; this rope_type needs it");
  }
  return section.number(name, range, range.minimum);
}

std::vector<double> read_factors(ConfigReader& section, const char* name, std::int64_t head) {
  if (!section.has(name)) section.add_fault(name, "nothing", "a list; this rope_type needs it");
  return section.numbers(name, static_cast<std::size_t>(head / 2), divisor_range);
}

double ratio(const RotaryConfig& config) {
  return static_cast<double>(config.positions) / static_cast<double>(config.original_positions);
}

/// The logarithmic growth of YaRN's attention factor (Peng et al. 2023, section 3.4).
double yarn_attention(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

void read_yarn(ConfigReader& section, RotaryConfig& config) {
  if (!section.has("factor")) {
    section.add_fault("factor", "nothing", "a number or null; this rope_type needs it");
  }
  config.factor = section.number_or_null("factor", factor_range).value_or(ratio(config));
  const auto given = section.number_or_null("attention_factor", small_range);
  const double weight = section.number_or_null("mscale", small_range).value_or(0.0);
  const double weight_all = section.number_or_null("mscale_all_dim", small_range).value_or(0.0);
  config.attention_factor = yarn_attention(config.factor, 1.0);
  if (weight > 0.0 && weight_all > 0.0) {
    config.attention_factor =
        yarn_attention(config.factor, weight) / yarn_attention(config.factor, weight_all);
  }
  config.attention_factor = given.value_or(config.attention_factor);
  // 0 means the default in transformers, too.
  const double fast = section.number_or_null("beta_fast", small_range).value_or(0.0);
  const double slow = section.number_or_null("beta_slow", small_range).value_or(0.0);
  if (fast > 0.0) config.beta_fast = fast;
  if (slow > 0.0) config.beta_slow = slow;
  config.truncate = section.boolean("truncate", config.truncate);
  if (config.theta == 1.0) {  // divided by its logarithm
    section.add_fault("rope_theta", "1", "more than 1 for rope_type yarn");
  }
}

void read_longrope(ConfigReader& section, RotaryConfig& config) {
  config.short_factor = read_factors(section, "short_factor", config.head);
  config.long_factor = read_factors(section, "long_factor", config.head);
  config.factor = section.number_or_null("factor", factor_range).value_or(ratio(config));
  if (config.factor > 1.0) {
    config.attention_factor = std::sqrt(
        1.0 + std::log(config.factor) / std::log(static_cast<double>(config.original_positions)));
  }
  config.attention_factor =
      section.number_or_null("attention_factor", small_range).value_or(config.attention_factor);
}

void read_llama3(ConfigReader& section, RotaryConfig& config) {
  config.factor = read_required(section, "factor", factor_range);
  config.low_frequency_factor = read_required(section, "low_freq_factor", divisor_range);
  config.high_frequency_factor = read_required(section, "high_freq_factor", divisor_range);
  if (section.has("low_freq_factor") && section.has("high_freq_factor") &&
      config.high_frequency_factor <= config.low_frequency_factor) {
    section.add_fault("high_freq_factor", std::to_string(config.high_frequency_factor),
                      "more than low_freq_factor");
  }
}

/// The key outside of the section takes precedence, as in transformers.
void read_original(ConfigReader& reader, ConfigReader& section, RotaryConfig& config) {
  constexpr const char* name = "original_max_position_embeddings";
  config.original_positions = section.integer({name}, original_range, config.original_positions);
  config.original_positions = reader.integer({name}, original_range, config.original_positions);
  if (config.original_positions < original_range.minimum) {  // absent, as are the positions
    section.add_fault(name, "nothing", "an integer above 1 where max_position_embeddings is 1");
    config.original_positions = original_range.minimum;
  }
}

/// `whole_heads`: false if a partial rotary factor was refused. Lists then have another length,
/// which is not a separate fault.
void read_section(ConfigReader& reader, ConfigReader& section, RotaryConfig& config, bool phi3,
                  bool whole_heads) {
  config.theta = section.number("rope_theta", theta_range, config.theta);
  whole_heads = section.refuse_unless("partial_rotary_factor", {"1.0"}) && whole_heads;
  config.scaling = read_scaling(section, phi3);
  switch (config.scaling) {
    case RotaryScaling::None: return;
    case RotaryScaling::Linear:
      config.factor = read_required(section, "factor", factor_range);
      return;
    case RotaryScaling::Dynamic:
      config.factor = read_required(section, "factor", factor_range);
      if (config.head == 2) section.add_fault("rope_type", "dynamic", "others for a head_dim of 2");
      return;
    default: break;
  }
  if (phi3) config.original_positions = phi3_original_positions;
  read_original(reader, section, config);
  if (config.scaling == RotaryScaling::Yarn) read_yarn(section, config);
  if (config.scaling == RotaryScaling::LongRope && !whole_heads) {
    section.ignore({"short_factor", "long_factor", "factor", "attention_factor"});
    return;
  }
  if (config.scaling == RotaryScaling::LongRope) read_longrope(section, config);
  if (config.scaling == RotaryScaling::Llama3) read_llama3(section, config);
}

}  // namespace

std::int64_t RotaryConfig::longest() const {
  const double stretched = static_cast<double>(original_positions) * factor;
  const auto bound = static_cast<double>(width_range.maximum);
  return std::max(positions, static_cast<std::int64_t>(std::min(stretched, bound)));
}

RotaryConfig read_rotary_config(ConfigReader& reader, const RotaryShape& shape) {
  RotaryConfig config;
  config.head = shape.head;
  config.positions = config.original_positions = shape.positions;
  config.theta = reader.number("rope_theta", theta_range, config.theta);
  const bool whole_heads = reader.refuse_unless("partial_rotary_factor", {"1.0"});
  reader.ignore({"original_max_position_embeddings"});
  auto old_form = reader.section("rope_scaling");
  auto new_form = reader.section("rope_parameters");
  if (old_form.has_value() && new_form.has_value()) {
    reader.add_note("rope_parameters: has no effect beside rope_scaling");
  }
  auto& section = old_form.has_value() ? old_form : new_form;
  if (!section.has_value()) return config;
  read_section(reader, *section, config, shape.phi3, whole_heads);
  reader.absorb(*std::move(section));
  return config;
}

}  // namespace artesian::models
