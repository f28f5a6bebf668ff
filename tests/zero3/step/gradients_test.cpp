// Proves the accumulators' exact rules against a naive version in plain arrays, bit for bit, in
// host memory and spilled to NVMe: rounding once a micro-batch; rows summed in order and added
// once; leaves of the norm; gradients that arrive in parts, parameter by parameter, not at all, or
// as backward rounded them. Nothing of one step is left in the next.
#include "zero3/step/gradients.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <new>

#include "base/clock.h"
#include "base/random.h"
#include "kernels/cast.h"
#include "kernels/gradient.h"
#include "tests/support/backwards_executor.h"
#include "tests/support/simulated_engine.h"
#include "tests/zero3/tiers.h"
#include "zero3/step/sub_group_stream.h"

namespace {
std::atomic<std::size_t> largest_allocation = 0;
}

// g++ 12 takes an inlined free for a mismatch with the operator new that it belongs to.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t size) {
  if (size > largest_allocation) largest_allocation = size;
  if (void* data = std::malloc(size)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}

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

/// An embedding in one unit with the positions: untied, both are used once.
SmallModel make_model(bool tied) {
  SmallModel model = make_small_model(vocab, hidden, 1, tied);
  model.parameters.push_back({.name = "wpe.weight", .shape = {32, hidden}});
  const auto wpe = static_cast<std::uint32_t>(model.parameters.size() - 1);
  model.stages.front().parameters.push_back(wpe);
  return model;
}

/// A parameter's accumulator, as the optimizer would read it; `size`: of an element.
std::vector<std::byte> accumulated_in(Tiers& tiers, std::uint32_t parameter, std::uint64_t size) {
  const ParameterPlace& place = tiers.layout().places[parameter];
  std::vector<std::byte> found(place.numel * size);
  SubGroupStream stream(*tiers.state);
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const std::uint64_t begin = std::max(group.image_first, place.first);
    const std::uint64_t end = std::min(group.image_first + group.count, place.first + place.numel);
    std::memcpy(found.data() + (begin - place.first) * size,
                group.grad + (begin - group.image_first) * size, (end - begin) * size);
    return {};
  };
  EXPECT_TRUE(stream.run_range(place.unit, place.first, place.numel, {.read_grad = true}, body)
                  .has_value());
  return found;
}

/// The accumulators' tier and dtype; tied or not; computed in the stored dtype, or in fp32.
class GradientsIn : public testing::TestWithParam<std::tuple<Tier, DType, bool, bool>> {
 protected:
  explicit GradientsIn(std::unique_ptr<aio::Engine> engine = nullptr)
      : tiers_(make_model(std::get<2>(GetParam())),
               {.dtype = dtype(),
                .compute = std::get<3>(GetParam()) ? dtype() : DType::Float32,
                .grad = std::get<0>(GetParam()),
                .sub_group = 6144},
               std::move(engine)),
        gradients_(*tiers_.state) {
    for (const auto& parameter : tiers_.model.parameters) {
      expected_.emplace_back(parameter.numel() * size());
    }
  }

  DType dtype() const { return std::get<1>(GetParam()); }
  std::uint64_t size() const { return dtype_size(dtype()); }
  void train_step(std::uint64_t step, std::uint64_t micro_batches);
  void add_stage(const StageSpec& stage, std::uint64_t stream, bool first);
  ParameterGradient made(std::uint32_t parameter, const std::vector<float>& values);
  void add_in_parts(const ParameterGradient& gradient);
  void add_rows(std::uint64_t step, std::uint64_t micro_batches);
  std::vector<std::byte> accumulated(std::uint32_t parameter) {
    return accumulated_in(tiers_, parameter, size());
  }
  void expect_norm();

  Tiers tiers_;
  Gradients gradients_;
  std::vector<std::vector<std::byte>> expected_;  // by parameter
  std::list<std::vector<std::byte>> rounded_;  // as backward makes them where it computes natively
};

/// A gradient as backward makes it.
ParameterGradient GradientsIn::made(std::uint32_t parameter, const std::vector<float>& values) {
  const DType made = gradients_.added_dtype(tiers_.layout().places[parameter].unit);
  EXPECT_EQ(made, std::get<3>(GetParam()) ? dtype() : DType::Float32);
  if (made == DType::Float32) return {parameter, values.data()};
  auto& bytes = rounded_.emplace_back(values.size() * dtype_size(made));
  static_cast<void>(kernels::narrow(values.data(), bytes.data(), made, values.size()));
  return {parameter, bytes.data()};
}

/// One stage's backward: gradients of all parameters but the looked-up one.
void GradientsIn::add_stage(const StageSpec& stage, std::uint64_t stream, bool first) {
  const auto how = first ? kernels::Accumulate::Set : kernels::Accumulate::Add;
  std::vector<std::vector<float>> values;
  std::map<std::uint32_t, const float*> given;  // by parameter; parts come in fp32
  std::vector<std::vector<ParameterGradient>> by_unit(tiers_.layout().units.size());
  for (const auto parameter : stage.parameters) {
    if (stage.lookup == parameter) continue;
    const std::uint64_t count = tiers_.model.parameters[parameter].numel();
    values.push_back(random_floats(count, stream * 100 + parameter));
    given[parameter] = values.back().data();
    by_unit[tiers_.layout().places[parameter].unit].push_back(made(parameter, values.back()));
    kernels::accumulate_gradient_naive(expected_[parameter].data(), dtype(), values.back().data(),
                                       dtype(), count, how);
  }
  for (std::uint32_t unit = 0; unit < by_unit.size(); ++unit) {
    if (by_unit[unit].empty()) continue;
    const bool alone = tiers_.layout().units[unit].parameters.size() == 1;
    if (alone && stream % 3 != 0) {
      const std::uint32_t parameter = by_unit[unit].front().parameter;
      add_in_parts({parameter, given[parameter]});
    } else if (stream % 3 == 1) {
      for (const auto& gradient : by_unit[unit]) {
        ASSERT_TRUE(gradients_.add(unit, {&gradient, 1}).has_value());
      }
    } else {
      ASSERT_TRUE(gradients_.add(unit, by_unit[unit]).has_value());
    }
  }
  if (stream % 2 != 0) return;  // flushed only if their room is needed
  ASSERT_TRUE(gradients_.write_back().has_value());
}

/// Three parts of one parameter, the last one first.
void GradientsIn::add_in_parts(const ParameterGradient& gradient) {
  const std::uint64_t count = tiers_.model.parameters[gradient.parameter].numel();
  const std::array<std::uint64_t, 4> cuts{0, count / 7, count / 2, count};
  ASSERT_TRUE(gradients_.begin_parts(gradient.parameter).has_value());
  for (std::size_t part = 3; part-- > 0;) {
    gradients_.add_part(gradient.parameter, cuts[part],
                        static_cast<const float*>(gradient.data) + cuts[part],
                        cuts[part + 1] - cuts[part]);
  }
  EXPECT_EQ(gradients_.end_parts(gradient.parameter).value(), count);
}

/// The embedding's rows: some occur often, most never.
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

void GradientsIn::expect_norm() {
  double sum = 0.0;
  for (const auto& elements : expected_) {  // by parameter, whatever unit it is in
    const std::uint64_t count = elements.size() / size();
    std::vector<double> leaves((count + kernels::norm_leaf - 1) / kernels::norm_leaf);
    kernels::sum_squares_naive(elements.data(), dtype(), count, leaves.data());
    for (const double leaf : leaves) sum += leaf;
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

// The sums of all rows would take 10 MB, and reach that by doubling.
TEST(Gradients, SumsOfRowsNeverTakeMoreThanFourMebibytes) {
  constexpr std::int64_t many = 40'000;
  std::vector<std::int64_t> rows;  // of ten, one in three is looked up twice, and one never
  for (std::int64_t i = 0; i < many * 6 / 5; ++i) {
    const std::int64_t row = i < many ? many - 1 - i : 3 * (i - many);
    if (row % 10 != 9) rows.push_back(row);
  }
  const auto values = random_floats(rows.size() * hidden, 1);
  std::vector<const float*> pointers;
  std::vector<float> sums(many * hidden);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    pointers.push_back(values.data() + i * hidden);
    float* sum = sums.data() + rows[i] * hidden;
    for (std::int64_t column = 0; column < hidden; ++column) sum[column] += pointers[i][column];
  }
  for (const Tier home : {Tier::Host, Tier::Nvme}) {
    SCOPED_TRACE(static_cast<int>(home));
    Tiers tiers(make_small_model(many, hidden, 1, false),
                {.dtype = DType::BFloat16, .grad = home, .sub_group = 1 << 18});
    Gradients gradients(*tiers.state);
    gradients.begin_step();
    largest_allocation = 0;
    ASSERT_TRUE(gradients.add_rows(0, rows, pointers, hidden).has_value());
    EXPECT_LE(largest_allocation, std::size_t{4} << 20);
    ASSERT_TRUE(gradients.complete().has_value());
    std::vector<std::byte> expected(sums.size() * 2);
    kernels::accumulate_gradient_naive(expected.data(), DType::BFloat16, sums.data(),
                                       DType::BFloat16, sums.size(), kernels::Accumulate::Add);
    EXPECT_EQ(accumulated_in(tiers, 0, 2), expected);
  }
}

/// Counts pieces of work, which a thread pool would divide among its threads.
class CountingTeam final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    pieces += (count + grain - 1) / grain;
    ++regions;
    team_.parallel_for(count, grain, body);
  }
  std::uint64_t pieces = 0;
  std::uint64_t regions = 0;

 private:
  test_support::BackwardsExecutor team_;
};

// Half a million elements of rows: the thread pool sums and adds them in as many pieces as any
// other gradient has, and is not forked for each row.
TEST(Gradients, RowsAreSummedAndAddedByTheTeam) {
  constexpr std::int64_t many = 8192;
  test_support::TemporaryDirectory directory;
  CountingTeam team;
  const auto engine = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value();
  const SmallModel model = make_small_model(many, hidden, 1, false);
  Placement placement = place(model, {.dtype = DType::BFloat16}, directory.path());
  auto state = ModelState::create(state_options(std::move(placement), directory.path()), *engine,
                                  system_files(), team)
                   .value();
  Gradients gradients(*state);
  gradients.begin_step();
  std::vector<std::int64_t> rows;
  for (std::int64_t row = many; row-- > 0;) rows.push_back(row);
  const auto values = random_floats(rows.size() * hidden, 1);
  std::vector<const float*> pointers;
  for (std::size_t i = 0; i < rows.size(); ++i) pointers.push_back(values.data() + i * hidden);
  const std::uint64_t pieces = team.pieces;
  const std::uint64_t regions = team.regions;
  ASSERT_TRUE(gradients.add_rows(0, rows, pointers, hidden).has_value());
  EXPECT_GE(team.pieces - pieces, 2 * (many * hidden / 16384));
  EXPECT_LE(team.regions - regions, 2u);
  EXPECT_TRUE(state->close().has_value());
}

/// Moves nothing until a wait, and then in any order.
class GradientsOnASlowDisk : public GradientsIn {
 protected:
  GradientsOnASlowDisk()
      : GradientsIn(std::make_unique<test_support::SimulatedEngine>(
            aio::EngineOptions{.block_size = 8 << 10, .queue_depth = 16},
            test_support::SimulatedOptions{.slow = 200, .shortened = 200, .interrupted = 100})) {}
};

TEST_P(GradientsOnASlowDisk, EqualTheNaiveVersion) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    train_step(step, 1 + step);
    expect_norm();
    for (std::uint32_t parameter = 0; parameter < expected_.size(); ++parameter) {
      EXPECT_EQ(accumulated(parameter), expected_[parameter]) << "step " << step;
    }
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
  }
  values[1].back() = std::numeric_limits<float>::infinity();
  values[3].front() = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t index = 0; index < values.size(); ++index) {
    list.push_back(made(block.parameters[index], values[index]));
  }
  ASSERT_TRUE(gradients_.add(unit, list).has_value());
  ASSERT_TRUE(gradients_.complete().has_value());
  const GradientNorm norm = gradients_.norm().value();
  EXPECT_FALSE(norm.finite);
  EXPECT_EQ(norm.bad_parameter, block.parameters[1]);
}

/// Only sub-groups that get rows are resident when these are summed; others stay as they were.
TEST_P(GradientsIn, WhatIsNotFiniteIsNamedWhateverRowsComeLater) {
  gradients_.begin_step();
  for (const float value : {std::numeric_limits<float>::infinity(), 1.0f}) {
    const std::vector<float> row(hidden, value);
    const std::vector<std::int64_t> rows{std::isfinite(value) ? 3 : vocab - 1};
    ASSERT_TRUE(
        gradients_.add_rows(0, rows, std::vector<const float*>{row.data()}, hidden).has_value());
    ASSERT_TRUE(gradients_.write_back().has_value());
  }
  ASSERT_TRUE(gradients_.complete().has_value());
  const GradientNorm norm = gradients_.norm().value();
  EXPECT_FALSE(norm.finite);
  EXPECT_EQ(norm.bad_parameter, 0u);
}

TEST_P(GradientsIn, WithoutAnyAreZero) {
  train_step(0, 2);
  gradients_.begin_step();
  ASSERT_TRUE(gradients_.complete().has_value());
  EXPECT_EQ(gradients_.norm().value().sum_squares, 0.0);
  EXPECT_EQ(accumulated(0), std::vector<std::byte>(expected_[0].size()));
}

// Parameters get a gradient in this micro-batch or not, in any order, in any number of calls, with
// zeros of both signs: the first gradient sets the sum, and without one it is zero.
TEST_P(GradientsIn, OfSomeParametersOfAUnitEqualTheNaiveVersion) {
  const auto& stages = tiers_.model.stages;
  std::uint64_t draw = 0;
  const auto drawn = [&](std::uint64_t below) { return random_word(9, below, draw++) % below; };
  std::size_t never = 0;
  for (std::uint64_t step = 0; step < 4; ++step) {
    gradients_.begin_step();
    std::vector<bool> reached(expected_.size(), false);
    for (auto& expected : expected_) std::fill(expected.begin(), expected.end(), std::byte{0});
    for (std::uint64_t call = 0; call < 6; ++call) {
      const StageSpec& stage = stages[drawn(stages.size())];
      for (const auto parameter : stage.parameters) {
        if (drawn(3) != 0) continue;
        auto values = random_floats(tiers_.model.parameters[parameter].numel(), draw);
        for (std::size_t index = 0; index < values.size(); index += 3) values[index] = -0.0f;
        const ParameterGradient gradient = made(parameter, values);
        const std::uint32_t unit = tiers_.layout().places[parameter].unit;
        ASSERT_TRUE(gradients_.add(unit, {&gradient, 1}).has_value());
        const auto how = reached[parameter] ? kernels::Accumulate::Add : kernels::Accumulate::Set;
        reached[parameter] = true;
        kernels::accumulate_gradient_naive(expected_[parameter].data(), dtype(), values.data(),
                                           dtype(), values.size(), how);
      }
      if (drawn(2) == 0) {
        ASSERT_TRUE(gradients_.write_back().has_value());
      }
    }
    ASSERT_TRUE(gradients_.complete().has_value());
    expect_norm();
    for (std::uint32_t parameter = 0; parameter < expected_.size(); ++parameter) {
      EXPECT_EQ(accumulated(parameter), expected_[parameter]) << "step " << step;
      EXPECT_EQ(gradients_.reached(parameter), reached[parameter]) << "step " << step;
      never += reached[parameter] ? 0 : 1;
    }
  }
  EXPECT_GT(never, 4u);
}

TEST_P(GradientsIn, OfWhichNoPartComesAreZeroOrAsTheyWere) {
  train_step(0, 1);
  const std::uint32_t head = tiers_.model.stages.back().parameters.back();
  if (tiers_.layout().units[tiers_.layout().places[head].unit].parameters.size() != 1) return;
  const auto none = [&] {
    ASSERT_TRUE(gradients_.begin_parts(head).has_value());
    EXPECT_EQ(gradients_.end_parts(head).value(), 0u);
  };
  gradients_.begin_step();
  none();
  ASSERT_TRUE(gradients_.complete().has_value());
  EXPECT_EQ(accumulated(head), std::vector<std::byte>(expected_[head].size()));
  gradients_.begin_step();
  const auto values = random_floats(tiers_.model.parameters[head].numel(), 5);
  add_in_parts({head, values.data()});
  none();
  ASSERT_TRUE(gradients_.complete().has_value());
  std::vector<std::byte> once(expected_[head].size());
  kernels::accumulate_gradient_naive(once.data(), dtype(), values.data(), dtype(), values.size(),
                                     kernels::Accumulate::Set);
  EXPECT_EQ(accumulated(head), once);
}

// The buffer holds no gradient if no sub-group has been read.
TEST_P(GradientsIn, OfWhichOneSubGroupComesBackHaveTheSumsOfTheOthers) {
  const auto buffer = tiers_.state->grad_buffer();
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{200}, vocab - 1}) {
    gradients_.begin_step();
    std::fill(expected_[0].begin(), expected_[0].end(), std::byte{0});
    const auto& stages = tiers_.model.stages;
    for (std::size_t stage = stages.size(); stage-- > 0;) add_stage(stages[stage], 10, true);
    ASSERT_TRUE(gradients_.write_back().has_value());
    if (!buffer.empty()) std::memset(buffer.data(), 0x3f, buffer.size());
    const auto values = random_floats(hidden, 70 + static_cast<std::uint64_t>(row));
    const float* const pointer = values.data();
    ASSERT_TRUE(gradients_.add_rows(0, {&row, 1}, {&pointer, 1}, hidden).has_value());
    kernels::accumulate_gradient_naive(
        expected_[0].data() + static_cast<std::uint64_t>(row) * hidden * size(), dtype(),
        values.data(), dtype(), hidden, kernels::Accumulate::Add);
    ASSERT_TRUE(gradients_.complete().has_value());
    expect_norm();
    for (std::uint32_t parameter = 0; parameter < expected_.size(); ++parameter) {
      EXPECT_EQ(accumulated(parameter), expected_[parameter]) << "row " << row;
    }
  }
}

/// Measures how long its users waited, and what had begun before.
class WatchedEngine final : public aio::Engine {
 public:
  explicit WatchedEngine(std::unique_ptr<aio::Engine> engine) : engine_(std::move(engine)) {}
  void submit(std::span<aio::Completion* const> completions) noexcept override {
    for (const aio::Completion* completion : completions) {
      const bool reads = completion->request().operation == aio::Operation::Read;
      if (reads && waits == 0) ++reads_before_first_wait;
      (reads ? bytes_read : bytes_written) += completion->request().length;
    }
    engine_->submit(completions);
  }
  Result<void> wait(aio::Completion& completion, Deadline deadline) noexcept override {
    ++waits;
    const std::uint64_t before = monotonic_ns();
    auto waited = engine_->wait(completion, deadline);
    waited_ns += monotonic_ns() - before;
    return waited;
  }
  void cancel(aio::Completion& completion) noexcept override { engine_->cancel(completion); }
  void abandon(aio::Completion& completion) noexcept override { engine_->abandon(completion); }
  Result<void> drain(Deadline deadline) noexcept override { return engine_->drain(deadline); }
  aio::EngineStatistics statistics() const noexcept override { return engine_->statistics(); }
  aio::EngineKind kind() const noexcept override { return engine_->kind(); }

  std::uint64_t waited_ns = 0;
  std::uint64_t waits = 0;
  std::uint64_t reads_before_first_wait = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;

 private:
  std::unique_ptr<aio::Engine> engine_;
};

/// Spilled gradients, all zero, on a disk that is watched.
class SpilledGradients : public testing::Test {
 protected:
  void make(std::uint64_t sub_group) {
    auto watched = std::make_unique<WatchedEngine>(
        aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value());
    engine_ = watched.get();
    tiers_ = std::make_unique<Tiers>(make_model(false),
                                     TierOptions{.grad = Tier::Nvme, .sub_group = sub_group},
                                     std::move(watched));
    gradients_ = std::make_unique<Gradients>(*tiers_->state);
    gradients_->begin_step();
    ASSERT_TRUE(gradients_->complete().has_value());
    engine_->waits = engine_->waited_ns = 0;
    engine_->reads_before_first_wait = 0;
  }
  std::uint64_t sub_groups(std::uint32_t unit) const {
    return tiers_->state->placement().sub_group_count(unit);
  }
  std::uint32_t units() const { return static_cast<std::uint32_t>(tiers_->layout().units.size()); }
  /// Adds zeros for all of a unit.
  void add(std::uint32_t unit) {
    std::vector<std::vector<float>> values;
    std::vector<ParameterGradient> list;
    for (const auto parameter : tiers_->layout().units[unit].parameters) {
      values.emplace_back(tiers_->model.parameters[parameter].numel());
      list.push_back({parameter, values.back().data()});
    }
    ASSERT_TRUE(gradients_->add(unit, list).has_value());
  }

  WatchedEngine* engine_ = nullptr;
  std::unique_ptr<Tiers> tiers_;
  std::unique_ptr<Gradients> gradients_;
};

TEST_F(SpilledGradients, CountTheWaitForTheirWrites) {
  make(1 << 18);
  const double before = gradients_->wait_seconds();
  gradients_->begin_step();
  ASSERT_TRUE(gradients_->complete().has_value());
  const double waited = static_cast<double>(engine_->waited_ns) * 1e-9;
  EXPECT_GT(waited, 0.0);
  EXPECT_GE(gradients_->wait_seconds() - before, waited * (1 - 1e-9));
}

TEST_F(SpilledGradients, AreNotReadForTheNorm) {
  make(6144);
  const std::uint64_t read = engine_->bytes_read;
  gradients_->begin_step();
  for (std::uint32_t unit = units(); unit-- > 0;) add(unit);
  ASSERT_TRUE(gradients_->complete().has_value());
  EXPECT_EQ(gradients_->norm().value().sum_squares, 0.0);
  EXPECT_EQ(engine_->bytes_read, read);
}

TEST_F(SpilledGradients, AreReadAheadWhereTheyAreAddedTo) {
  make(2048);
  const std::uint64_t items = tiers_->state->ring().count();
  ASSERT_GT(items, 1u);
  const std::uint32_t unit = tiers_->layout().places[0].unit;
  ASSERT_GT(sub_groups(unit), items);
  add(unit);
  EXPECT_EQ(engine_->reads_before_first_wait, items);
  EXPECT_GE(gradients_->wait_seconds(), static_cast<double>(engine_->waited_ns) * (1e-9 - 1e-18));
}

TEST_F(SpilledGradients, AreWrittenBehindUntilTheirUnitIsReadAgain) {
  make(1 << 18);
  ASSERT_GE(tiers_->state->ring().count(), 2u);
  gradients_->begin_step();
  add(0);
  ASSERT_TRUE(gradients_->write_back().has_value());
  add(1);
  ASSERT_TRUE(gradients_->write_back().has_value());
  EXPECT_EQ(engine_->waits, 0u);
  add(0);
  EXPECT_GE(engine_->waits, 2u);  // for its writes, and for its reads
  EXPECT_EQ(engine_->reads_before_first_wait, 0u);
}

TEST_F(SpilledGradients, AreMovedOnceForAllMicroBatchesOfAStage) {
  make(2048);
  const std::uint32_t unit = tiers_->layout().places[0].unit;
  const std::uint64_t bytes = tiers_->state->placement().grad_bytes(unit);
  const auto moved = [&] {
    const std::uint64_t before = engine_->bytes_read + engine_->bytes_written;
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) add(unit);
    EXPECT_TRUE(gradients_->write_back().has_value());
    return engine_->bytes_read + engine_->bytes_written - before;
  };
  gradients_->begin_step();
  EXPECT_EQ(moved(), bytes);      // written
  EXPECT_EQ(moved(), 2 * bytes);  // read and written
}

TEST_F(SpilledGradients, MoveOnlyTheSubGroupsThatRowsAreAddedTo) {
  make(2048);
  const ParameterPlace& place = tiers_->layout().places[0];
  gradients_->begin_step();
  add(place.unit);
  ASSERT_TRUE(gradients_->write_back().has_value());
  const std::vector<float> row(hidden, 0.0f);
  const std::vector<std::int64_t> rows{0, 1, 700, 700};  // of 64 elements: in two sub-groups
  const std::vector<const float*> pointers(rows.size(), row.data());
  const std::uint64_t moved = 2 * 2048 * gradients_->element_size();
  const std::uint64_t read = engine_->bytes_read;
  const std::uint64_t written = engine_->bytes_written;
  ASSERT_TRUE(gradients_->add_rows(0, rows, pointers, hidden).has_value());
  ASSERT_TRUE(gradients_->write_back().has_value());
  EXPECT_EQ(engine_->bytes_read - read, moved);
  EXPECT_EQ(engine_->bytes_written - written, moved);
}

/// Fails one transfer in one direction.
class OneFailure final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block& block, std::int64_t result) noexcept override {
    const aio::Request& request = block.request();
    std::uint64_t before = lowest;
    while (request.offset < before && !lowest.compare_exchange_weak(before, request.offset)) {
    }
    if (request.operation != operation || left-- != 0) return result;
    offset = request.offset;
    return -ENXIO;  // a read that ends in EIO is tried again
  }

  aio::Operation operation = aio::Operation::Read;
  std::atomic<int> left{-1};             // transfers in that direction until then; negative: never
  std::atomic<std::uint64_t> offset{0};  // of the failed transfer
  std::atomic<std::uint64_t> lowest{~std::uint64_t{0}};  // of all
};

struct Fault {
  aio::Operation operation;
  bool simulated;
};

class SpilledGradientsFaults : public testing::TestWithParam<Fault> {};

/// Three micro-batches and the norm.
Result<void> train(Tiers& tiers, Gradients& gradients) {
  const auto units = static_cast<std::uint32_t>(tiers.layout().units.size());
  gradients.begin_step();
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    for (std::uint32_t unit = units; unit-- > 0;) {
      std::vector<std::vector<float>> values;
      std::vector<ParameterGradient> list;
      for (const auto parameter : tiers.layout().units[unit].parameters) {
        values.emplace_back(tiers.model.parameters[parameter].numel());
        list.push_back({parameter, values.back().data()});
      }
      ARTESIAN_TRY_VOID(gradients.add(unit, list));
    }
  }
  ARTESIAN_TRY_VOID(gradients.complete());
  ARTESIAN_TRY(norm, gradients.norm());
  static_cast<void>(norm);
  return {};
}

TEST_P(SpilledGradientsFaults, NameTheShard) {
  const bool reads = GetParam().operation == aio::Operation::Read;
  int failed = 0;
  for (int transfer = 0; transfer < 60; transfer += 3) {
    SCOPED_TRACE(transfer);
    OneFailure fault;
    const aio::EngineOptions options{.block_size = 1 << 20, .queue_depth = 4};
    std::unique_ptr<aio::Engine> engine;
    if (GetParam().simulated) {
      engine = std::make_unique<test_support::SimulatedEngine>(
          options, test_support::SimulatedOptions{.slow = 200}, &fault);
    } else {
      engine = aio::make_threads(options, &fault).value();
    }
    Tiers tiers(make_model(false), {.grad = Tier::Nvme, .sub_group = 16384}, std::move(engine));
    Gradients gradients(*tiers.state);
    std::map<std::uint64_t, std::string> shard_at;  // by its first byte in the file
    gradients.begin_step();
    for (std::uint32_t unit = 0; unit < tiers.layout().units.size(); ++unit) {
      fault.lowest = ~std::uint64_t{0};
      ASSERT_TRUE(gradients.add(unit, {}).has_value());
      ASSERT_TRUE(gradients.write_back().has_value());
      ASSERT_TRUE(tiers.state->ring().finish().has_value());
      shard_at[fault.lowest] = tiers.state->store().shard(tiers.state->grad(unit)).name;
    }
    fault.operation = GetParam().operation;
    fault.left = transfer;
    const auto trained = train(tiers, gradients);
    if (trained.has_value()) {
      EXPECT_GE(fault.left, 0);
      continue;
    }
    ++failed;
    EXPECT_EQ(trained.error().code, ErrorCode::Io);
    const std::string named = (reads ? "reading shard " : "writing shard ") +
                              std::prev(shard_at.upper_bound(fault.offset))->second + ":";
    EXPECT_EQ(trained.error().message.find(named), 0u)
        << trained.error().message << "; expected " << named;
    static_cast<void>(tiers.residency->clear().has_value());
    static_cast<void>(tiers.state->close().has_value());
    tiers.forget();
  }
  EXPECT_GT(failed, 10);
}

TEST(SpilledGradientsInFlight, AreTheCauseOfLaterErrorsOfTheirFile) {
  OneFailure fault;
  auto made = aio::make_threads({.block_size = 1 << 20, .queue_depth = 4}, &fault).value();
  aio::Engine& engine = *made;
  Tiers tiers(make_model(false), {.grad = Tier::Nvme, .sub_group = 1 << 18}, std::move(made));
  Gradients gradients(*tiers.state);
  fault.operation = aio::Operation::Write;
  fault.left = 0;
  ASSERT_TRUE(gradients.add(0, {}).has_value());
  ASSERT_TRUE(gradients.write_back().has_value());
  ASSERT_TRUE(engine.drain(Deadline::after_seconds(60)).has_value());
  // As a fetch does.
  ASSERT_GE(tiers.state->ring().count(), 2u);
  tiering::StagingItem& item = tiers.state->ring().at(1);
  item.read(tiers.state->param(1), {0, 4096}, 0, aio::Priority::Demand);
  const auto fetched = item.finish();
  ASSERT_FALSE(fetched.has_value());
  EXPECT_EQ(fetched.error().message.find("reading shard "), 0u) << fetched.error().message;
  const Error other = make_error(ErrorCode::Corrupt, "another");
  EXPECT_EQ(gradients.cause_of(other).message, "another");
  const Error cause = gradients.cause_of(fetched.error());
  EXPECT_EQ(cause.code, ErrorCode::Io);
  EXPECT_EQ(cause.message.find("writing shard wte.weight gradients: "), 0u) << cause.message;
  EXPECT_TRUE(tiers.residency->clear().has_value());
  static_cast<void>(tiers.state->close().has_value());
  tiers.forget();
}

INSTANTIATE_TEST_SUITE_P(All, SpilledGradientsFaults,
                         testing::Values(Fault{aio::Operation::Read, false},
                                         Fault{aio::Operation::Write, false},
                                         Fault{aio::Operation::Read, true},
                                         Fault{aio::Operation::Write, true}));

std::string case_name(const testing::TestParamInfo<GradientsIn::ParamType>& info) {
  const auto [tier, dtype, tied, natively] = info.param;
  return std::string(tier == Tier::Host ? "Host" : "Spilled") + "_" + dtype_name(dtype) +
         (tied ? "_Tied" : "_Untied") + (natively ? "_Natively" : "");
}

INSTANTIATE_TEST_SUITE_P(All, GradientsIn,
                         testing::Combine(testing::Values(Tier::Host, Tier::Nvme),
                                          testing::Values(DType::Float32, DType::BFloat16,
                                                          DType::Float16),
                                          testing::Bool(), testing::Values(false)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Natively, GradientsIn,
                         testing::Combine(testing::Values(Tier::Host, Tier::Nvme),
                                          testing::Values(DType::BFloat16, DType::Float16),
                                          testing::Bool(), testing::Values(true)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Spilled, GradientsOnASlowDisk,
                         testing::Combine(testing::Values(Tier::Nvme),
                                          testing::Values(DType::Float32, DType::BFloat16),
                                          testing::Bool(), testing::Values(false)),
                         case_name);

}  // namespace
}  // namespace artesian::zero3
