// Proves that units of a model that Python runs are updated under the last backward of a step, and
// that any event between that backward and step() rolls this back: the bits are those of a run
// without such updates. The graphs of unit_uses_test.cpp are run so, too.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/zero3/torch/uses_harness.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t width = 8;
constexpr std::uint32_t stages = 4;
constexpr int steps = 7;

ModelShape chain() {
  ModelShape shape;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::string name = "h." + std::to_string(stage);
    shape.parameters.push_back({.name = name + ".weight", .shape = {width, width}});
    shape.parameters.push_back({.name = name + ".bias", .shape = {width}});
    shape.stages.push_back({.name = name, .parameters = {2 * stage, 2 * stage + 1}, .lookup = {}});
  }
  return shape;
}

/// Delays backward, so that the disk can read meanwhile.
at::Tensor slowly(const at::Tensor& x) {
  if (!x.requires_grad()) return x;
  x.register_hook([](const at::Tensor& gradient) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return gradient;
  });
  return x;
}

at::Tensor block(HookedModel& model, std::uint32_t stage, const at::Tensor& x) {
  const Tensors& p = model.parameters;
  return model.call(stage, {x}, [&](const Tensors& in) -> Tensors {
    return {at::tanh(in[0].matmul(p[2 * stage]) + p[2 * stage + 1])};
  })[0];
}

/// All stages, each on the output of the one before.
at::Tensor forward(HookedModel& model) {
  at::Tensor x = at::arange(3 * width, at::kFloat).view({3, width}) / 20;
  for (std::uint32_t stage = 0; stage < stages; ++stage) x = slowly(block(model, stage, x));
  return x.pow(2).sum();
}

void scaled_backward(HookedModel& model, const at::Tensor& loss) {
  ASSERT_EQ(error_of(model.uses->begin_backward(loss.item<double>())), "");
  torch::autograd::backward({loss}, {at::full_like(loss, model.core->loss_scale())});
  ASSERT_EQ(error_of(model.uses->backward_ended(/*failed=*/false)), "");
}

struct Outcome {
  std::string digest;
  std::uint64_t updated = 0;  // units, before the norm was known
  int interrupted = 0;        // steps whose update had begun when `between` ran
  int kept = 0;               // steps whose update still stood afterwards
};

using Between = std::function<void(HookedModel&)>;

Outcome train(const UsesCase& run, const Between& between) {
  HookedModel model(chain(), run);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    scaled_backward(model, forward(model));
    const bool begun = model.core->in_last_backward();
    outcome.interrupted += begun ? 1 : 0;
    between(model);
    outcome.kept += begun && model.core->in_last_backward() ? 1 : 0;
    model.step();
  }
  outcome.updated = model.updated_early;
  outcome.digest = model.digest();
  return outcome;
}

void expect_taken_back(const Between& between, UsesCase run = {}) {
  run.under_backward = false;
  const Outcome waited = train(run, between);
  run.under_backward = true;
  const Outcome early = train(run, between);
  EXPECT_EQ(early.digest, waited.digest);
  EXPECT_GT(early.interrupted, 0);
  EXPECT_EQ(early.kept, 0);
  EXPECT_EQ(early.updated, 0u);
}

void nothing(HookedModel&) {}

/// Trains by these parts with and without updates under backward, and expects the same bits.
/// Returns how many units were updated early. `prepare` may be null.
std::uint64_t expect_same_bits(const std::function<void(HookedModel&)>& prepare,
                               const std::function<void(HookedModel&, int step)>& pass) {
  std::string digests[2];
  std::uint64_t updated = 0;
  for (const bool under_backward : {false, true}) {
    HookedModel model(chain(), {.under_backward = under_backward});
    if (prepare) prepare(model);
    for (int step = 0; step < steps; ++step) {
      pass(model, step);
      model.step();
    }
    digests[under_backward ? 1 : 0] = model.digest();
    updated = model.updated_early;
  }
  EXPECT_EQ(digests[1], digests[0]);
  return updated;
}

TEST(HookedUpdate, IsMadeUnderBackwardWithTheBitsOfOneThatWaited) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const double clipping : {0.0, 1000.0, 1e-3}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", clipping " + std::to_string(clipping));
      UsesCase run{.dtype = dtype, .clipping = clipping};
      const Outcome waited = train(run, nothing);
      run.under_backward = true;
      const Outcome early = train(run, nothing);
      EXPECT_EQ(early.digest, waited.digest);
      EXPECT_EQ(waited.updated, 0u);
      EXPECT_EQ(early.updated > 0, clipping != 1e-3) << early.updated;
    }
  }
}

TEST(HookedUpdate, IsTakenBackByAnotherBackward) {
  expect_same_bits(nullptr, [](HookedModel& model, int step) {
    const at::Tensor loss = forward(model);
    backward(loss, /*retain=*/true);
    if (step % 3 == 2) backward(loss * 2);  // one more than in the step before
  });
}

TEST(HookedUpdate, IsTakenBackByAForward) {
  expect_taken_back([](HookedModel& model) { static_cast<void>(forward(model)); },
                    {.accumulation = 2});
}

TEST(HookedUpdate, IsTakenBackByAnEvaluation) {
  std::vector<double> losses;
  expect_taken_back([&](HookedModel& model) {
    const at::NoGradGuard no_grad;
    losses.push_back(forward(model).item<double>());
  });
  ASSERT_EQ(losses.size(), 2u * steps);
  for (int step = 0; step < steps; ++step) {  // with the weights before the step
    EXPECT_EQ(losses[static_cast<std::size_t>(step)],
              losses[static_cast<std::size_t>(step + steps)]);
  }
}

TEST(HookedUpdate, IsTakenBackByALookAtStateOrGradients) {
  for (const bool gradient : {false, true}) {
    std::vector<float> seen;
    const auto keep = [&](std::span<const float> piece) -> Result<void> {
      seen.insert(seen.end(), piece.begin(), piece.end());
      return {};
    };
    expect_taken_back([&](HookedModel& model) {
      ASSERT_EQ(error_of(model.uses->settle()), "");
      for (std::uint32_t parameter = 0; parameter < 2 * stages; ++parameter) {
        if (gradient) {
          ASSERT_EQ(error_of(model.core->read_gradient(parameter, keep)), "");
        } else {
          ASSERT_EQ(error_of(model.core->read_state(parameter, StateKind::Master, keep)), "");
        }
      }
    });
    const auto half = static_cast<std::ptrdiff_t>(seen.size() / 2);
    ASSERT_GT(half, 0);
    EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + half, seen.begin() + half, seen.end()));
  }
}

TEST(HookedUpdate, IsTakenBackByOtherConstants) {
  const auto changing = [](bool under_backward, int& back) {
    HookedModel model(chain(), {.under_backward = under_backward});
    if (!under_backward) {
      model.groups = HookedModel(chain(), {.under_backward = true}).groups;
    }
    for (int step = 0; step < steps; ++step) {
      backward(forward(model));
      if (step == 3) model.groups[0].weight_decay *= 2;
      if (step == 5) model.groups[0].lr /= 2;
      model.step();
    }
    back = static_cast<int>(model.taken_back);
    return model.digest();
  };
  int early = 0;
  int waited = 0;
  EXPECT_EQ(changing(true, early), changing(false, waited));
  EXPECT_EQ(early, 2);
  EXPECT_EQ(waited, 0);
}

TEST(HookedUpdate, IsDroppedWithTheGradients) {
  expect_same_bits(nullptr, [](HookedModel& model, int step) {
    backward(forward(model));
    if (step <= 1) return;
    EXPECT_EQ(error_of(model.uses->zero_gradients()), "");
    EXPECT_FALSE(model.core->in_last_backward());
    backward(forward(model));
  });
}

TEST(HookedUpdate, IsTakenBackByABackwardThatFails) {
  bool fails = false;  // in the first stage, when all others are final
  const auto prepare = [&](HookedModel& model) {
    model.parameters[0].register_hook([&](const at::Tensor& gradient) {
      TORCH_CHECK(!fails, "on purpose");
      return gradient;
    });
  };
  expect_same_bits(prepare, [&](HookedModel& model, int step) {
    if (step % 2 == 0) {
      fails = true;
      EXPECT_ANY_THROW(backward(forward(model)));
      fails = false;
      static_cast<void>(model.uses->backward_ended(/*failed=*/true).has_value());
      EXPECT_EQ(error_of(model.uses->zero_gradients()), "");
    }
    backward(forward(model));
  });
}

/// A stage that reads another stage's parameter only in the second forward of backward, as a
/// reentrant checkpoint does: that stage seemed to have had its last use.
TEST(HookedUpdate, IsTakenBackByAUseThatBackwardMakes) {
  const std::uint64_t early = expect_same_bits(nullptr, [](HookedModel& model, int) {
    at::Tensor x = block(model, 0, at::ones({3, width}));
    // Backward calls stage 1 once more, after its own use of it.
    x.register_hook([&](const at::Tensor& gradient) {
      const at::AutoGradMode mode(true);
      torch::autograd::backward({block(model, 1, at::ones({3, width})).sum()}, {});
      return gradient;
    });
    for (std::uint32_t stage = 1; stage < stages; ++stage) x = slowly(block(model, stage, x));
    backward(x.sum());
  });
  EXPECT_GT(early, 0u);  // of the other stages, once stage 1's late use is known
}

TEST(HookedUpdate, LeavesWhatStaysGatheredToTheStep) {
  // Biases are read between backward and step, which is allowed.
  std::vector<float> seen;
  const auto read = [&](HookedModel& model) {
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const at::Tensor bias = model.parameters[2 * stage + 1].detach();
      seen.insert(seen.end(), bias.const_data_ptr<float>(), bias.const_data_ptr<float>() + width);
    }
  };
  UsesCase run{.persistent = width};
  const Outcome waited = train(run, read);
  run.under_backward = true;
  const Outcome early = train(run, read);
  EXPECT_EQ(early.digest, waited.digest);
  EXPECT_GT(early.updated, 0u);
  const auto half = static_cast<std::ptrdiff_t>(seen.size() / 2);
  EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + half, seen.begin() + half, seen.end()));
}

TEST(HookedUpdate, GradientsThatComeBehindTheirUnitAreLearnedFrom) {
  const auto prepare = [](HookedModel& model) {
    model.parameters[4].register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  };
  EXPECT_GT(expect_same_bits(prepare, [](HookedModel& model, int) { backward(forward(model)); }),
            0u);
}

}  // namespace
}  // namespace artesian::zero3
