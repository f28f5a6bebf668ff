// Proves how a model's tiers end. Closed at any instant of a step they leave nothing behind (row 12
// of the reliability table; 100 instants, 1,000 with ARTESIAN_SOAK=1). A disk that fails at the
// start is an error, not an abort. A disk that stops answering is a Timeout; memory and files that
// the kernel may still write to are then kept.
#include "zero3/step/state.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/support/baseline.h"
#include "tests/support/memory_files.h"
#include "tests/support/process.h"
#include "tests/zero3/tiers.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {
namespace {

using test_support::MemoryEngine;
using test_support::MemoryFiles;

int instants() {
  return std::getenv("ARTESIAN_SOAK") != nullptr ? 1000 : 100;
}

SmallModel small_model() {
  return make_small_model(64, 64, 2);
}

std::vector<std::uint32_t> all_units(const ModelState& state) {
  std::vector<std::uint32_t> units(state.layout().units.size());
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) units[unit] = unit;
  return units;
}

/// Initialises, then breaks off in the middle of a step: fetches have started, and an error of its
/// body ends the optimizer's stream, so that reads ahead and writes behind are in flight.
void work_until_some_instant(Tiers& tiers, std::mt19937_64& random) {
  const auto units = all_units(*tiers.state);
  SubGroupStream stream(*tiers.state);
  std::uint64_t left = ~std::uint64_t{0};
  const auto body = [&](const SubGroup&) -> Result<void> {
    if (left-- == 0) return make_error(ErrorCode::Cancelled, "enough");
    return {};
  };
  ASSERT_TRUE(stream.run(units, {.write_state = true}, body).has_value());
  ASSERT_TRUE(tiers.state->ring().finish().has_value());
  for (const std::uint32_t unit : units) {
    if (random() % 2 == 0) continue;
    ASSERT_TRUE(tiers.residency->start(unit, aio::Priority::Prefetch).has_value());
    if (random() % 3 == 0) {
      ASSERT_TRUE(tiers.residency->acquire(unit).has_value());
    }
  }
  left = random() % 40;
  const bool writes = random() % 2 == 0;  // writing a unit during its fetch is a caller's error
  if (writes) {
    ASSERT_TRUE(tiers.residency->clear().has_value());
  }
  const auto ended = stream.run(units, {.read_state = true, .write_state = writes}, body);
  EXPECT_TRUE(ended.has_value() || ended.error().code == ErrorCode::Cancelled);
}

TEST(ModelStateShutdown, AtAnyInstantLeavesEverythingAsItWas) {
  std::mt19937_64 random(test_support::test_seed(12));
  test_support::Baseline before;
  std::size_t maps = 0;
  std::string directory;
  for (int i = -10; i < instants() && !testing::Test::HasFailure(); ++i) {
    {
      Tiers tiers(small_model(), {.grad = i % 2 == 0 ? tiering::Tier::Host : tiering::Tier::Nvme});
      directory = tiers.directory();
      work_until_some_instant(tiers, random);
      ASSERT_TRUE(tiers.residency->clear().has_value());
      ASSERT_TRUE(tiers.state->close().has_value());
      EXPECT_TRUE(system_files().list(directory).value().empty());
      EXPECT_EQ(tiers.state->device_pool().statistics().bytes_in_use, 0u);
      tiers.forget();
    }
    EXPECT_FALSE(system_files().exists(directory));
    if (i == -1) {  // the C library has made the arenas that it keeps
      before = test_support::Baseline::now();
      maps = test_support::map_count();
    }
    if (i < 0) continue;
    EXPECT_LE(test_support::Baseline::settled(before), before) << "instant " << i;
    EXPECT_LE(test_support::map_count(), maps + test_support::maps_of_threads) << "instant " << i;
  }
}

TEST(ModelStatePools, TheHostTierLiesWhereItIsToldTo) {
  const auto usable = pinned::machine_nodes().usable;
  if (usable.empty() || syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) != 0) {
    GTEST_SKIP() << "no NUMA calls here";
  }
  MemoryFiles files(std::uint64_t{1} << 30);
  MemoryEngine engine({.block_size = 64 << 10});
  SerialExecutor executor;
  ModelStateOptions options = state_options(place(small_model(), {}, "/disk"), "/disk");
  const pinned::NodePolicy nodes{.nodes = {usable.front()}, .near = pinned::Near::Disks};
  options.host_nodes = nodes;
  auto state = ModelState::create(std::move(options), engine, files, executor).value();
  EXPECT_EQ(state->host_pool().statistics().nodes, nodes);
  EXPECT_NE(state->device_pool().statistics().nodes, nodes) << "that is the device's matter";
  EXPECT_TRUE(state->close().has_value());
}

/// Every write is answered with EIO once `fails` is set.
class FailingWrites final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block& block, std::int64_t result) noexcept override {
    return fails && block.request().operation == aio::Operation::Write ? -EIO : result;
  }

  bool fails = true;
};

TEST(ModelStateFaults, ADiskThatFailsAtTheStartIsAnErrorAndLeavesNothing) {
  MemoryFiles files(std::uint64_t{1} << 30);
  FailingWrites faults;
  MemoryEngine engine({.block_size = 64 << 10}, &faults);
  SerialExecutor executor;
  const auto created = ModelState::create(state_options(place(small_model(), {}, "/disk"), "/disk"),
                                          engine, files, executor);
  ASSERT_FALSE(created.has_value());
  EXPECT_EQ(created.error().code, ErrorCode::Io);
  EXPECT_EQ(created.error().system_error, EIO);
  EXPECT_TRUE(files.list("/disk").value().empty());
}

TEST(ModelStateFaults, AWriteThatFailsBehindTheLastCallIsToldByClose) {
  MemoryFiles files(std::uint64_t{1} << 30);
  FailingWrites faults;
  faults.fails = false;
  MemoryEngine engine({.block_size = 64 << 10}, &faults);
  SerialExecutor executor;
  ModelStateOptions options = state_options(place(small_model(), {}, "/disk"), "/disk");
  auto state = ModelState::create(std::move(options), engine, files, executor).value();
  SubGroupStream stream(*state);
  const auto nothing = [](const SubGroup&) -> Result<void> { return {}; };
  ASSERT_TRUE(stream.run(all_units(*state), {.write_state = true}, nothing).has_value());
  ASSERT_TRUE(state->ring().finish().has_value());
  faults.fails = true;
  ASSERT_TRUE(stream.run_some(0, {0}, {.write_state = true}, nothing).has_value());
  const auto closed = state->close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, ErrorCode::Io);
  EXPECT_EQ(closed.error().system_error, EIO);
}

TEST(ModelStateFaults, ADiskThatHangsAtTheStartIsATimeout) {
  MemoryFiles files(std::uint64_t{1} << 30);
  MemoryEngine engine({.block_size = 64 << 10});  // its destructor answers, late
  SerialExecutor executor;
  engine.hold();
  ModelStateOptions options = state_options(place(small_model(), {}, "/disk"), "/disk");
  options.wait_seconds = 0.1;
  const auto created = ModelState::create(std::move(options), engine, files, executor);
  ASSERT_FALSE(created.has_value());
  EXPECT_EQ(created.error().code, ErrorCode::Timeout);
  EXPECT_TRUE(created.error().message.starts_with("no answer from the disk within 0.1 s"))
      << created.error().message;
  const auto names = files.list("/disk").value();
  const auto is_swap = [](const std::string& name) { return name.ends_with(".swap"); };
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), is_swap)) << "nobody asks a hung disk again";
}

TEST(ModelStateFaults, ADiskThatStopsAnsweringIsATimeoutAndNoAbort) {
  MemoryFiles files(std::uint64_t{1} << 30);
  MemoryEngine engine(
      {.block_size = 64 << 10});  // its destructor answers, into memory that is left
  SerialExecutor executor;
  ModelStateOptions options = state_options(place(small_model(), {}, "/disk"), "/disk");
  options.wait_seconds = 0.1;
  auto state = ModelState::create(std::move(options), engine, files, executor).value();
  SubGroupStream stream(*state);
  const auto nothing = [](const SubGroup&) -> Result<void> { return {}; };
  const auto units = all_units(*state);
  ASSERT_TRUE(stream.run(units, {.write_state = true}, nothing).has_value());
  ASSERT_TRUE(state->ring().finish().has_value());
  engine.hold();
  const auto stalled = stream.run(units, {.read_state = true, .write_state = true}, nothing);
  ASSERT_FALSE(stalled.has_value());
  EXPECT_EQ(stalled.error().code, ErrorCode::Timeout);
  const auto closed = state->close();
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, ErrorCode::Timeout);
  EXPECT_NE(closed.error().message.find("read of /disk/"), std::string::npos)
      << closed.error().message;
  state.reset();
}

}  // namespace
}  // namespace artesian::zero3
