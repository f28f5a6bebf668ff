// A Llama shape with about a given number of parameters, for planning models that have no config
// yet.
#pragma once

#include <cstdint>

#include "models/model_config.h"

namespace artesian::models {

constexpr double llama_size_min = 1e7;
constexpr double llama_size_max = 1e13;

/// The proportions of the published models: heads of width 128, one layer for each 128 of the
/// hidden size, an intermediate size of 8/3 of it (to a multiple of 256), the vocabulary 32,000,
/// not tied. The hidden size is the multiple of 128 nearest to these proportions. The number of
/// layers, at least one, is then chosen so that the total is within half a layer of `parameters`,
/// which must lie between the two bounds above.
ModelConfig llama_of_size(double parameters);

}  // namespace artesian::models
