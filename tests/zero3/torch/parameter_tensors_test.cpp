// Proves what happens to the tensors of a caller's model when the engine adopts them: they keep
// identity, shape and hooks, compute with the memory that is bound, and throw an error with their
// name when they are read while released, as do old views of their former memory. Tensors that
// cannot be adopted are refused by name, without a change.
#include "zero3/torch/parameter_tensors.h"

#include <gtest/gtest.h>

#include "tests/zero3/torch/uses_harness.h"
#include "zero3/torch/storage_refusal.h"

namespace artesian::zero3 {
namespace {

ModelShape two_stages() {
  return {.parameters = {{.name = "a.weight", .shape = {4, 8}}, {.name = "b.weight", .shape = {8}}},
          .stages = {{.name = "a", .parameters = {0}, .lookup = {}},
                     {.name = "b", .parameters = {1}, .lookup = {}}}};
}

/// Returns the message of what reading throws.
std::string thrown_by(const std::function<void()>& read) {
  try {
    read();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ParameterTensors, AreTheCallersWithMemoryOfOurs) {
  HookedModel model(two_stages());
  const at::Tensor& tensor = model.parameters[0];
  EXPECT_EQ(model.tensors->at(0).unsafeGetTensorImpl(), tensor.unsafeGetTensorImpl());
  EXPECT_TRUE(tensor.requires_grad());
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({4, 8}));
  ASSERT_EQ(error_of(model.uses->enter(0, Pass::Train)), "");
  EXPECT_TRUE(at::equal(tensor.detach(), model.values[0]));
  ASSERT_EQ(error_of(model.uses->leave(0, {})), "");
}

TEST(ParameterTensors, ThatAreReleasedThrowWithTheirName) {
  ASSERT_TRUE(released_tensors_throw());  // with the LibTorch of this test
  const at::Tensor view_holder = at::ones({4, 8});
  HookedModel model(two_stages());
  const at::Tensor view = model.parameters[0].detach();
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { static_cast<void>(model.parameters[0].sum()); },
           [&] { static_cast<void>(model.parameters[0].clone()); },
           [&] { static_cast<void>(model.parameters[0].data_ptr()); },
           [&] { static_cast<void>(view.sum()); }, [&] { model.parameters[0].detach().zero_(); },
           [&] { static_cast<void>(view_holder.matmul(model.parameters[0].t())); }}) {
    EXPECT_NE(thrown_by(read).find("parameter \"a.weight\" is released"), std::string::npos)
        << thrown_by(read);
  }
  EXPECT_EQ(model.parameters[0].numel(), 32);  // which reads no element
  EXPECT_EQ(at::zeros_like(model.parameters[0]).sum().item<float>(), 0.0f);
}

TEST(ParameterTensors, OutliveTheirEngine) {
  at::Tensor kept;
  {
    HookedModel model(two_stages());
    kept = model.parameters[1];
  }
  EXPECT_NE(thrown_by([&] {
              static_cast<void>(kept.sum());
            }).find("parameter \"b.weight\" has no memory: its engine is gone"),
            std::string::npos);
}

TEST(ParameterTensors, ViewsOfTheOldMemoryThrow) {
  CoreOnDisk disk(two_stages());
  const Tensors parameters = {at::randn({4, 8}).requires_grad_(true),
                              at::randn({8}).requires_grad_(true)};
  const at::Tensor view = parameters[0].detach().t();
  auto adopted = ParameterTensors::adopt(disk.core->shape().parameters, disk.core->placement(),
                                         parameters, {});
  ASSERT_EQ(error_of(adopted), "");
  EXPECT_NE(thrown_by([&] {
              static_cast<void>(view.sum());
            }).find("a view of what the memory of parameter \"a.weight\" was"),
            std::string::npos);
}

TEST(ParameterTensors, WhatCannotBeAdoptedIsRefusedByName) {
  const auto specs = two_stages().parameters;
  const at::Tensor flat = at::randn({40});
  const at::Tensor first = flat.narrow(0, 0, 32).view({4, 8}).detach();
  const auto refused = [&](const Tensors& tensors, std::vector<NamedTensor> others = {}) {
    return error_of(check_adoptable(specs, tensors, others));
  };
  EXPECT_EQ(refused({first, flat.narrow(0, 32, 8).detach()}), "");  // adjacent, without overlap
  EXPECT_EQ(refused({first, flat.narrow(0, 24, 8).detach()}),
            "parameter \"a.weight\": shares its memory with \"b.weight\", which is another tensor "
            "and would keep the old values; tie them by using one Parameter, or copy one");
  EXPECT_NE(refused({first, at::ones({8})}, {{"buffer", flat.narrow(0, 30, 4)}})
                .find("shares its memory with \"buffer\""),
            std::string::npos);
  EXPECT_EQ(refused({first, at::ones({8})}, {{"x", at::ones({4})}, {"y", at::ones({0})}}), "");
  EXPECT_EQ(refused({first, at::ones({9})}),
            "parameter \"b.weight\": got the shape [9], allowed [8]");
  EXPECT_NE(refused({first, at::ones({8}, at::kLong)}).find("allowed a floating-point type"),
            std::string::npos);
  EXPECT_NE(refused({first, at::ones({8}, at::TensorOptions().device(at::kMeta))})
                .find("got a tensor on meta, allowed cpu"),
            std::string::npos);
  EXPECT_NE(refused({first, at::ones({8}).requires_grad_(true) * 2}).find("allowed a leaf"),
            std::string::npos);
  HookedModel model(two_stages());
  EXPECT_NE(refused({model.parameters[0], at::ones({8})}).find("another engine has it"),
            std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3
