// Proves that gradients have the bits of plain autograd, with the units of one use gathered at a
// time and nothing left at the end of backward, for any graph: chains, tied and repeated stages,
// inputs changed in place or passed through, outputs that are not in the loss, several forwards and
// backwards, graphs that are kept or dropped, on any thread, and random graphs. A released
// parameter throws when it is read, so each backward that succeeds had the parameters that it
// needed.
#include "zero3/torch/unit_uses.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "tests/zero3/torch/uses_harness.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t width = 8;

/// `stages` of a matrix and a bias each. If tied, the last one also has the first one's matrix.
ModelShape chain_of(std::size_t stages, bool tied = false) {
  ModelShape shape;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto first = static_cast<std::uint32_t>(shape.parameters.size());
    const std::string name = "h." + std::to_string(stage);
    shape.parameters.push_back({.name = name + ".weight", .shape = {width, width}});
    shape.parameters.push_back({.name = name + ".bias", .shape = {width}});
    shape.stages.push_back({.name = name, .parameters = {first, first + 1}, .lookup = {}});
  }
  if (tied) shape.stages.back().parameters.push_back(0);
  return shape;
}

/// A forward and its backward, over parameters.
using Loop = std::function<void(const Tensors&, const Call&)>;

Tensors call_plainly(std::uint32_t, const Tensors& inputs, const Function& function) {
  return function(inputs);
}

at::Tensor block(const Tensors& p, std::uint32_t stage, const at::Tensor& x) {
  return at::tanh(x.matmul(p[2 * stage]) + p[2 * stage + 1]);
}

/// Runs five steps of a loop over both models, with and without updates under backward. Returns the
/// hooked model without updates, for further checks.
std::unique_ptr<HookedModel> expect_same_bits(const ModelShape& shape, const Loop& loop,
                                              UsesCase run = {}) {
  constexpr int steps = 5;
  PlainModel plain(shape, run);
  for (int step = 0; step < steps; ++step) {
    plain.micro_batch([&] { loop(plain.values, call_plainly); });
    plain.step();
  }
  const std::string digest = plain.digest();
  std::unique_ptr<HookedModel> hooked;
  for (const bool under_backward : {true, false}) {
    SCOPED_TRACE(under_backward ? "updated under backward" : "updated at the step");
    run.under_backward = under_backward;
    hooked = std::make_unique<HookedModel>(shape, run);
    for (int step = 0; step < steps; ++step) {
      loop(hooked->parameters, hooked->caller());
      hooked->step();
    }
    EXPECT_EQ(hooked->digest(), digest);
    EXPECT_EQ(hooked->uses->closed_late(), 0u);
    EXPECT_EQ(hooked->uses->uses_alive(), 0u);
  }
  return hooked;
}

at::Tensor input() {
  return at::arange(3 * width, at::kFloat).view({3, width}) / 20;
}

/// All stages in order, each on the output of the one before.
at::Tensor forward(const Tensors& p, const Call& call, at::Tensor x, std::uint32_t stages) {
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    x = call(stage, {x}, [&](const Tensors& in) -> Tensors { return {block(p, stage, in[0])}; })[0];
  }
  return x;
}

TEST(UnitUses, OfAChainAreOpenOneAtATime) {
  for (const std::uint64_t persistent : {0, 8, 1000}) {
    const auto model = expect_same_bits(
        chain_of(4),
        [](const Tensors& p, const Call& call) { backward(forward(p, call, input(), 4).sum()); },
        {.persistent = persistent});
    EXPECT_EQ(model->uses->open_max(), 1u) << persistent;
  }
}

TEST(UnitUses, OfATiedMatrixAreAddedInTheOrderOfBackward) {
  const auto model = expect_same_bits(chain_of(3, true), [](const Tensors& p, const Call& call) {
    at::Tensor x = forward(p, call, input(), 2);
    x = call(2, {x}, [&](const Tensors& in) -> Tensors {
      return {block(p, 2, in[0]).matmul(p[0].t())};
    })[0];
    backward(x.pow(2).sum());
  });
  EXPECT_EQ(model->uses->open_max(), 1u);
}

TEST(UnitUses, OfAStageThatIsCalledTwice) {
  const auto model = expect_same_bits(chain_of(2), [](const Tensors& p, const Call& call) {
    const auto once = [&](std::uint32_t stage, const at::Tensor& x) {
      return call(stage, {x},
                  [&](const Tensors& in) -> Tensors { return {block(p, stage, in[0])}; })[0];
    };
    backward(once(0, once(1, once(1, input()))).sum());
  });
  EXPECT_EQ(model->uses->open_max(), 1u);
}

TEST(UnitUses, WhoseInputIsChangedInPlace) {
  expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    at::Tensor x = call(0, {input()}, [&](const Tensors& in) -> Tensors {
      return {block(p, 0, in[0]) + 0};  // tanh needs its own output
    })[0];
    for (std::uint32_t stage = 1; stage < 3; ++stage) {
      x = call(stage, {x}, [&](const Tensors& in) -> Tensors {
        at::Tensor same = in[0];
        same += block(p, stage, same.clone());
        return {same};
      })[0];
    }
    backward(x.sum());
  });
}

TEST(UnitUses, WhoseOutputsAreViewsThatAreChangedInPlace) {
  expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    at::Tensor x = forward(p, call, input(), 1);
    x = call(1, {x}, [&](const Tensors& in) -> Tensors { return {block(p, 1, in[0]) + 0}; })[0];
    x.narrow(1, 0, 4).mul_(2);
    x = call(2, {x}, [&](const Tensors& in) -> Tensors {
      return {(block(p, 2, in[0]) + 0).narrow(1, 2, 4)};
    })[0];
    x.add_(1);
    backward(x.pow(2).sum());
  });
}

TEST(UnitUses, ThatHandTheirInputThrough) {
  expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    Tensors x = {input(), input()};
    for (std::uint32_t stage = 0; stage < 3; ++stage) {
      x = call(stage, x, [&](const Tensors& in) -> Tensors {
        return {block(p, stage, in[0] + in[1]), stage == 0 ? block(p, 0, in[1]) : in[1]};
      });
    }
    backward((x[0] * x[1]).sum());
  });
}

TEST(UnitUses, WithInputsThatAreLeaves) {
  for (const bool grad : {false, true}) {
    expect_same_bits(chain_of(2), [&](const Tensors& p, const Call& call) {
      backward(forward(p, call, input().requires_grad_(grad), 2).sum());
    });
  }
}

TEST(UnitUses, WithAnOutputOutsideTheLoss) {
  for (const bool first : {true, false}) {
    const auto model = expect_same_bits(chain_of(3), [&](const Tensors& p, const Call& call) {
      at::Tensor x = input();
      at::Tensor sides = at::zeros({});
      for (std::uint32_t stage = 0; stage < 3; ++stage) {
        const Tensors out = call(stage, {x}, [&](const Tensors& in) -> Tensors {
          const at::Tensor made = block(p, stage, in[0]);
          return {made, made.matmul(p[2 * stage]).sum()};
        });
        x = out[0];
        sides = sides + out[1];
      }
      backward(first ? x.sum() : sides);
    });
    EXPECT_EQ(model->uses->open_max(), 1u);
  }
}

TEST(UnitUses, WhoseValueLeavesByASideChannel) {
  expect_same_bits(chain_of(2), [](const Tensors& p, const Call& call) {
    at::Tensor recorded;
    at::Tensor x = input();
    for (std::uint32_t stage = 0; stage < 2; ++stage) {
      x = call(stage, {x}, [&](const Tensors& in) -> Tensors {
        recorded = in[0].matmul(p[2 * stage]).softmax(-1);
        return {recorded.matmul(p[2 * stage].t()) + p[2 * stage + 1]};
      })[0];
    }
    backward(recorded.pow(2).sum(), /*retain=*/true);
    backward(x.sum());
  });
}

TEST(UnitUses, OfSeveralForwardsInOneLoss) {
  const auto model = expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    const at::Tensor one = forward(p, call, input(), 3);
    const at::Tensor other = forward(p, call, input() * 2, 3);
    backward((one * other).sum());
  });
  EXPECT_EQ(model->uses->open_max(), 1u);
}

TEST(UnitUses, OfSeveralForwardsWithABackwardEach) {
  const ModelShape shape = chain_of(3);
  const UsesCase run{.accumulation = 2};
  PlainModel plain(shape, run);
  HookedModel hooked(shape, run);
  const Call call = hooked.caller();
  for (const auto& order : {std::pair{0, 1}, std::pair{1, 0}}) {
    const double factors[] = {1.0, 2.0};
    for (const int index : {order.first, order.second}) {
      plain.micro_batch([&] {
        backward(forward(plain.values, call_plainly, input() * factors[index], 3).sum());
      });
    }
    plain.step();
    at::Tensor losses[2];
    for (int index = 0; index < 2; ++index) {
      losses[index] = forward(hooked.parameters, call, input() * factors[index], 3).sum();
    }
    {
      const at::NoGradGuard no_grad;  // an evaluation between forward and backward
      forward(hooked.parameters, call, input(), 3);
    }
    backward(losses[order.first]);
    backward(losses[order.second]);
    hooked.step();
  }
  EXPECT_EQ(hooked.digest(), plain.digest());
}

TEST(UnitUses, OfAGraphThatIsKeptOpenAgain) {
  expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    const at::Tensor loss = forward(p, call, input(), 3).sum();
    backward(loss, /*retain=*/true);
    backward(loss);
  });
}

TEST(UnitUses, ReadersOfOneUseAreAddedOnce) {
  // In bf16 each addition to the accumulator rounds: a hundred additions have other bits than one.
  expect_same_bits(chain_of(1),
                   [](const Tensors& p, const Call& call) {
                     const at::Tensor x = call(0, {input()}, [&](const Tensors& in) -> Tensors {
                       at::Tensor hidden = in[0];
                       for (int time = 0; time < 100; ++time) hidden = block(p, 0, hidden);
                       return {hidden};
                     })[0];
                     backward(x.sum());
                   },
                   {.dtype = DType::BFloat16});
}

/// Autograd passes the sum's gradient to the bias, whose first it is, and to the input, which needs
/// it later.
TEST(UnitUses, WhoseInputsGradientIsAlsoAParametersFirst) {
  expect_same_bits(chain_of(3), [](const Tensors& p, const Call& call) {
    at::Tensor x = at::linspace(0, 1, width);
    for (std::uint32_t stage = 0; stage < 3; ++stage) {
      x = call(stage, {x}, [&](const Tensors& in) -> Tensors {
        const at::Tensor& bias = p[2 * stage + 1];
        const at::Tensor first = at::sin(bias);
        return {first + (in[0] + bias)};
      })[0];
    }
    backward(x.pow(2).sum());
  });
}

TEST(UnitUses, ParametersWithHooksOfTheCallers) {
  const ModelShape shape = chain_of(2);
  PlainModel plain(shape);
  HookedModel hooked(shape);
  int seen = 0;
  const auto twice = [&](const at::Tensor& gradient) {
    ++seen;
    return gradient * 2;
  };
  plain.values[2].register_hook(twice);
  hooked.parameters[2].register_hook(twice);
  plain.micro_batch([&] { backward(forward(plain.values, call_plainly, input(), 2).sum()); });
  plain.step();
  const Call call = hooked.caller();
  backward(forward(hooked.parameters, call, input(), 2).sum());
  hooked.step();
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(hooked.digest(), plain.digest());
}

TEST(UnitUses, OfParametersThatAnotherModuleReads) {
  const ModelShape shape = chain_of(2);
  PlainModel plain(shape);
  HookedModel hooked(shape);
  const std::uint32_t above = 2;  // a module that contains the stages, without parameters
  for (int step = 0; step < 2; ++step) {
    const auto forward_above = [](const Tensors& p, const Call& call) {
      const at::Tensor x = forward(p, call, input(), 2);
      return x.matmul(p[0]).tanh() * p[3];
    };
    plain.micro_batch([&] { backward(forward_above(plain.values, call_plainly).sum()); });
    plain.step();
    ASSERT_EQ(error_of(hooked.uses->enter(above, Pass::Train)), "");
    if (step == 0) {
      for (const std::uint32_t read : {0, 3}) ASSERT_EQ(error_of(hooked.uses->gather(read)), "");
    }
    const at::Tensor y = forward_above(hooked.parameters, hooked.caller());
    ASSERT_EQ(error_of(hooked.uses->leave(above, Tensors{y})), "");
    EXPECT_THROW(static_cast<void>(hooked.parameters[0].sum()), c10::Error);  // before leave
    backward(y.sum());
    hooked.step();
  }
  EXPECT_EQ(hooked.digest(), plain.digest());
  EXPECT_EQ(hooked.uses->closed_late(), 0u);
}

TEST(UnitUses, AutogradsOwnQuestionsTakeNoGradient) {
  HookedModel model(chain_of(2));
  HookedModel other(chain_of(2));
  for (HookedModel* each : {&model, &other}) {
    const Call call = each->caller();
    const at::Tensor x = input().requires_grad_(true);
    const at::Tensor loss = forward(each->parameters, call, x, 2).sum();
    if (each == &model) {
      const Tensors asked = torch::autograd::grad({loss}, {x, each->parameters[0]}, {}, true);
      EXPECT_TRUE(asked[1].defined());
    }
    backward(loss);
    each->step();
  }
  EXPECT_EQ(model.digest(), other.digest());
}

TEST(UnitUses, OfALossThatIsThrownAwayLeaveNothing) {
  const ModelShape shape = chain_of(2);
  HookedModel model(shape);
  const Call call = model.caller();
  forward(model.parameters, call, input(), 2);
  EXPECT_EQ(model.uses->uses_alive(), 0u);
  backward(forward(model.parameters, call, input(), 2).sum());
  forward(model.parameters, call, input(), 2);
  model.step();
  PlainModel plain(shape);
  plain.micro_batch([&] { backward(forward(plain.values, call_plainly, input(), 2).sum()); });
  plain.step();
  EXPECT_EQ(model.digest(), plain.digest());
}

/// The last stage's use is open, and the error is thrown in the middle of its graph.
at::Tensor loss_that_throws(HookedModel& model) {
  const Call call = model.caller();
  const at::Tensor x = forward(model.parameters, call, input(), 1);
  return call(1, {x},
              [&](const Tensors& in) -> Tensors {
                at::Tensor made = in[0].matmul(model.parameters[2]);
                made.register_hook([](const at::Tensor& gradient) {
                  TORCH_CHECK(false, "thrown by a hook");
                  return gradient;
                });
                return {at::tanh(made + model.parameters[3])};
              })[0]
      .sum();
}

TEST(UnitUses, ABackwardThatBreaksOffDamagesTheStepUntilItsGradientsAreDropped) {
  const ModelShape shape = chain_of(2);
  for (const bool announced : {true, false}) {
    HookedModel model(shape);
    {
      const at::Tensor loss = loss_that_throws(model);
      if (announced) {
        ASSERT_EQ(error_of(model.uses->begin_backward(1.0)), "");
      }
      EXPECT_THROW(backward(loss), c10::Error);
      if (announced) {
        EXPECT_EQ(error_of(model.uses->backward_ended(true)), "");
      }
      EXPECT_NE(error_of(model.uses->step({})).find("the step is damaged"), std::string::npos);
      const std::string refused = error_of(model.uses->enter(0, Pass::Train));
      EXPECT_NE(refused.find("call zero_grad()"), std::string::npos) << refused;
    }
    ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
    EXPECT_EQ(model.uses->uses_alive(), 0u);
    const Call call = model.caller();
    backward(forward(model.parameters, call, input(), 2).sum());
    model.step();
    PlainModel plain(shape);
    plain.micro_batch([&] { backward(forward(plain.values, call_plainly, input(), 2).sum()); });
    plain.step();
    EXPECT_EQ(model.digest(), plain.digest()) << announced;
  }
}

TEST(UnitUses, ACallThatBreaksOffIsUnwound) {
  HookedModel model(chain_of(2));
  ASSERT_EQ(error_of(model.uses->enter(2, Pass::Train)), "");
  ASSERT_EQ(error_of(model.uses->enter(1, Pass::Train)), "");
  EXPECT_EQ(model.uses->depth(), 2u);
  ASSERT_EQ(error_of(model.uses->unwind()), "");
  EXPECT_EQ(model.uses->depth(), 0u);
  EXPECT_NE(error_of(model.uses->step({})).find("the step is damaged"), std::string::npos);
  ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
  {
    const at::NoGradGuard no_grad;
    ASSERT_EQ(error_of(model.uses->enter(1, Pass::Evaluate)), "");
    ASSERT_EQ(error_of(model.uses->unwind()), "");  // an evaluation damages nothing
  }
  EXPECT_THROW(static_cast<void>(model.parameters[2].sum()), c10::Error);
  const Call call = model.caller();
  backward(forward(model.parameters, call, input(), 2).sum());
  model.step();
}

TEST(UnitUses, DieOnAnyThreadAndInAForkedChild) {
  const ModelShape shape = chain_of(2);
  HookedModel model(shape);
  at::Tensor loss = loss_that_throws(model);
  EXPECT_THROW(backward(loss), c10::Error);  // leaves the last use open
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    loss.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::thread([gone = std::move(loss)]() mutable { gone.reset(); }).join();
  EXPECT_EQ(model.uses->uses_alive(), 0u);
  ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
  EXPECT_THROW(static_cast<void>(model.parameters[2].sum()), c10::Error);  // was left
}

TEST(UnitUses, AParameterThatIsChangedInPlaceIsAnErrorWithItsName) {
  HookedModel model(chain_of(2));
  ASSERT_EQ(error_of(model.uses->enter(0, Pass::Evaluate)), "");
  {
    const at::NoGradGuard no_grad;
    model.parameters[1].clamp_(0);
  }
  EXPECT_NE(error_of(model.uses->leave(0, {})).find("\"h.0.bias\" was changed in place"),
            std::string::npos);
}

TEST(UnitUses, AParameterThatIsAlwaysThereMayNotBeChangedEither) {
  HookedModel model(chain_of(2), {.persistent = 1000});
  backward(forward(model.parameters, model.caller(), input(), 2).sum());
  model.step();  // which changes them itself
  EXPECT_NO_THROW(forward(model.parameters, model.caller(), input(), 2));
  ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
  {
    const at::NoGradGuard no_grad;
    model.parameters[3].add_(1);  // between two passes
  }
  EXPECT_NE(error_of(model.uses->enter(0, Pass::Train)).find("\"h.1.bias\" was changed in place"),
            std::string::npos);
}

TEST(UnitUses, StepWithoutGradientsIsOutOfOrder) {
  HookedModel model(chain_of(2));
  EXPECT_NE(error_of(model.uses->step({})).find("there are no gradients since the last step"),
            std::string::npos);
}

/// Each stage takes some of the earlier outputs, and returns one or two tensors; later stages
/// change some in place; the loss has some of them. Each parameter is read once a use.
void random_graph(std::uint64_t seed, std::uint32_t stages, const Tensors& p, const Call& call) {
  std::mt19937_64 draw(seed);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(draw() % count); };
  Tensors there = {input(), input() * 0.5};
  for (std::uint32_t turn = 0; turn < stages + 2; ++turn) {
    const auto stage = static_cast<std::uint32_t>(turn < stages ? turn : below(stages));
    Tensors taken = {there[below(there.size())], there[below(there.size())]};
    const std::uint64_t how = draw();
    const Tensors made = call(stage, taken, [&](const Tensors& in) -> Tensors {
      const at::Tensor x = block(p, stage, in[0] + in[1]);
      switch (how % 4) {
        case 0: return {x};
        case 1: return {x, x.sin()};
        case 2: return {x * in[1], in[0]};
        default: return {x.narrow(1, 0, 4).repeat({1, 2}), x};
      }
    });
    there.insert(there.end(), made.begin(), made.end());
    if (how % 3 == 0) there.erase(there.begin() + static_cast<std::ptrdiff_t>(below(there.size())));
  }
  at::Tensor loss = there.back().sum();
  for (const at::Tensor& tensor : there) {
    if (draw() % 2 == 0) loss = loss + tensor.pow(2).sum();
  }
  if (loss.requires_grad()) backward(loss);
}

TEST(UnitUses, OfGraphsAtRandom) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto stages = static_cast<std::uint32_t>(2 + seed % 5);
    SCOPED_TRACE(seed);
    expect_same_bits(chain_of(stages), [&](const Tensors& p, const Call& call) {
      random_graph(seed, stages, p, call);
    });
  }
}

}  // namespace
}  // namespace artesian::zero3
