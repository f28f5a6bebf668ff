// The floating-point operations of a model by formula, for the tflops figure.
#pragma once

#include <cstdint>

#include "models/model_config.h"

namespace artesian::models {

/// Floating-point operations of forward and backward for one token at sequence length `length`:
/// 6 per weight of every matrix product (the head's included, embedding look-ups not), plus
/// 12 * layers * attention * length for the attention scores and their use, where attention is the
/// width of all heads together (hidden, unless the configuration has a head_dim of its own).
/// Source: Narayanan et al. 2021, "Efficient large-scale language model training", without
/// recompute.
double flops_per_token(const ModelConfig& config, std::uint64_t length);

/// The forward third of it, for one block and for the head.
struct ForwardFlops {
  double block = 0.0;
  double head = 0.0;
};
ForwardFlops forward_flops_per_token(const ModelConfig& config, std::uint64_t length);

}  // namespace artesian::models
