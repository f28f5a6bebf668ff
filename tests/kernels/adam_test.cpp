// Proves Adam right twice: the naive version against hand-computed steps and a double-precision
// run, and every SIMD target against the naive version bit for bit, on values, lengths and
// alignments that find mistakes.
#include "kernels/adam.h"

#include <cstring>
#include <type_traits>

#include "tests/kernels/values.h"

namespace artesian::kernels {
namespace {

static_assert(std::is_same_v<decltype(&adam_step),
                             void (*)(const AdamArrays&, std::uint64_t, const AdamStep&) noexcept>,
              "counts have 64 bits");

/// One slice's arrays with guard elements on both sides, which a step must leave alone.
struct Slice {
  static constexpr std::uint64_t guard = 20;
  std::vector<unsigned char> param, exp_avg, exp_avg_sq, grad, param_out;
  DType grad_dtype, param_out_dtype;
  std::uint64_t offset;

  Slice(std::uint64_t count, std::uint64_t offset_elements, DType grad_type, DType out_type)
      : grad_dtype(grad_type), param_out_dtype(out_type), offset(offset_elements) {
    const std::uint64_t n = count + guard;
    auto squares = mixed_values(n, 3);
    for (auto& square : squares) square = std::fabs(square);
    param = array_of(mixed_values(n, 1), DType::Float32, offset);
    exp_avg = array_of(mixed_values(n, 2), DType::Float32, offset);
    exp_avg_sq = array_of(squares, DType::Float32, offset);
    grad = array_of(mixed_values(n, 4), grad_dtype, offset);
    param_out = array_of(std::vector<float>(n, 7.0f), param_out_dtype, offset);
  }

  AdamArrays arrays(std::uint64_t first = 0) {
    const auto at = [&](std::vector<unsigned char>& bytes, DType dtype) {
      return static_cast<void*>(bytes.data() + (offset + first) * dtype_size(dtype));
    };
    return {.param = static_cast<float*>(at(param, DType::Float32)),
            .exp_avg = static_cast<float*>(at(exp_avg, DType::Float32)),
            .exp_avg_sq = static_cast<float*>(at(exp_avg_sq, DType::Float32)),
            .grad = at(grad, grad_dtype),
            .grad_dtype = grad_dtype,
            .param_out = at(param_out, param_out_dtype),
            .param_out_dtype = param_out_dtype};
  }
};

void expect_same(const Slice& a, const Slice& b) {
  EXPECT_TRUE(same_arrays(a.param, b.param, DType::Float32));
  EXPECT_TRUE(same_arrays(a.exp_avg, b.exp_avg, DType::Float32));
  EXPECT_TRUE(same_arrays(a.exp_avg_sq, b.exp_avg_sq, DType::Float32));
  EXPECT_TRUE(same_arrays(a.param_out, b.param_out, a.param_out_dtype));
  EXPECT_EQ(a.grad, b.grad);
}

AdamStep ordinary_step(AdamMode mode) {
  return make_adam_step(
      {.mode = mode, .learning_rate = 1e-2f, .weight_decay = 0.1f, .grad_multiplier = 1.0f / 1024},
      3, true);
}

constexpr DType dtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};

class AdamOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(AdamOnTarget);

TEST_P(AdamOnTarget, EqualsTheNaiveVersionBitForBit) {
  for (const AdamMode mode : {AdamMode::AdamW, AdamMode::L2}) {
    const AdamStep step = ordinary_step(mode);
    for (const DType grad_dtype : dtypes) {
      for (const DType out_dtype : dtypes) {
        for (const std::uint64_t count : counts) {
          Slice fast(count, count % 4, grad_dtype, out_dtype);
          Slice naive = fast;
          adam_step(fast.arrays(), count, step);
          adam_step_naive(naive.arrays(), count, step);
          expect_same(fast, naive);
          if (HasFailure()) FAIL() << dtype_name(grad_dtype) << dtype_name(out_dtype) << count;
        }
      }
    }
  }
}

TEST_P(AdamOnTarget, OutputIsOptionalAndMayBeTheParameter) {
  const AdamStep step = ordinary_step(AdamMode::AdamW);
  Slice with(1003, 1, DType::Float16, DType::Float32);
  Slice without = with;
  Slice aliased = with;
  adam_step(with.arrays(), 1003, step);
  AdamArrays arrays = without.arrays();
  arrays.param_out = nullptr;
  adam_step(arrays, 1003, step);
  arrays = aliased.arrays();
  arrays.param_out = arrays.param;
  adam_step(arrays, 1003, step);
  EXPECT_EQ(with.param, without.param);
  EXPECT_EQ(with.param, aliased.param);
  EXPECT_EQ(with.exp_avg_sq, aliased.exp_avg_sq);
  EXPECT_EQ(std::memcmp(with.param_out.data() + 4, with.param.data() + 4, 1003 * 4), 0);
}

TEST_P(AdamOnTarget, TheCutIntoSlicesDoesNotChangeABit) {
  const AdamStep step = ordinary_step(AdamMode::L2);
  Slice whole(5000, 0, DType::BFloat16, DType::BFloat16);
  Slice cut = whole;
  adam_step(whole.arrays(), 5000, step);
  std::uint64_t first = 0;
  for (std::uint64_t piece = 1; first < 5000; piece = piece * 3 + 1) {
    const std::uint64_t count = std::min<std::uint64_t>(piece, 5000 - first);
    adam_step(cut.arrays(first), count, step);
    first += count;
  }
  // Not the bits of a NaN. If a compiler builds one loop with SIMD and one for the rest, as g++ 13
  // does with EMU128, each may order the operands of a sum in its own way, and the first operand's
  // NaN is kept.
  expect_same(whole, cut);
}

TEST_P(AdamOnTarget, FollowsADoublePrecisionRun) {
  constexpr std::uint64_t n = 1000;
  constexpr double tolerance = 1e-4;  // relative to a parameter's total movement, plus 1e-6
  auto param = ordinary_values(n, 11);
  std::vector<float> exp_avg(n), exp_avg_sq(n);
  const auto start = param;
  std::vector<double> p(param.begin(), param.end()), m(n), v(n);
  const AdamStep constants = {.learning_rate = 1e-2f, .weight_decay = 0.05f};
  for (std::uint64_t t = 1; t <= 100; ++t) {
    const auto grad = ordinary_values(n, 100 + t);
    const AdamStep step = make_adam_step(constants, t, true);
    adam_step({param.data(), exp_avg.data(), exp_avg_sq.data(), grad.data()}, n, step);
    const double b1 = constants.beta1, b2 = constants.beta2, lr = constants.learning_rate;
    const double steps = static_cast<double>(t);
    for (std::uint64_t i = 0; i < n; ++i) {
      const double g = grad[i];
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      p[i] -= lr * constants.weight_decay * p[i];
      const double denominator = std::sqrt(v[i] / (1 - std::pow(b2, steps))) + 1e-8;
      p[i] -= lr * (m[i] / (1 - std::pow(b1, steps))) / denominator;
    }
  }
  double share = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double allowed = tolerance * std::fabs(p[i] - start[i]) + 1e-6 * (1 + std::fabs(p[i]));
    share = std::max(share, std::fabs(p[i] - param[i]) / allowed);
  }
  std::printf("share of the tolerance used: %.3f (seed %llu)\n", share,
              static_cast<unsigned long long>(test_seed()));
  EXPECT_LE(share, 1.0);
}

/// The parameter after one step from p = 1, m = v = 0 with gradient 0.5.
float first_step(AdamMode mode, float weight_decay) {
  float param = 1.0f, exp_avg = 0.0f, exp_avg_sq = 0.0f;
  const float grad = 0.5f;
  const AdamStep constants = {.mode = mode, .learning_rate = 0.1f, .weight_decay = weight_decay};
  adam_step_naive({&param, &exp_avg, &exp_avg_sq, &grad}, 1, make_adam_step(constants, 1, true));
  return param;
}

TEST(Adam, FirstStepByHand) {
  // Corrected m is 0.5 and corrected v 0.25: the step is 0.1 * 0.5 / 0.5.
  EXPECT_NEAR(first_step(AdamMode::AdamW, 0.0f), 0.9f, 1e-6f);
  // Decoupled decay first subtracts 0.1 * 0.1 * 1.
  EXPECT_NEAR(first_step(AdamMode::AdamW, 0.1f), 0.89f, 1e-6f);
  // In L2 mode the gradient is 0.6, and a first step does not depend on the gradient's size.
  EXPECT_NEAR(first_step(AdamMode::L2, 0.1f), 0.9f, 1e-6f);
}

TEST(Adam, SecondStepByHand) {
  float param = 1.0f, exp_avg = 0.1f, exp_avg_sq = 0.04f;
  const float grad = 8.0f;  // 1.0 after unscaling
  AdamStep constants = {.learning_rate = 0.5f, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 1.0f};
  constants.grad_multiplier = 0.125f;
  const AdamStep step = make_adam_step(constants, 2, true);
  adam_step_naive({&param, &exp_avg, &exp_avg_sq, &grad}, 1, step);
  EXPECT_FLOAT_EQ(exp_avg, 0.55f);     // 0.5 * 0.1 + 0.5 * 1
  EXPECT_FLOAT_EQ(exp_avg_sq, 0.28f);  // 0.75 * 0.04 + 0.25 * 1
  // m^ = 0.55 / 0.75, v^ = 0.28 / 0.4375 = 0.64: p = 1 - 0.5 * 0.7333.. / (0.8 + 1)
  EXPECT_FLOAT_EQ(param, 0.7962963f);
}

TEST(Adam, BiasCorrectionCanBeOff) {
  const AdamStep step = make_adam_step({.learning_rate = 0.25f}, 5, false);
  EXPECT_EQ(step.step_size, 0.25f);
  EXPECT_EQ(step.denominator_multiplier, 1.0f);
}

TEST(Adam, PowersAreAccurateForAnyStep) {
  for (const std::uint64_t t : {1ull, 2ull, 3ull, 1000ull, 123457ull, 1ull << 40}) {
    const AdamStep step = make_adam_step({.learning_rate = 1.0f}, t, true);
    const double power1 = std::pow(static_cast<double>(0.9f), static_cast<double>(t));
    const double power2 = std::pow(static_cast<double>(0.999f), static_cast<double>(t));
    EXPECT_FLOAT_EQ(step.step_size, static_cast<float>(1 / (1 - power1))) << t;
    EXPECT_FLOAT_EQ(step.denominator_multiplier, static_cast<float>(1 / std::sqrt(1 - power2)));
  }
}

}  // namespace
}  // namespace artesian::kernels
