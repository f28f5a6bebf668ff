// Proves the accumulators' exact rules against a naive version in plain arrays, bit for bit, in
// host memory and spilled to NVMe: rounding once a micro-batch, rows summed in order and added
// once, norm blocks that sub-groups cut, and that nothing of one step is left in the next.
#include "zero3/gradients.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "base/random.h"
#include "kernels/gradient.h"
#include "tests/zero3/tiers.h"
#include "zero3/sub_group_stream.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

constexpr std::int64_t vocab = 1500;
constexpr std::int64_t hidden = 64;
constexpr std::uint64_t positions = 40;  // of one micro-batch

std::vector<float> random_floats(std::uint64_t count, std::uint64_t stream) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto word = static_cast<std::int64_t>(random_word(3, stream, i) >> 40);
    values[i] = static_cast<float>(word - (1 << 23)) * 0x1p-30f;
  }
  return values;
}

/// An embedding that shares its unit with the positions: untied, both are used once.
SmallModel make_model(bool tied) {
  SmallModel model = make_small_model(vocab, hidden, 1, tied);
  model.parameters.push_back({.name = "wpe.weight", .shape = {32, hidden}});
  const auto wpe = static_cast<std::uint32_t>(model.parameters.size() - 1);
  model.stages.front().parameters.push_back(wpe);
  return model;
}

class GradientsIn : public testing::TestWithParam<std::tuple<Tier, DType, bool>> {
 protected:
  GradientsIn()
      : tiers_(
            make_model(std::get<2>(GetParam())),
            {.dtype = std::get<1>(GetParam()), .grad = std::get<0>(GetParam()), .sub_group = 6144}),
        gradients_(*tiers_.state) {
    for (const auto& parameter : tiers_.model.parameters) {
      expected_.emplace_back(parameter.numel() * size());
    }
  }

  DType dtype() const { return std::get<1>(GetParam()); }
  std::uint64_t size() const { return dtype_size(dtype()); }
  void train_step(std::uint64_t step, std::uint64_t micro_batches);
  void add_stage(const StageSpec& stage, std::uint64_t stream, bool first);
  void add_rows(std::uint64_t step, std::uint64_t micro_batches);
  std::vector<std::byte> accumulated(std::uint32_t parameter);
  void expect_norm();

  Tiers tiers_;
  Gradients gradients_;
  std::vector<std::vector<std::byte>> expected_;  // by parameter
};

/// One stage's backward: what has a gradient but for the looked-up parameter.
void GradientsIn::add_stage(const StageSpec& stage, std::uint64_t stream, bool first) {
  const auto how = first ? kernels::Accumulate::Set : kernels::Accumulate::Add;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<ParameterGradient>> by_unit(tiers_.layout().units.size());
  for (const auto parameter : stage.parameters) {
    if (stage.lookup == parameter) continue;
    const std::uint64_t count = tiers_.model.parameters[parameter].numel();
    values.push_back(random_floats(count, stream * 100 + parameter));
    by_unit[tiers_.layout().places[parameter].unit].push_back({parameter, values.back().data()});
    kernels::accumulate_gradient_naive(expected_[parameter].data(), dtype(), values.back().data(),
                                       dtype(), count, how);
  }
  for (std::uint32_t unit = 0; unit < by_unit.size(); ++unit) {
    if (by_unit[unit].empty()) continue;
    ASSERT_TRUE(gradients_.add(unit, by_unit[unit]).has_value());
  }
}

/// The embedding's rows; some come often, most never.
void GradientsIn::add_rows(std::uint64_t step, std::uint64_t micro_batches) {
  const std::uint64_t count = micro_batches * positions;
  const auto values = random_floats(count * hidden, 7000 + step);
  std::vector<std::int64_t> rows;
  std::vector<const float*> pointers;
  std::vector<float> sums(vocab * hidden, 0.0f);
  std::vector<bool> met(vocab, false);
  for (std::uint64_t i = 0; i < count; ++i) {
    rows.push_back(static_cast<std::int64_t>(random_word(4, step, i) % (i % 2 == 0 ? 5 : vocab)));
    pointers.push_back(values.data() + i * hidden);
    const auto row = static_cast<std::size_t>(rows.back());
    met[row] = true;
    for (std::size_t k = 0; k < hidden; ++k) sums[row * hidden + k] += pointers.back()[k];
  }
  for (std::size_t row = 0; row < vocab; ++row) {
    if (!met[row]) continue;
    kernels::accumulate_gradient_naive(expected_[0].data() + row * hidden * size(), dtype(),
                                       sums.data() + row * hidden, dtype(), hidden,
                                       kernels::Accumulate::Add);
  }
  ASSERT_TRUE(gradients_.add_rows(0, rows, pointers, hidden).has_value());
}

void GradientsIn::train_step(std::uint64_t step, std::uint64_t micro_batches) {
  gradients_.begin_step();
  std::fill(expected_[0].begin(), expected_[0].end(), std::byte{0});  // an untied one has rows only
  const auto& stages = tiers_.model.stages;
  for (std::uint64_t micro = 0; micro < micro_batches; ++micro) {
    for (std::size_t stage = stages.size(); stage-- > 0;) {
      add_stage(stages[stage], step * 10 + micro, micro == 0);
    }
  }
  add_rows(step, micro_batches);
  ASSERT_TRUE(gradients_.complete().has_value());
}

/// A parameter's accumulator, as the optimizer would read it.
std::vector<std::byte> GradientsIn::accumulated(std::uint32_t parameter) {
  const ParameterPlace& place = tiers_.layout().places[parameter];
  std::vector<std::byte> found(place.numel * size());
  SubGroupStream stream(*tiers_.state);
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const std::uint64_t begin = std::max(group.first, place.first);
    const std::uint64_t end = std::min(group.first + group.count, place.first + place.numel);
    std::memcpy(found.data() + (begin - place.first) * size(),
                group.grad + (begin - group.first) * size(), (end - begin) * size());
    return {};
  };
  EXPECT_TRUE(stream.run_range(place.unit, place.first, place.numel, {.read_grad = true}, body)
                  .has_value());
  return found;
}

void GradientsIn::expect_norm() {
  double sum = 0.0;
  for (std::size_t parameter = 0; parameter < expected_.size(); ++parameter) {
    const std::uint64_t count = tiers_.model.parameters[parameter].numel();
    for (std::uint64_t first = 0; first < count; first += kernels::norm_block) {
      const std::uint64_t length = std::min(kernels::norm_block, count - first);
      sum +=
          kernels::sum_squares_naive(expected_[parameter].data() + first * size(), dtype(), length)
              .sum;
    }
  }
  const GradientNorm norm = gradients_.norm().value();
  EXPECT_TRUE(norm.finite);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(norm.sum_squares), std::bit_cast<std::uint64_t>(sum));
}

TEST_P(GradientsIn, EqualTheNaiveVersionStepAfterStep) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    train_step(step, 1 + step);
    for (std::uint32_t parameter = 0; parameter < expected_.size(); ++parameter) {
      EXPECT_EQ(accumulated(parameter), expected_[parameter])
          << "step " << step << ", " << tiers_.model.parameters[parameter].name;
    }
    expect_norm();
  }
}

TEST_P(GradientsIn, TheFirstParameterThatIsNotFiniteIsNamed) {
  train_step(0, 1);
  gradients_.begin_step();
  const StageSpec& block = tiers_.model.stages[1];
  const std::uint32_t unit = tiers_.layout().places[block.parameters.front()].unit;
  std::vector<std::vector<float>> values;
  std::vector<ParameterGradient> list;
  for (const auto parameter : block.parameters) {
    values.push_back(random_floats(tiers_.model.parameters[parameter].numel(), parameter));
    list.push_back({parameter, values.back().data()});
  }
  values[1].back() = std::numeric_limits<float>::infinity();
  values[3].front() = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(gradients_.add(unit, list).has_value());
  ASSERT_TRUE(gradients_.complete().has_value());
  const GradientNorm norm = gradients_.norm().value();
  EXPECT_FALSE(norm.finite);
  EXPECT_EQ(norm.bad_parameter, block.parameters[1]);
}

TEST_P(GradientsIn, WithoutAnyAreZero) {
  train_step(0, 2);
  gradients_.begin_step();
  ASSERT_TRUE(gradients_.complete().has_value());
  EXPECT_EQ(gradients_.norm().value().sum_squares, 0.0);
  EXPECT_EQ(accumulated(0), std::vector<std::byte>(expected_[0].size()));
}

/// Knows how long whoever uses it was kept waiting.
class TimedEngine final : public aio::Engine {
 public:
  explicit TimedEngine(std::unique_ptr<aio::Engine> engine) : engine_(std::move(engine)) {}
  void submit(std::span<aio::Completion* const> completions) noexcept override {
    engine_->submit(completions);
  }
  Result<void> wait(aio::Completion& completion, Deadline deadline) noexcept override {
    const std::uint64_t before = system_clock().now_ns();
    auto waited = engine_->wait(completion, deadline);
    waited_ns += system_clock().now_ns() - before;
    return waited;
  }
  void cancel(aio::Completion& completion) noexcept override { engine_->cancel(completion); }
  void abandon(aio::Completion& completion) noexcept override { engine_->abandon(completion); }
  Result<void> drain(Deadline deadline) noexcept override { return engine_->drain(deadline); }
  aio::EngineStatistics statistics() const noexcept override { return engine_->statistics(); }
  aio::EngineKind kind() const noexcept override { return engine_->kind(); }

  std::uint64_t waited_ns = 0;

 private:
  std::unique_ptr<aio::Engine> engine_;
};

TEST(SpilledGradients, CountTheWaitForTheirWrites) {
  auto timed = std::make_unique<TimedEngine>(
      aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value());
  const TimedEngine& engine = *timed;
  // One sub-group a unit: what is waited for is the write at the end alone.
  const Tiers tiers(make_model(false), {.grad = Tier::Nvme, .sub_group = 1 << 18},
                    std::move(timed));
  Gradients gradients(*tiers.state);
  gradients.begin_step();
  const std::uint64_t before = engine.waited_ns;
  for (std::uint32_t unit = 0; unit < tiers.layout().units.size(); ++unit) {
    ASSERT_EQ(tiers.state->placement().sub_group_count(unit), 1u);
    ASSERT_TRUE(gradients.add(unit, {}).has_value());
  }
  const double waited = static_cast<double>(engine.waited_ns - before) * 1e-9;
  EXPECT_GT(waited, 0.0);
  EXPECT_GE(gradients.wait_seconds(), waited * (1 - 1e-9));
}

std::string case_name(const testing::TestParamInfo<GradientsIn::ParamType>& info) {
  const auto [tier, dtype, tied] = info.param;
  return std::string(tier == Tier::Host ? "Host" : "Spilled") + "_" + dtype_name(dtype) +
         (tied ? "_Tied" : "_Untied");
}

INSTANTIATE_TEST_SUITE_P(All, GradientsIn,
                         testing::Combine(testing::Values(Tier::Host, Tier::Nvme),
                                          testing::Values(DType::Float32, DType::BFloat16,
                                                          DType::Float16),
                                          testing::Bool()),
                         case_name);

}  // namespace
}  // namespace artesian::zero3
