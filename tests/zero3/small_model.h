// A model shape for tests: an embedding tied to the head, blocks of four parameters, a final norm.
#pragma once

#include <string>
#include <vector>

#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

struct SmallModel {
  std::vector<ParameterSpec> parameters;
  std::vector<StageSpec> stages;
};

inline SmallModel make_small_model(std::int64_t vocab, std::int64_t hidden, int blocks,
                                   bool tied = true) {
  SmallModel model;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    model.parameters.push_back({.name = std::move(name), .shape = std::move(shape)});
    return static_cast<std::uint32_t>(model.parameters.size() - 1);
  };
  const auto embedding = add("wte.weight", {vocab, hidden});
  model.stages.push_back({.name = "embed", .parameters = {embedding}, .lookup = embedding});
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "h." + std::to_string(block);
    model.stages.push_back(
        {.name = name,
         .parameters = {add(name + ".norm", {hidden}), add(name + ".in", {hidden, 4 * hidden}),
                        add(name + ".bias", {4 * hidden}),
                        add(name + ".out", {4 * hidden, hidden})},
         .lookup = {}});
  }
  const auto norm = add("ln_f", {hidden});
  const auto head = tied ? embedding : add("lm_head.weight", {vocab, hidden});
  model.stages.push_back({.name = "head", .parameters = {norm, head}, .lookup = {}});
  return model;
}

}  // namespace artesian::zero3
