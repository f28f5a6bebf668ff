#include "models/activation_name.h"

#include <array>

namespace artesian::models {
namespace {

struct ActivationName {
  const char* name;
  Activation activation;
};

constexpr std::array<ActivationName, 19> activation_names{{
    {"gelu_new", Activation::GeluNew},
    {"gelu_pytorch_tanh", Activation::GeluNew},
    {"gelu_python_tanh", Activation::GeluNew},
    {"gelu_fast", Activation::GeluNew},
    {"gelu_accurate", Activation::GeluNew},
    {"gelu", Activation::Gelu},
    {"gelu_python", Activation::Gelu},
    {"quick_gelu", Activation::QuickGelu},
    {"relu", Activation::Relu},
    {"relu2", Activation::Relu2},
    {"relu6", Activation::Relu6},
    {"leaky_relu", Activation::LeakyRelu},
    {"silu", Activation::Silu},
    {"swish", Activation::Silu},
    {"mish", Activation::Mish},
    {"hardswish", Activation::Hardswish},
    {"sigmoid", Activation::Sigmoid},
    {"tanh", Activation::Tanh},
    {"linear", Activation::Linear},
}};

}  // namespace

Activation read_activation(ConfigReader& reader, const char* key, Activation absent) {
  std::vector<const char*> names;
  names.reserve(activation_names.size());
  for (const auto& entry : activation_names) names.push_back(entry.name);
  // Names of transformers' other functions.
  const std::size_t index = reader.choice(key, names, activation_names.size(),
                                          {"gelu_10", "laplace", "prelu", "sqrtsoftplus", "xielu"});
  return index < activation_names.size() ? activation_names[index].activation : absent;
}

}  // namespace artesian::models
