// Rotary position embeddings as config.json describes them: `rope_theta` and `rope_scaling`, or
// `rope_parameters`, which holds both. Independent of LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config_reader.h"

namespace artesian::models {

enum class RotaryScaling : std::uint8_t { None, Linear, Dynamic, Yarn, LongRope, Llama3 };

/// Numbers of the formulas of rotary.cpp. `scaling` determines which of them are used.
struct RotaryConfig {
  RotaryScaling scaling = RotaryScaling::None;
  std::int64_t head = 0;       // width of a head, even
  std::int64_t positions = 0;  // max_position_embeddings
  double theta = 10000.0;
  double factor = 1.0;
  std::int64_t original_positions = 0;  // the longest sequence in training, before scaling
  double attention_factor = 1.0;        // factor of sines and cosines
  double low_frequency_factor = 1.0;    // for llama3
  double high_frequency_factor = 4.0;
  double beta_fast = 32.0;  // for yarn
  double beta_slow = 1.0;
  bool truncate = true;
  // for longrope, head / 2 each: for up to original_positions tokens
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};  // factors for longer sequences

  /// The longest sequence: max_position_embeddings, or the original length times the scaling.
  std::int64_t longest() const;
  bool operator==(const RotaryConfig&) const = default;
};

struct RotaryShape {
  std::int64_t head = 0;
  std::int64_t positions = 0;  // max_position_embeddings
  bool phi3 = false;           // use Phi-3's names of scalings, and its original positions
};

/// Reads the keys of the rotary embedding for heads of this width. Faults and notes are added to
/// `reader`.
RotaryConfig read_rotary_config(ConfigReader& reader, const RotaryShape& shape);

}  // namespace artesian::models
