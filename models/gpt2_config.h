// GPT-2 as described by Hugging Face's config.json: the list of parameters, their initialisation,
// and the stages, without tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "models/activation_name.h"
#include "models/config_reader.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

struct Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t positions = 1024;  // longest sequence
  std::int64_t hidden = 768;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t inner = 3072;  // width between the two matrices of the MLP
  Activation activation = Activation::GeluNew;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attention_weights = true;
  bool scale_attention_by_inverse_layer_index = false;
  bool reorder_and_upcast_attention = false;
  bool tie_word_embeddings = true;

  bool operator==(const Gpt2Config&) const = default;
};

/// Reads the keys of GPT-2. Faults and notes stay in `reader`.
Gpt2Config read_gpt2_config(ConfigReader& reader);

/// In model order: wte, wpe, each block's twelve, ln_f, and lm_head unless it is tied.
std::vector<zero3::ParameterSpec> gpt2_parameters(const Gpt2Config& config);

/// "embed", "h.0" ... , "head".
std::vector<zero3::StageSpec> gpt2_stages(const Gpt2Config& config);

}  // namespace artesian::models
