// Proves reading and writing a parameter's weights and moments. Written values are read back, and
// nothing else changes. Later computing sees the new weights. The steps after it have the same bits
// for every home, budget, sub-group and form of master weights. Out of order it is refused.
// Gradients can be read while a step gathers them.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cast.h"
#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

constexpr StateKind kinds[] = {StateKind::Master, StateKind::ExpAvg, StateKind::ExpAvgSq};

std::vector<std::vector<float>> all_state(Driver& driver) {
  std::vector<std::vector<float>> state;
  for (std::uint32_t parameter = 0; parameter < driver.core->shape().parameters.size();
       ++parameter) {
    for (const StateKind kind : kinds) state.push_back(driver.read(parameter, kind));
  }
  return state;
}

/// Values that bf16 cannot hold, ties of its rounding among them.
std::vector<float> made_up(std::size_t count, std::uint32_t parameter) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 0.5f + static_cast<float>(i % 251 + parameter) * 0x1p-9f;
  }
  return values;
}

void write(Driver& driver, std::uint32_t parameter, StateKind kind,
           const std::vector<float>& values) {
  const auto source = [&](std::uint64_t first, std::span<float> piece) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), piece.size(), piece.begin());
  };
  ASSERT_EQ(error_of(driver.core->write_state(parameter, kind, source)), "");
}

/// Compares the parameters that a pass computes with.
void expect_gathered(Driver& driver, std::uint32_t parameter, const std::vector<float>& master) {
  const ParameterPlace& place = driver.core->layout().places[parameter];
  const DType dtype = driver.core->placement().param_dtype;
  std::vector<std::byte> stored(master.size() * dtype_size(dtype));
  static_cast<void>(kernels::narrow(master.data(), stored.data(), dtype, master.size()));
  std::vector<float> expected(master.size());
  kernels::expand(stored.data(), dtype, expected.data(), master.size());
  ASSERT_EQ(error_of(driver.core->begin_evaluation()), "");
  ASSERT_EQ(error_of(driver.core->enter({place.unit})), "");
  const auto* gathered = reinterpret_cast<const float*>(driver.core->data(place.unit));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), gathered + place.first)) << parameter;
  ASSERT_EQ(error_of(driver.core->leave({place.unit})), "");
  ASSERT_EQ(error_of(driver.core->end_evaluation(false)), "");
}

TEST(StepCoreState, WhatIsWrittenIsReadAndComputedWithAndNothingElseChanges) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    std::string digest;
    for (const Case& run :
         {Case{.dtype = dtype}, Case{.dtype = dtype, .split_master = false},
          Case{.dtype = dtype, .home = Offload::Cpu, .host_more = 1 << 20, .sub_group = 8192},
          Case{.dtype = dtype, .host_more = 60'000, .sub_group = 4096}}) {
      for (const std::uint64_t persistence : {0, 100'000}) {
        Driver driver(run, make_small_model(24, 16, 3), [&](Config& config) {
          config.zero.param_persistence_threshold = persistence;
        });
        driver.fill();
        driver.step(0);
        driver.step(1);
        auto expected = all_state(driver);
        for (const std::uint32_t parameter : {0u, 2u, 5u}) {
          for (const StateKind kind : kinds) {
            auto& values = expected[parameter * 3 + static_cast<std::size_t>(kind)];
            values = made_up(values.size(), parameter);
            write(driver, parameter, kind, values);
            ASSERT_EQ(all_state(driver), expected) << parameter;
          }
          expect_gathered(driver, parameter, expected[parameter * 3]);
        }
        driver.micro_batch(70);  // between two micro-batches of a step, too
        write(driver, 2, StateKind::Master, made_up(expected[6].size(), 9));
        driver.micro_batch(71);
        ASSERT_EQ(error_of(driver.core->step()), "");
        driver.step(8);
        if (digest.empty()) digest = driver.digest();
        EXPECT_EQ(driver.digest(), digest) << dtype_name(dtype);
      }
    }
  }
}

TEST(StepCoreState, OutOfOrderItIsRefusedAndChangesNothing) {
  Driver driver({.dtype = DType::BFloat16});
  driver.fill();
  driver.step(0);
  const std::string before = driver.digest();
  const auto zeros = [](std::uint64_t, std::span<float> piece) {
    std::fill(piece.begin(), piece.end(), 0.0f);
  };
  driver.forward();
  const auto refused = driver.core->write_state(0, StateKind::Master, zeros);
  EXPECT_NE(error_of(refused).find("write_state"), std::string::npos) << error_of(refused);
  ASSERT_EQ(error_of(driver.core->abandon_step()), "");
  EXPECT_EQ(driver.digest(), before);
}

TEST(StepCoreState, GradientsOfTheStepSoFarAreReadAndStayAsTheyAre) {
  std::string digest;
  for (const Case& run : {Case{}, Case{.home = Offload::Cpu, .host_more = 1 << 20},
                          Case{.host_more = 60'000, .sub_group = 4096}}) {
    Driver plain(run);
    plain.fill();
    for (std::uint64_t step = 0; step < 2; ++step) plain.step(step);
    Driver driver(run);
    driver.fill();
    driver.step(0);
    std::vector<float> read;
    const auto sink = [&](std::span<const float> piece) {
      read.insert(read.end(), piece.begin(), piece.end());
      return Result<void>();
    };
    const auto& parameters = driver.core->shape().parameters;
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
      EXPECT_FALSE(micro == 0 && driver.core->read_gradient(1, sink).value());
      driver.forward();
      EXPECT_EQ(driver.core->read_gradient(1, sink).value(), micro > 0);
      driver.backward(10 + micro, 1.0, {.last = false, .learning_rate = {}, .losses = {}});
      for (std::uint32_t parameter = 1; parameter < parameters.size(); ++parameter) {
        std::vector<float> expected =
            Driver::numbers(10, parameter, parameters[parameter].numel(), 1.0);
        const auto second = Driver::numbers(11, parameter, expected.size(), 1.0);
        for (std::size_t i = 0; micro == 1 && i < expected.size(); ++i) expected[i] += second[i];
        read.clear();
        const auto some = driver.core->read_gradient(parameter, sink);
        ASSERT_EQ(error_of(some), "");
        ASSERT_TRUE(*some) << parameter;
        ASSERT_EQ(read, expected) << parameter;
      }
    }
    ASSERT_EQ(error_of(driver.core->step()), "");
    EXPECT_FALSE(driver.core->read_gradient(1, sink).value());
    EXPECT_EQ(driver.digest(), plain.digest());
    if (digest.empty()) digest = driver.digest();
    EXPECT_EQ(driver.digest(), digest);
  }
}

TEST(StepCoreState, AGradientThatIsReplacedIsThatOfTheStepAndIsAddedTo) {
  std::string digest;
  for (const Case& run : {Case{}, Case{.home = Offload::Cpu, .host_more = 1 << 20},
                          Case{.host_more = 60'000, .sub_group = 4096}}) {
    Driver driver(run);
    driver.fill();
    driver.step(0);
    const auto& parameters = driver.core->shape().parameters;
    const auto replace = [&](std::uint32_t parameter, std::uint64_t seed) {
      auto values = Driver::numbers(seed, parameter, parameters[parameter].numel(), 1.0);
      return driver.core->write_gradient({parameter, values.data()}).value();
    };
    const auto expect_read = [&](std::uint32_t parameter, std::vector<std::uint64_t> seeds) {
      std::vector<float> expected(parameters[parameter].numel());
      for (const std::uint64_t seed : seeds) {
        const auto some = Driver::numbers(seed, parameter, expected.size(), 1.0);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += some[i];
      }
      std::vector<float> read;
      const auto sink = [&](std::span<const float> piece) {
        read.insert(read.end(), piece.begin(), piece.end());
        return Result<void>();
      };
      ASSERT_TRUE(driver.core->read_gradient(parameter, sink).value());
      EXPECT_EQ(read, expected) << parameter;
    };
    EXPECT_FALSE(replace(2, 7));  // no gradient exists yet
    driver.forward();
    driver.backward(10, 1.0, {.last = false, .learning_rate = {}, .losses = {}});
    EXPECT_TRUE(replace(2, 7));
    expect_read(2, {7});
    expect_read(1, {10});
    driver.forward();
    driver.backward(11, 1.0, {.last = false, .learning_rate = {}, .losses = {}});
    expect_read(2, {7, 11});
    EXPECT_TRUE(replace(3, 8));
    expect_read(3, {8});
    ASSERT_EQ(error_of(driver.core->step()), "");
    if (digest.empty()) digest = driver.digest();
    EXPECT_EQ(driver.digest(), digest);
  }
}

TEST(StepCoreState, AFrozenParameterHasWeightsAlone) {
  SmallModel model = make_small_model(24, 16, 3);
  model.parameters[2].trainable = false;
  Driver driver({.dtype = DType::BFloat16}, model);
  driver.fill();
  driver.step(0);
  const std::vector<float> values(driver.read(2).size(), 1.5f);
  write(driver, 2, StateKind::Master, values);
  EXPECT_EQ(driver.read(2), values);
  expect_gathered(driver, 2, values);
  const auto nothing = [](std::uint64_t, std::span<float>) { ADD_FAILURE(); };
  const auto refused = driver.core->write_state(2, StateKind::ExpAvg, nothing);
  EXPECT_NE(error_of(refused).find("a frozen parameter has no moments"), std::string::npos);
  const auto no_gradient = driver.core->write_gradient({2, values.data()});
  EXPECT_NE(error_of(no_gradient).find("a frozen parameter has no gradient"), std::string::npos);
  driver.step(1);  // the error did not end the run
}

}  // namespace
}  // namespace artesian::zero3
