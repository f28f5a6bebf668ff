// Proves that tables, whose gradients are added row by row and tile by tile, train with the bits of
// any other parameter, that they are not gathered if backward does not read them, and that a caller
// that asks for such a gradient gets it whole.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/zero3/torch/uses_harness.h"
#include "zero3/torch/storage_refusal.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t rows = 11;
constexpr std::int64_t width = 4;
constexpr std::int64_t padding = 3;

enum Parameter : std::uint8_t { Table, Weight, Bias, Head };

/// A look-up, a layer, and a head with the same table or another one.
struct TablesModel {
  bool tied = false;
  bool tables = true;    // else as any other parameter
  bool looks_up = true;  // else the table is gathered in backward, too

  ModelShape shape() const {
    ModelShape shape;
    shape.parameters = {{.name = "table", .shape = {rows, width}, .tiled = tables},
                        {.name = "weight", .shape = {width, width}},
                        {.name = "bias", .shape = {rows}}};
    if (!tied)
      shape.parameters.push_back({.name = "head", .shape = {rows, width}, .tiled = tables});
    const std::uint32_t head = tied ? Table : Head;
    shape.stages = {{.name = "embed", .parameters = {Table}, .lookup = {}},
                    {.name = "layer", .parameters = {Weight}, .lookup = {}},
                    {.name = "head", .parameters = {head, Bias}, .lookup = {}}};
    if (tables && looks_up) shape.stages[0].lookup = Table;
    return shape;
  }
  std::uint32_t head() const { return tied ? Table : Head; }
};

at::Tensor ids() {
  return at::tensor(std::vector<std::int64_t>{1, 5, padding, 1, 10, 0, 5, 5}).view({2, 4});
}

/// The loss by LibTorch's functions over these parameters.
at::Tensor loss_of(const Tensors& p, const Call& call, const TablesModel& of) {
  at::Tensor x = call(0, {}, [&](const Tensors&) -> Tensors {
    return {at::embedding(p[Table], ids(), padding)};
  })[0];
  x = call(1, {x},
           [&](const Tensors& in) -> Tensors { return {at::tanh(in[0].matmul(p[Weight]))}; })[0];
  x = call(2, {x}, [&](const Tensors& in) -> Tensors {
    return {at::linear(in[0], p[of.head()], p[Bias])};
  })[0];
  return x.square().mean();
}

at::Tensor plain_loss(const Tensors& values, const TablesModel& of) {
  const auto call = [](std::uint32_t, const Tensors& in, const Function& run) { return run(in); };
  return loss_of(values, call, of);
}

/// The loss by the functions of UnitUses, of an engine's model.
at::Tensor loss_of(HookedModel& model, const Call& call, const TablesModel& of) {
  if (!of.tables) return loss_of(model.parameters, call, of);
  at::Tensor x = call(0, {}, [&](const Tensors&) -> Tensors {
    return {model.uses->look_up(Table, ids(), padding)};
  })[0];
  x = call(1, {x}, [&](const Tensors& in) -> Tensors {
    return {at::tanh(in[0].matmul(model.parameters[Weight]))};
  })[0];
  x = call(2, {x}, [&](const Tensors& in) -> Tensors {
    return {model.uses->multiply(of.head(), in[0], model.parameters[Bias])};
  })[0];
  return x.square().mean();
}

std::string digest_of(const TablesModel& of, const UsesCase& run) {
  HookedModel model(of.shape(), run);
  for (int step = 0; step < 3; ++step) {
    for (std::uint64_t batch = 0; batch < run.accumulation; ++batch) {
      backward(loss_of(model, model.caller(), of));
    }
    model.step();
  }
  EXPECT_EQ(model.uses->closed_late(), 0u);
  EXPECT_EQ(model.uses->uses_alive(), 0u);
  return model.digest();
}

std::string plain_digest_of(const TablesModel& of, const UsesCase& run) {
  PlainModel model(of.shape(), run);
  for (int step = 0; step < 3; ++step) {
    for (std::uint64_t batch = 0; batch < run.accumulation; ++batch) {
      model.micro_batch([&] { backward(plain_loss(model.values, of)); });
    }
    model.step();
  }
  return model.digest();
}

TEST(UnitTables, TrainWithTheBitsOfAnyOtherParameter) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {  // computed in fp32
    for (const bool tied : {false, true}) {
      for (const std::uint64_t accumulation : {1, 3}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + (tied ? " tied " : " ") +
                     std::to_string(accumulation));
        UsesCase run{.dtype = dtype, .accumulation = accumulation};
        const std::string expected = digest_of({.tied = tied, .tables = false}, run);
        EXPECT_EQ(digest_of({.tied = tied}, run), expected);
        EXPECT_EQ(digest_of({.tied = tied, .looks_up = false}, run), expected);
        run.persistent = 1000;
        EXPECT_EQ(digest_of({.tied = tied}, run), expected);
      }
    }
  }
}

TEST(UnitTables, TrainWithTheBitsOfPlainLibTorch) {
  for (const bool tied : {false, true}) {
    EXPECT_EQ(digest_of({.tied = tied}, {}), plain_digest_of({.tied = tied}, {}));
  }
}

TEST(UnitTables, AreStoredAndNotExpanded) {
  const TablesModel of{.tied = true};
  HookedModel model(of.shape(), {.dtype = DType::BFloat16});
  EXPECT_EQ(model.parameters[Table].scalar_type(), at::kBFloat16);
  EXPECT_EQ(model.parameters[Weight].scalar_type(), at::kFloat);
}

/// Checks, before a node runs, whether a tensor's memory is resident.
class Looks final : public torch::autograd::FunctionPreHook {
 public:
  Looks(at::Tensor tensor, bool& there) : tensor_(std::move(tensor)), there_(there) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    there_ = true;
    try {
      static_cast<void>(tensor_.const_data_ptr());
    } catch (const c10::Error&) {
      there_ = false;
    }
    return gradients;
  }

 private:
  at::Tensor tensor_;
  bool& there_;
};

TEST(UnitTables, AreNotGatheredForTheBackwardOfALookUp) {
  if (!released_tensors_throw()) GTEST_SKIP() << "released memory cannot be asked for";
  for (const bool looks_up : {false, true}) {
    const TablesModel of{.looks_up = looks_up};
    HookedModel model(of.shape());
    bool there = false;
    const Call call = [&](std::uint32_t stage, const Tensors& inputs, const Function& function) {
      Tensors outputs = model.call(stage, inputs, function);
      if (stage == 0) {
        outputs[0].grad_fn()->add_pre_hook(std::make_unique<Looks>(model.parameters[0], there));
      }
      return outputs;
    };
    backward(loss_of(model, call, of));
    EXPECT_EQ(there, !looks_up);
  }
}

TEST(UnitTables, WithHooksOfTheCallersHaveWholeGradients) {
  for (const bool tied : {false, true}) {
    const TablesModel of{.tied = tied};
    PlainModel plain(of.shape());
    HookedModel hooked(of.shape());
    std::array<at::Tensor, 2> seen;
    hooked.parameters[of.head()].register_hook(
        [&seen](const at::Tensor& gradient) { seen[0] = gradient.clone(); });
    if (!tied) {
      hooked.parameters[Table].register_hook(
          [&seen](const at::Tensor& gradient) { seen[1] = gradient.clone(); });
    }
    plain.micro_batch([&] {
      backward(plain_loss(plain.values, of));
      const at::Tensor expected = plain.values[of.head()].grad().clone();
      backward(loss_of(hooked, hooked.caller(), of));
      ASSERT_TRUE(seen[0].defined());
      EXPECT_TRUE(at::equal(seen[0], expected));
      if (!tied) {
        EXPECT_TRUE(at::equal(seen[1], plain.values[Table].grad()));
      }
    });
    plain.step();
    hooked.step();
    EXPECT_EQ(hooked.digest(), plain.digest());
  }
}

TEST(UnitTables, GiveAutogradsOwnQuestionsWholeGradients) {
  const TablesModel of{};
  PlainModel plain(of.shape());
  HookedModel hooked(of.shape());
  const Tensors expected = torch::autograd::grad({plain_loss(plain.values, of)},
                                                 {plain.values[Table], plain.values[Head]});
  const Tensors asked = torch::autograd::grad({loss_of(hooked, hooked.caller(), of)},
                                              {hooked.parameters[Table], hooked.parameters[Head]});
  for (std::size_t index = 0; index < asked.size(); ++index) {
    EXPECT_TRUE(at::equal(asked[index], expected[index]));
  }
  EXPECT_NE(error_of(hooked.uses->step({})), "");  // nothing was accumulated
}

TEST(UnitTables, OfAGraphThatIsKeptAreAddedAgain) {
  const TablesModel of{};
  PlainModel plain(of.shape());
  HookedModel hooked(of.shape());
  plain.micro_batch([&] {
    backward(plain_loss(plain.values, of));
    for (at::Tensor& value : plain.values) value.mutable_grad() = value.grad() + value.grad();
  });
  const at::Tensor loss = loss_of(hooked, hooked.caller(), of);
  backward(loss, /*retain=*/true);
  backward(loss);
  plain.step();
  hooked.step();
  EXPECT_EQ(hooked.digest(), plain.digest());
}

TEST(UnitTables, AreTheSameWithoutAGraph) {
  const TablesModel of{};
  PlainModel plain(of.shape());
  HookedModel hooked(of.shape());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(loss_of(hooked, hooked.caller(), of), plain_loss(plain.values, of)));
}

TEST(UnitTables, AreMultipliedWithoutABias) {
  const TablesModel of{};
  PlainModel plain(of.shape());
  HookedModel hooked(of.shape());
  const at::Tensor input = at::arange(2 * width, at::kFloat).view({2, width});
  const auto call = [&](const Tensors&) -> Tensors {
    return {hooked.uses->multiply(Head, input, {})};
  };
  const at::Tensor product = hooked.call(2, {}, call)[0];
  const at::Tensor expected = at::linear(input, plain.values[Head]);
  EXPECT_TRUE(at::equal(product, expected));
  plain.micro_batch([&] { backward(expected.square().sum()); });
  backward(product.square().sum());
  plain.step();
  hooked.step();
  EXPECT_EQ(hooked.digest(), plain.digest());
}

TEST(UnitTables, WhatTheyReturnMayBeChangedInPlace) {
  const TablesModel of{};
  PlainModel plain(of.shape());
  HookedModel hooked(of.shape());
  const auto change = [](std::uint32_t stage, const Tensors& inputs, const Function& function) {
    Tensors outputs = function(inputs);
    if (stage != 1) outputs[0].select(0, 0).mul_(2);
    return outputs;
  };
  const Call changed = [&](std::uint32_t stage, const Tensors& inputs, const Function& function) {
    const auto both = [&](const Tensors& in) { return change(stage, in, function); };
    return hooked.call(stage, inputs, both);
  };
  plain.micro_batch([&] { backward(loss_of(plain.values, change, of)); });
  backward(loss_of(hooked, changed, of));
  plain.step();
  hooked.step();
  EXPECT_EQ(hooked.digest(), plain.digest());
}

TEST(UnitTables, AnIdThatIsNoRowThrows) {
  HookedModel model(TablesModel{}.shape());
  const at::Tensor wrong = at::tensor(std::vector<std::int64_t>{rows});
  ASSERT_EQ(error_of(model.uses->enter(0, Pass::Train)), "");
  EXPECT_THROW(model.uses->look_up(Table, wrong, -1), c10::Error);
  ASSERT_EQ(error_of(model.uses->leave(0, {})), "");
}

TEST(UnitTables, OutsideOfTheirModulesAreReleased) {
  HookedModel model(TablesModel{}.shape());
  EXPECT_THROW(model.uses->look_up(Table, ids(), -1), c10::Error);
  EXPECT_THROW(model.uses->multiply(Head, at::zeros({1, width}), {}), c10::Error);
}

TEST(UnitTables, ABackwardThatIsToBeDifferentiatedIsAnError) {
  const TablesModel of{};
  HookedModel model(of.shape());
  const at::Tensor loss = loss_of(model, model.caller(), of);
  ASSERT_EQ(error_of(model.uses->begin_backward(1.0)), "");
  EXPECT_THROW(torch::autograd::backward({loss}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               c10::Error);
  EXPECT_NE(error_of(model.uses->backward_ended(/*failed=*/true)).find("create_graph"),
            std::string::npos);
  ASSERT_EQ(error_of(model.uses->zero_gradients()), "");
  backward(loss_of(model, model.caller(), of));
  model.step();
}

}  // namespace
}  // namespace artesian::zero3
