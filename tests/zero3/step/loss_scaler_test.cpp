// Proves the loss scaler equal to DeepSpeed's state machine: sequences worked out by hand, and
// random runs against an independent transcription of the published pseudo code (below, with its
// own state and its own arithmetic: exponents instead of scales).
#include "zero3/step/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace artesian::zero3 {
namespace {

LossScaleConfig small_config() {
  LossScaleConfig config;
  config.initial_scale_power = 10;
  config.loss_scale_window = 3;
  config.hysteresis = 2;
  return config;
}

// 'x' = overflow, '.' = clean. Returns log2 of the scale that each step used, then the final one.
std::vector<int> powers(const LossScaleConfig& config, const std::string& steps) {
  LossScaler scaler(DType::Float16, config);
  std::vector<int> seen;
  for (const char step : steps) {
    seen.push_back(static_cast<int>(std::lround(std::log2(scaler.scale()))));
    EXPECT_TRUE(scaler.update(step == 'x').has_value());
  }
  seen.push_back(static_cast<int>(std::lround(std::log2(scaler.scale()))));
  return seen;
}

using Powers = std::vector<int>;

TEST(LossScaler, FirstGrowthNeedsWindowPlusOneCleanStepsLaterOnesWindow) {
  // it = 0..3: stable = 0,1,2,3 -> grows after the 4th; then after every 3rd.
  EXPECT_EQ(powers(small_config(), "..........."),
            (Powers{10, 10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13}));
}

TEST(LossScaler, DefaultWindowGrowsAfter1001Steps) {
  LossScaler scaler(DType::Float16, LossScaleConfig{});
  for (int step = 0; step < 1000; ++step) ASSERT_TRUE(scaler.update(false).has_value());
  EXPECT_EQ(scaler.scale(), 65536.0);
  ASSERT_TRUE(scaler.update(false).has_value());
  EXPECT_EQ(scaler.scale(), 131072.0);
}

TEST(LossScaler, HysteresisToleratesOneOverflowThenHalvesEachTime) {
  // The first overflow uses up the hysteresis; it is not refilled by halving.
  EXPECT_EQ(powers(small_config(), "xxxx"), (Powers{10, 10, 9, 8, 7}));
}

TEST(LossScaler, HysteresisOneHalvesAtOnce) {
  LossScaleConfig config = small_config();
  config.hysteresis = 1;
  EXPECT_EQ(powers(config, "xx."), (Powers{10, 9, 8, 8}));
}

TEST(LossScaler, HysteresisThree) {
  LossScaleConfig config = small_config();
  config.hysteresis = 3;
  EXPECT_EQ(powers(config, "xxxx"), (Powers{10, 10, 10, 9, 8}));
}

TEST(LossScaler, CleanStepsDoNotRefillUnlessConsecutive) {
  EXPECT_EQ(powers(small_config(), "x.x.x"), (Powers{10, 10, 10, 9, 9, 8}));
  LossScaleConfig config = small_config();
  config.consecutive_hysteresis = true;
  EXPECT_EQ(powers(config, "x.x.x"), (Powers{10, 10, 10, 10, 10, 10}));
  EXPECT_EQ(powers(config, "xx.xx"), (Powers{10, 10, 9, 9, 9, 8}));
}

TEST(LossScaler, GrowthRefillsHysteresis) {
  // x uses the hysteresis up; 4 clean steps grow and refill; the next x is tolerated again.
  EXPECT_EQ(powers(small_config(), "x....xx"), (Powers{10, 10, 10, 10, 10, 11, 11, 10}));
}

TEST(LossScaler, OverflowRestartsTheWindow) {
  EXPECT_EQ(powers(small_config(), "...x....."), (Powers{10, 10, 10, 10, 10, 10, 10, 10, 11, 11}));
}

TEST(LossScaler, WindowOneGrowsEveryStepFromTheSecond) {
  LossScaleConfig config = small_config();
  config.loss_scale_window = 1;
  EXPECT_EQ(powers(config, "....x.."), (Powers{10, 10, 11, 12, 13, 13, 13, 14}));
}

TEST(LossScaler, StopsAtTheMinimumWithAnError) {
  LossScaleConfig config = small_config();
  config.initial_scale_power = 1;
  config.hysteresis = 1;
  LossScaler scaler(DType::Float16, config);
  ASSERT_TRUE(scaler.update(true).has_value());
  EXPECT_EQ(scaler.scale(), 1.0);
  const Result<void> stopped = scaler.update(true);
  ASSERT_FALSE(stopped.has_value());
  EXPECT_EQ(stopped.error().code, ErrorCode::Exhausted);
  EXPECT_EQ(
      stopped.error().message,
      "at the minimum loss scale 1; lower fp16.min_loss_scale or the learning rate, or use bf16");
}

TEST(LossScaler, MinimumOf1eMinus10IsReachedExactly) {
  LossScaleConfig config = small_config();
  config.initial_scale_power = 0;
  config.hysteresis = 1;
  config.min_loss_scale = 1e-10;
  LossScaler scaler(DType::Float16, config);
  int halvings = 0;
  while (scaler.scale() != 1e-10) {
    ASSERT_TRUE(scaler.update(true).has_value());
    ASSERT_LT(++halvings, 40);
  }
  EXPECT_EQ(halvings, 34);  // 2^-33 = 1.16e-10 is above, 2^-34 = 5.8e-11 below
  EXPECT_FALSE(scaler.update(true).has_value());
}

TEST(LossScaler, StaticScaleNeverMoves) {
  LossScaleConfig config = small_config();
  config.loss_scale = 128.0;
  EXPECT_EQ(powers(config, "xxxx...."), (Powers{7, 7, 7, 7, 7, 7, 7, 7, 7}));
}

TEST(LossScaler, OtherTypesScaleByOne) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    LossScaleConfig config = small_config();
    config.loss_scale = 128.0;
    LossScaler scaler(dtype, config);
    EXPECT_EQ(scaler.scale(), 1.0);
    ASSERT_TRUE(scaler.update(true).has_value());
    ASSERT_TRUE(scaler.update(true).has_value());
    EXPECT_EQ(scaler.scale(), 1.0);
  }
}

TEST(LossScaler, GrowthStaysFinite) {
  LossScaleConfig config = small_config();
  config.initial_scale_power = 127;
  config.loss_scale_window = 1;
  config.hysteresis = 1;
  LossScaler scaler(DType::Float16, config);
  for (int step = 0; step < 2000; ++step) ASSERT_TRUE(scaler.update(false).has_value());
  EXPECT_EQ(scaler.scale(), 0x1p1023);
  ASSERT_TRUE(scaler.update(true).has_value());
  EXPECT_EQ(scaler.scale(), 0x1p1022);
}

// The pseudo code of deepspeed/runtime/fp16/loss_scaler.py, line by line, on the exponent.
struct Transcription {
  int power, minimum_power;
  int H, hyst, window;
  bool consecutive;
  int it = 0, last = -1;

  bool step(bool overflow) {  // false: "already at minimum"
    if (overflow) {
      if (H == 1 || hyst == 1) {
        if (power == minimum_power) return false;
        power = power - 1 > minimum_power ? power - 1 : minimum_power;
      } else {
        hyst = hyst - 1;
      }
      last = it;
    } else {
      if (consecutive) hyst = H;
      const int s = it - last - 1;
      if (s > 0 && s % window == 0) {
        if (!consecutive) hyst = H;
        power = power + 1;
      }
    }
    it = it + 1;
    return true;
  }
};

TEST(LossScaler, EqualsTheTranscriptionOverRandomRuns) {
  const auto seed = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  SCOPED_TRACE("repeat with --gtest_random_seed=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  int growths = 0, halvings = 0, stops = 0;
  for (int run = 0; run < 400; ++run) {
    LossScaleConfig config;
    config.initial_scale_power = below(25);
    config.loss_scale_window = 1 + below(6);
    config.hysteresis = 1 + below(4);
    config.consecutive_hysteresis = below(2) == 0;
    config.min_loss_scale = below(2) == 0 ? 1.0 : 0x1p-6;
    const double overflow_share = below(100) / 100.0;
    LossScaler scaler(DType::Float16, config);
    Transcription expected{
        static_cast<int>(config.initial_scale_power), config.min_loss_scale == 1.0 ? 0 : -6,
        static_cast<int>(config.hysteresis),          static_cast<int>(config.hysteresis),
        static_cast<int>(config.loss_scale_window),   config.consecutive_hysteresis};
    for (int step = 0; step < 100; ++step) {
      const bool overflow = below(1000) / 1000.0 < overflow_share;
      const int power = expected.power;
      const bool goes_on = expected.step(overflow);
      ASSERT_EQ(scaler.update(overflow).has_value(), goes_on) << run << " " << step;
      if (!goes_on) {
        ++stops;
        break;
      }
      growths += expected.power > power;
      halvings += expected.power < power;
      ASSERT_EQ(scaler.scale(), std::ldexp(1.0, expected.power)) << run << " " << step;
    }
  }
  EXPECT_GT(growths, 100);
  EXPECT_GT(halvings, 100);
  EXPECT_GT(stops, 10);
}

TEST(LossScaler, GoesOnFromItsStateAsIfNothingHadBeen) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 200; ++run) {
    LossScaleConfig config = small_config();
    config.consecutive_hysteresis = run % 2 == 1;
    config.hysteresis = 1 + static_cast<std::uint32_t>(run % 3);
    LossScaler whole(DType::Float16, config);
    const std::uint64_t cut = random() % 20;
    for (std::uint64_t step = 0; step < cut; ++step) {
      ASSERT_TRUE(whole.update(random() % 8 == 0).has_value());
    }
    LossScaler resumed(DType::Float16, config);
    resumed.restore(whole.state());
    for (int step = 0; step < 20; ++step) {
      const bool overflow = random() % 8 == 0;
      ASSERT_TRUE(whole.update(overflow).has_value() && resumed.update(overflow).has_value());
      ASSERT_EQ(resumed.state(), whole.state());
    }
  }
}

TEST(LossScaler, AStateDoesNotOverruleTheConfiguration) {
  LossScaleConfig config = small_config();
  config.loss_scale = 128.0;  // static
  LossScaler fixed(DType::Float16, config);
  fixed.restore({.scale = 4.0, .hysteresis_left = 9, .iteration = 5, .overflow_last = 2});
  EXPECT_EQ(fixed.scale(), 128.0);
  LossScaler dynamic(DType::Float16, small_config());
  dynamic.restore({.scale = 0.0, .hysteresis_left = 9, .iteration = 5, .overflow_last = 2});
  EXPECT_EQ(dynamic.scale(), small_config().min_loss_scale);
  EXPECT_EQ(dynamic.state().hysteresis_left, small_config().hysteresis);
}

}  // namespace
}  // namespace artesian::zero3
