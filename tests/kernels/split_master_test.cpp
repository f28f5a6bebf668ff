// Proves that a split master weight is restored bit for bit, whatever its value: every upper half
// of either sign with lower halves around every edge (all 2^32 patterns with ARTESIAN_SOAK=1), a
// NaN as a NaN. And that Adam on split weights gives the bits of Adam on whole ones, step after
// step, on every SIMD target and for every length.
#include "kernels/split_master.h"

#include <cstdlib>
#include <cstring>

#include "kernels/adam.h"
#include "tests/kernels/values.h"

namespace artesian::kernels {
namespace {

bool is_nan(std::uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

/// True if the pattern is restored, and the parameter is the one that the model would get.
bool survives(std::uint32_t bits, float exp_avg_sq) {
  const auto master = std::bit_cast<float>(bits);
  const SplitMaster split = split_master(master, exp_avg_sq);
  const JoinedMaster joined = join_master(split);
  const auto back = std::bit_cast<std::uint32_t>(joined.master);
  const bool same = is_nan(bits) ? is_nan(back) : back == bits;
  return same && split.high == float_to_bf16(master) &&
         std::bit_cast<std::uint32_t>(joined.exp_avg_sq) ==
             std::bit_cast<std::uint32_t>(exp_avg_sq);
}

std::vector<std::uint16_t> chosen_lows() {
  std::vector<std::uint16_t> lows{0,      1,      2,      3,      0x7ffe, 0x7fff,
                                  0x8000, 0x8001, 0x8002, 0xfffe, 0xffff};
  for (std::uint64_t draw = 0; draw < 21; ++draw) {
    lows.push_back(static_cast<std::uint16_t>(random_word(test_seed(), 81, draw)));
  }
  return lows;
}

TEST(SplitMaster, EveryPatternComesBack) {
  const bool all = std::getenv("ARTESIAN_SOAK") != nullptr;
  const auto chosen = chosen_lows();
  std::uint64_t ties = 0;
  for (std::uint32_t high = 0; high <= 0xffffu; ++high) {
    const std::uint32_t count = all ? 0x10000u : static_cast<std::uint32_t>(chosen.size());
    for (std::uint32_t index = 0; index < count; ++index) {
      const std::uint32_t low = all ? index : chosen[index];
      ties += low == 0x8000u ? 1 : 0;
      ASSERT_TRUE(survives(high << 16 | low, 0.0f)) << std::hex << high << " " << low;
    }
  }
  EXPECT_EQ(ties, 0x10000u);
}

TEST(SplitMaster, TheSecondMomentIsAsItWas) {
  for (const float moment : special_values()) {
    if (std::signbit(moment)) continue;  // it is a sum of squares
    for (const std::uint32_t bits : {0x3f808000u, 0x3f818000u, 0xbf808000u, 0x3f800001u}) {
      EXPECT_TRUE(survives(bits, moment)) << moment;
    }
  }
}

TEST(SplitMaster, TheBitIsOfTiesThatWereRoundedDownAndOfNothingElse) {
  const auto bit = [](std::uint32_t bits) {
    return std::signbit(split_master(std::bit_cast<float>(bits), 1.0f).exp_avg_sq);
  };
  EXPECT_TRUE(bit(0x3f808000u));
  EXPECT_TRUE(bit(0xbf808000u));
  EXPECT_FALSE(bit(0x3f818000u));  // to even is up
  EXPECT_FALSE(bit(0x3f807fffu));
  EXPECT_FALSE(bit(0x3f808001u));
}

/// Master weights in both forms, with the same moments and gradients.
struct Twins {
  std::vector<float> master, exp_avg, exp_avg_sq;      // whole
  std::vector<float> split_exp_avg, split_exp_avg_sq;  // split, as are
  std::vector<std::uint16_t> param, high, low;         // high and low
  std::vector<float> grad;

  explicit Twins(std::vector<float> masters)
      : master(std::move(masters)),
        exp_avg(master.size()),
        exp_avg_sq(master.size()),
        split_exp_avg(master.size()),
        split_exp_avg_sq(master.size()),
        param(master.size()),
        high(master.size()),
        low(master.size()),
        grad(master.size()) {
    for (std::size_t i = 0; i < master.size(); ++i) {
      const SplitMaster split = split_master(master[i], 0.0f);
      high[i] = split.high;
      low[i] = split.low;
      split_exp_avg_sq[i] = split.exp_avg_sq;
    }
  }

  AdamArrays whole() {
    return {.param = master.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .grad = grad.data(),
            .param_out = param.data(),
            .param_out_dtype = DType::BFloat16};
  }
  AdamArrays split() {
    return {.exp_avg = split_exp_avg.data(),
            .exp_avg_sq = split_exp_avg_sq.data(),
            .grad = grad.data(),
            .param_out = high.data(),
            .param_out_dtype = DType::BFloat16,
            .master_low = low.data()};
  }

  void expect_same() const {
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    for (std::size_t i = 0; i < master.size(); ++i) {
      const JoinedMaster joined = join_master({high[i], low[i], split_exp_avg_sq[i]});
      if (std::isnan(master[i])) {
        ASSERT_TRUE(std::isnan(joined.master)) << i;
      } else {
        ASSERT_EQ(bits(joined.master), bits(master[i])) << i;
        ASSERT_EQ(high[i], param[i]) << i;
      }
      if (std::isnan(exp_avg_sq[i])) {
        ASSERT_TRUE(std::isnan(joined.exp_avg_sq)) << i;
      } else {
        ASSERT_EQ(bits(joined.exp_avg_sq), bits(exp_avg_sq[i])) << i;
      }
      if (!std::isnan(exp_avg[i])) {
        ASSERT_EQ(bits(split_exp_avg[i]), bits(exp_avg[i])) << i;
      }
    }
  }
};

class SplitAdam : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(SplitAdam);

TEST_P(SplitAdam, EqualsAdamOnWholeWeightsForEveryLength) {
  for (const AdamMode mode : {AdamMode::AdamW, AdamMode::L2}) {
    for (const std::uint64_t count : counts) {
      Twins twins(mixed_values(count, 91));
      for (std::uint64_t step = 1; step <= 4; ++step) {
        twins.grad = mixed_values(count, 91 + step);
        const AdamStep constants = make_adam_step(
            {.mode = mode, .learning_rate = 1e-2f, .weight_decay = 0.1f}, step, true);
        adam_step(twins.whole(), count, constants);
        adam_step(twins.split(), count, constants);
        twins.expect_same();
        if (HasFatalFailure()) FAIL() << count << " elements, step " << step;
      }
    }
  }
}

/// First a step that changes no weight, on weights of which most are ties; then a real step.
TEST_P(SplitAdam, KeepsWeightsOfEveryUpperHalf) {
  constexpr std::uint16_t lows[] = {0x8000, 0x8000, 0x7fff, 0x8001, 0x8000, 0, 0xffff};
  std::vector<float> masters;
  for (std::uint32_t high = 0; high <= 0xffffu; ++high) {
    if ((high & 0x7f80u) == 0x7f80u) continue;  // the kernel need not keep 0 times infinity
    for (const std::uint16_t low : lows) masters.push_back(std::bit_cast<float>(high << 16 | low));
  }
  Twins twins(masters);
  const std::uint64_t count = masters.size();
  adam_step(twins.split(), count, {.mode = AdamMode::L2, .learning_rate = 0.0f});
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto joined = join_master({twins.high[i], twins.low[i], twins.split_exp_avg_sq[i]});
    ASSERT_EQ(std::bit_cast<std::uint32_t>(joined.master),
              std::bit_cast<std::uint32_t>(masters[i]));
  }
  twins.split_exp_avg = twins.exp_avg;
  twins.grad = ordinary_values(count, 96);
  const AdamStep step = make_adam_step({.learning_rate = 1e-3f}, 1, true);
  adam_step(twins.whole(), count, step);
  adam_step(twins.split(), count, step);
  twins.expect_same();
}

TEST_P(SplitAdam, EqualsTheNaiveVersionAndLeavesWhatIsBesideAlone) {
  for (const std::uint64_t count : counts) {
    Twins fast(mixed_values(count + 8, 97));
    fast.grad = mixed_values(count + 8, 98);
    Twins naive = fast;
    const Twins before = fast;
    const AdamStep step = make_adam_step({.learning_rate = 1e-2f, .weight_decay = 0.1f}, 3, true);
    adam_step(fast.split(), count, step);
    adam_step_naive(naive.split(), count, step);
    for (std::size_t i = 0; i < fast.master.size(); ++i) {
      const auto a = join_master({fast.high[i], fast.low[i], fast.split_exp_avg_sq[i]});
      const auto b = join_master({naive.high[i], naive.low[i], naive.split_exp_avg_sq[i]});
      if (!std::isnan(b.master)) {
        ASSERT_EQ(fast.high[i], naive.high[i]) << count << " " << i;
        ASSERT_EQ(fast.low[i], naive.low[i]) << count << " " << i;
      }
      ASSERT_EQ(std::isnan(a.master), std::isnan(b.master)) << count << " " << i;
      if (i < count) continue;
      ASSERT_EQ(fast.high[i], before.high[i]) << count;
      ASSERT_EQ(fast.low[i], before.low[i]) << count;
      ASSERT_EQ(std::signbit(fast.split_exp_avg_sq[i]), std::signbit(before.split_exp_avg_sq[i]));
    }
  }
}

}  // namespace
}  // namespace artesian::kernels
