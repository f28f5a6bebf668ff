// Proves that ranks which each keep their share of the state keep every element once. Over 1 to 5
// ranks and all stages of ZeRO, each rank's sub-groups are written and read back by their place in
// the image. State that a rank has whole is addressed by its place in the image, state of which it
// has a share by the place in the share.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "tests/zero3/tiers.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;

/// The state of one rank.
class Rank {
  test_support::TemporaryDirectory directory_;  // first, so that they outlive what uses them
  SerialExecutor executor_;
  std::unique_ptr<aio::Engine> engine_;

 public:
  Rank(const TierOptions& given, std::uint32_t number) : rank(number) {
    engine_ = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value();
    const SmallModel model = make_small_model(500, 32, 2);
    Placement plan = place(model, given, directory_.path());
    if (plan.ring_count == 0) {  // host memory would have held all state: place() has moved it
      plan.ring_count = 2;
      plan.ring_item_bytes = plan.sub_group * 20;
      plan.host_pool_bytes += plan.ring_count * plan.ring_item_bytes;
    }
    ModelStateOptions options = state_options(std::move(plan), directory_.path());
    options.rank = rank;
    state = ModelState::create(std::move(options), *engine_, system_files(), executor_).value();
  }
  ~Rank() { EXPECT_TRUE(state->close().has_value()); }

  bool has_file_of_its_own() const {
    const auto names = system_files().list(directory_.path()).value();
    const std::string end = "-rank" + std::to_string(rank) + ".swap";
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.ends_with(end); });
  }

  const std::uint32_t rank;
  std::unique_ptr<ModelState> state;
};

float value_at(std::uint32_t unit, std::uint64_t image_index, float factor) {
  return factor * static_cast<float>(1 + unit * 100'000 + image_index);
}

/// The parameters are the master weights: fp32.
void write_all(Rank& rank) {
  std::vector<std::uint32_t> units;
  for (std::uint32_t unit = 0; unit < rank.state->layout().units.size(); ++unit) {
    units.push_back(unit);
  }
  SubGroupStream stream(*rank.state);
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const Placement& plan = rank.state->placement();
    const std::uint64_t share = plan.layout.units[group.unit].image / plan.ranks;
    EXPECT_EQ(group.share_first, group.index * plan.sub_group);
    EXPECT_EQ(group.image_first, rank.rank * share + group.share_first);
    EXPECT_LE(group.share_first + group.count, share);
    const std::byte* grads = rank.state->store().memory(rank.state->grad(group.unit));
    EXPECT_EQ(group.grad, grads + 4 * group.share_first);
    for (std::uint64_t i = 0; i < group.count; ++i) {
      group.master[i] = value_at(group.unit, group.image_first + i, 1.0f);
      group.exp_avg[i] = value_at(group.unit, group.image_first + i, 0.5f);
      group.exp_avg_sq[i] = 0.0f;
    }
    return {};
  };
  ASSERT_TRUE(stream.run(units, {.write_state = true}, body).has_value());
  ASSERT_TRUE(rank.state->ring().finish().has_value());
}

/// Reads elements [first, first + count) of a unit's image; counts how often each was read.
void read_range(Rank& rank, std::uint32_t unit, std::uint64_t first, std::uint64_t count,
                std::vector<int>& times) {
  SubGroupStream stream(*rank.state);
  const auto body = [&](const SubGroup& group) -> Result<void> {
    bool met = false;
    for (std::uint64_t i = 0; i < group.count; ++i) {
      const std::uint64_t index = group.image_first + i;
      EXPECT_EQ(group.master[i], value_at(unit, index, 1.0f));
      EXPECT_EQ(group.exp_avg[i], value_at(unit, index, 0.5f));
      if (index < first || index >= first + count) continue;
      met = true;
      ++times[static_cast<std::size_t>(index - first)];
    }
    EXPECT_TRUE(met) << "a sub-group was read for nothing";
    return {};
  };
  ASSERT_TRUE(stream.run_range(unit, first, count, {.read_state = true}, body).has_value());
}

/// Parameters that a rank has whole are updated at the places of its share of the image.
void expect_params_of_its_share(Rank& rank) {
  const Placement& plan = rank.state->placement();
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    const auto* values =
        reinterpret_cast<const float*>(rank.state->store().memory(rank.state->param(unit)));
    const std::uint64_t begin = rank.state->share_begin(unit);
    const std::uint64_t share = plan.layout.units[unit].image / plan.ranks;
    for (std::uint64_t index = begin; index < begin + share; ++index) {
      ASSERT_EQ(values[index], value_at(unit, index, 1.0f)) << unit << " " << index;
    }
  }
}

class Shares : public testing::TestWithParam<std::tuple<int, std::uint32_t>> {};

TEST_P(Shares, OfAllRanksAreTheWholeState) {
  const auto [stage, count] = GetParam();
  const TierOptions options{.sub_group = 2048 * (1 + count % 3), .stage = stage, .ranks = count};
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ranks.push_back(std::make_unique<Rank>(options, rank));
    EXPECT_TRUE(ranks.back()->has_file_of_its_own());
    write_all(*ranks.back());
    if (stage < 3) expect_params_of_its_share(*ranks.back());
  }
  const Layout& layout = ranks.front()->state->layout();
  for (std::uint32_t unit = 0; unit < layout.units.size(); ++unit) {
    const std::uint64_t image = layout.units[unit].image;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t first = round == 0 ? 0 : random_word(8, unit, round) % image;
      const std::uint64_t length =
          round == 0 ? image : 1 + random_word(9, unit, round) % (image - first);
      std::vector<int> times(static_cast<std::size_t>(length));
      for (auto& rank : ranks) read_range(*rank, unit, first, length, times);
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << unit << " from " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shares,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values(1u, 2u, 3u, 5u)));

}  // namespace
}  // namespace artesian::zero3
