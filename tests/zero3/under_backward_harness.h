// Shared by the tests of the update under backward: an engine of a tiny model that updates there as
// much as allowed, and its steps in parts.
#pragma once

#include "zero3/step/under_backward.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <memory>

#include "tests/zero3/budgets.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {

class UpdateUnderBackward : public Equality {
 protected:
  UpdateUnderBackward() : Equality(tiny), batch(scale.samples, scale.length) {
    at::set_num_threads(1);
    track_activations();  // lends memory as a larger model's activations leave it
    static_cast<void>(at::empty({4 << 20}));
  }

  /// Everything in memory.
  static Choice in_memory(const Choice& choice) {
    Choice same{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, choice[Dtype], choice[Accumulation], choice[Head]};
    same[Masters] = 1;
    return same;
  }
  std::unique_ptr<Engine> create(const Config& config, EngineOptions options = {}) {
    options.share_under_backward = 1.0;
    auto engine = Engine::create(module_of(run), config, options).value();
    RandomWeights weights(module_of(run).parameters(), 1);
    EXPECT_TRUE(engine->initialize(weights).has_value());
    return engine;
  }
  void forward_and_backward(Engine& engine) {
    const auto loss = engine.forward(batch.batch());
    EXPECT_TRUE(loss.has_value()) << loss.error().to_string();
    const auto backward = engine.backward();
    EXPECT_TRUE(backward.has_value()) << backward.error().to_string();
  }
  static std::size_t count(const std::vector<bool>& units) {
    return static_cast<std::size_t>(std::count(units.begin(), units.end(), true));
  }

  // All on NVMe in bf16, except gradients; an untied head.
  const Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1};
  TokenBatch batch;
};

}  // namespace artesian::zero3
