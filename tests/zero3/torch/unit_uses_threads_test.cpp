// Proves that a hooked model's graphs may run on any thread, as autograd runs those of a device.
// Two forwards or two backwards at once have the bits of plain autograd. A recomputation on its own
// thread takes its own nodes alone. A backward that continues after its failure is known, or after
// its engine is gone, is ignored. A caller in the middle of another thread's backward is refused.
// The other thread is one of the test's, which calls backward().
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/zero3/torch/uses_harness.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t width = 8;

/// Two stages of a matrix each.
ModelShape two_stages() {
  ModelShape shape;
  for (std::uint32_t stage = 0; stage < 2; ++stage) {
    const std::string name = "h." + std::to_string(stage);
    shape.parameters.push_back({.name = name + ".weight", .shape = {width, width}});
    shape.stages.push_back({.name = name, .parameters = {stage}, .lookup = {}});
  }
  return shape;
}

at::Tensor input() {
  return at::arange(3 * width, at::kFloat).view({3, width}) / 20;
}

at::Tensor call_stage(const Tensors& p, const Call& call, std::uint32_t stage,
                      const at::Tensor& x) {
  return call(stage, {x},
              [&](const Tensors& in) -> Tensors { return {at::tanh(in[0].matmul(p[stage]))}; })[0];
}

at::Tensor loss_of(const Tensors& p, const Call& call) {
  return call_stage(p, call, 1, call_stage(p, call, 0, input())).sum();
}

Tensors call_plainly(std::uint32_t, const Tensors& inputs, const Function& function) {
  return function(inputs);
}

template <typename Function>
void twice_at_once(const Function& function) {
  std::thread other([&] { function(1); });
  function(0);
  other.join();
}

/// Steps of plain autograd over two losses.
std::string digest_of_two_losses(int steps) {
  PlainModel plain(two_stages());
  for (int step = 0; step < steps; ++step) {
    plain.micro_batch([&] {
      for (int loss = 0; loss < 2; ++loss) backward(loss_of(plain.values, call_plainly));
    });
    plain.step();
  }
  return plain.digest();
}

constexpr int steps_at_once = 20;

TEST(UnitUsesOnThreads, TwoBackwardsAtOnceHaveTheBitsOfPlainAutograd) {
  HookedModel model(two_stages());
  const Call call = model.caller();
  for (int step = 0; step < steps_at_once; ++step) {
    Tensors losses;
    for (int loss = 0; loss < 2; ++loss) losses.push_back(loss_of(model.parameters, call));
    twice_at_once([&](std::size_t loss) { backward(losses[loss]); });
    model.step();
  }
  EXPECT_EQ(model.digest(), digest_of_two_losses(steps_at_once));
}

TEST(UnitUsesOnThreads, TwoForwardsAtOnceAreOnePass) {
  HookedModel model(two_stages());
  const Call call = model.caller();
  for (int step = 0; step < steps_at_once; ++step) {
    Tensors losses(2);
    twice_at_once([&](std::size_t loss) { losses[loss] = loss_of(model.parameters, call); });
    EXPECT_EQ(model.uses->depth(), 0u);
    for (const at::Tensor& loss : losses) backward(loss);
    model.step();
  }
  EXPECT_EQ(model.digest(), digest_of_two_losses(steps_at_once));
}

TEST(UnitUsesOnThreads, ACallTakesNoNodesOfAnotherThreadThatHaveLargerNumbers) {
  HookedModel model(two_stages());
  const Call call = model.caller();
  for (int number = 0; number < 100; ++number) {  // nodes of this thread
    static_cast<void>(model.parameters[0].detach().dim());
    static_cast<void>(at::ones({1}).requires_grad_(true) * 2);
  }
  const at::Tensor x = call_stage(model.parameters, call, 0, input());
  at::Tensor loss;
  std::thread([&] { loss = call_stage(model.parameters, call, 1, x).sum(); }).join();
  backward(loss);
  model.step();
  EXPECT_EQ(model.uses->open_max(), 1u);  // stage 0 has nodes, stage 1 is open beside it
  EXPECT_EQ(model.uses->closed_late(), 0u);
  PlainModel plain(two_stages());
  plain.micro_batch([&] { backward(loss_of(plain.values, call_plainly)); });
  plain.step();
  EXPECT_EQ(model.digest(), plain.digest());
}

/// A backward on its own thread, which stops in the middle of stage 1 until it is released.
class StoppedBackward {
 public:
  explicit StoppedBackward(HookedModel& model) {
    const Call call = model.caller();
    const at::Tensor x = call_stage(model.parameters, call, 0, input());
    loss_ = call(1, {x},
                 [&](const Tensors& in) -> Tensors {
                   at::Tensor made = in[0].matmul(model.parameters[1]);
                   made.register_hook([this](const at::Tensor& gradient) {
                     inside_.set_value();
                     go_on_.get_future().wait();
                     return gradient;
                   });
                   return {at::tanh(made)};
                 })[0]
                .sum();
    thread_ = std::thread([this] {
      try {
        backward(loss_);
      } catch (const c10::Error&) {  // parameters may have been released under it
        failed_ = true;
      }
    });
    inside_.get_future().wait();
  }
  bool end() {
    go_on_.set_value();
    thread_.join();
    loss_.reset();
    return !failed_;
  }

 private:
  at::Tensor loss_;
  std::promise<void> inside_;
  std::promise<void> go_on_;
  std::thread thread_;
  bool failed_ = false;
};

TEST(UnitUsesOnThreads, ACallDuringAnotherThreadsBackwardIsRefusedAndDoesNoHarm) {
  HookedModel model(two_stages());
  StoppedBackward stopped(model);
  const std::string refused = error_of(model.uses->enter(0, Pass::Train));
  EXPECT_NE(refused.find("a backward of the model runs on another thread"), std::string::npos)
      << refused;
  EXPECT_TRUE(stopped.end());
  model.step();
  PlainModel plain(two_stages());
  plain.micro_batch([&] { backward(loss_of(plain.values, call_plainly)); });
  plain.step();
  EXPECT_EQ(model.digest(), plain.digest());
}

TEST(UnitUsesOnThreads, ABackwardThatGoesOnAfterItsFailureIsLeftToItself) {
  HookedModel model(two_stages());
  StoppedBackward stopped(model);
  EXPECT_EQ(error_of(model.uses->backward_ended(/*failed=*/true)), "");
  stopped.end();
  EXPECT_EQ(model.uses->uses_alive(), 0u);
  ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
  EXPECT_THROW(static_cast<void>(model.parameters[0].sum()), c10::Error);  // nothing is held
  backward(loss_of(model.parameters, model.caller()));
  model.step();
  PlainModel plain(two_stages());
  plain.micro_batch([&] { backward(loss_of(plain.values, call_plainly)); });
  plain.step();
  EXPECT_EQ(model.digest(), plain.digest());
}

TEST(UnitUsesOnThreads, AnEngineMayGoUnderARunningBackward) {
  HookedModel model(two_stages());
  StoppedBackward stopped(model);
  model.uses->let_go();
  model.uses.reset();
  EXPECT_FALSE(stopped.end());  // stage 0 has been released
}

}  // namespace
}  // namespace artesian::zero3
