#include "models/llama_of_size.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/units.h"

namespace artesian::models {
namespace {

constexpr std::int64_t vocabulary = 32000;

struct Shape {
  explicit Shape(std::int64_t width)
      : hidden(width), inner(round_up(static_cast<std::uint64_t>(width) * 8 / 3, 256)) {}

  double ends() const {  // the embedding, the head and the head's norm
    return static_cast<double>(hidden) * (2.0 * static_cast<double>(vocabulary) + 1.0);
  }
  double layer() const {
    const auto width = static_cast<double>(hidden);
    return 4 * width * width + 3 * width * static_cast<double>(inner) + 2 * width;
  }

  std::int64_t hidden;
  std::uint64_t inner;
};

}  // namespace

ModelConfig llama_of_size(double parameters) {
  ARTESIAN_CHECK(parameters >= llama_size_min && parameters <= llama_size_max, parameters);
  constexpr double head = 128;
  // A layer has 4 h^2 parameters in attention and 8 h^2 elsewhere: 12 h^3 / 128 in all layers.
  const double wanted = std::cbrt(parameters * head / 12);
  Shape shape(std::max<std::int64_t>(1, std::llround(wanted / head)) * 128);
  while (shape.hidden > 128 && shape.ends() + shape.layer() > parameters) {
    shape = Shape(shape.hidden - 128);
  }
  const auto layers =
      std::max<std::int64_t>(1, std::llround((parameters - shape.ends()) / shape.layer()));
  const std::string text =
      fmt::format(R"({{"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": {}, )"
                  R"("hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, )"
                  R"("num_attention_heads": {}}})",
                  vocabulary, shape.hidden, shape.inner, layers, shape.hidden / 128);
  return parse_model_config(text, "--params").value();
}

}  // namespace artesian::models
