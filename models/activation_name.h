// The activation functions that config.json may name. Independent of LibTorch.
#pragma once

#include <cstdint>

#include "models/config_reader.h"

namespace artesian::models {

/// The functions of transformers' ACT2FN without parameters of their own.
enum class Activation : std::uint8_t {
  GeluNew,  // tanh approximation
  Gelu,     // exact, by erf
  QuickGelu,
  Relu,
  Relu2,
  Relu6,
  LeakyRelu,
  Silu,
  Mish,
  Hardswish,
  Sigmoid,
  Tanh,
  Linear,
};

/// Reads the function named by `key`; returns `absent` if the key is missing or invalid.
Activation read_activation(ConfigReader& reader, const char* key, Activation absent);

}  // namespace artesian::models
