// Proves of work in slices, on a pool of three threads: damage to any array of a sub-group, in any
// slice, is found, with the same error as if arrays are verified whole. Then nothing is written, so
// the state is as before once the damage is undone. Without damage the result is right. Also proves
// what artesian.verify leaves out.
#include "zero3/step/group_blocks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/random.h"
#include "tests/zero3/tiers.h"

namespace artesian::zero3 {
namespace {

using tiering::Tier;
using tiering::Verify;

constexpr std::uint64_t slice = GroupBlocks::slice;
constexpr std::uint64_t sub_group = 3 * slice + slice / 2;
constexpr std::uint32_t block_unit = 1;  // a block's parameters: several sub-groups

/// Three threads that take pieces in turn.
class Team final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    std::vector<std::thread> threads;
    for (std::uint64_t member = 0; member < 3; ++member) {
      threads.emplace_back([&, member] {
        for (std::uint64_t at = member * grain; at < count; at += 3 * grain) {
          body(at, std::min(at + grain, count));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

struct Array {
  std::byte* data;
  std::uint64_t element_size;
  const char* name;
};

/// Returns the arrays that an update reads; and the parameter, if it does not read it.
std::vector<Array> arrays_of(const SubGroup& group, const Placement& plan) {
  const Master master = plan.units[group.unit].master;
  std::vector<Array> arrays{{reinterpret_cast<std::byte*>(group.exp_avg), 4, "exp_avg"},
                            {reinterpret_cast<std::byte*>(group.exp_avg_sq), 4, "exp_avg_sq"}};
  if (master == Master::Own) {
    arrays.push_back({reinterpret_cast<std::byte*>(group.master), 4, "master"});
  }
  if (master == Master::Split) {
    arrays.push_back({reinterpret_cast<std::byte*>(group.master_low), 2, "master_low"});
  }
  arrays.push_back({group.grad, dtype_size(plan.grad_dtype), "grad"});
  arrays.push_back({group.param, dtype_size(plan.param_dtype), "param"});
  return arrays;
}

/// The first bytes of an array, by its sub-group and its place in arrays_of.
void fill(const SubGroup& group, std::uint64_t array, std::byte* data, std::uint64_t bytes) {
  const std::uint64_t stream = (group.unit * 100 + group.index) * 10 + array;
  for (std::uint64_t at = 0; at < bytes; at += 4) {
    const auto word = static_cast<std::uint32_t>(random_word(1, stream, at));
    std::memcpy(data + at, &word, 4);
  }
}

class Fixture {
  test_support::TemporaryDirectory directory_;  // first, so that they outlive what uses them
  Team team_;
  std::unique_ptr<aio::Engine> engine_;

 public:
  explicit Fixture(DType dtype, Master master, Verify verify = Verify::Full) {
    engine_ = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value();
    const SmallModel model = make_small_model(200, 160, 1);
    Placement placement =
        place(model, {.dtype = dtype, .grad = Tier::Nvme, .sub_group = sub_group}, "/");
    placement.ring_item_bytes = sub_group * 20;  // whatever the master weights are
    placement.ring_count = 2;
    for (UnitPlacement& unit : placement.units) unit.master = master;
    auto options = state_options(std::move(placement), directory_.path());
    options.verify = verify;
    state = ModelState::create(std::move(options), *engine_, system_files(), team_).value();
    stream.emplace(*state);
    for (std::uint32_t unit = 0; unit < state->layout().units.size(); ++unit) units.push_back(unit);
    EXPECT_GE(state->placement().sub_group_count(block_unit), 3u);
    const auto filled =
        stream->run(units, {.write_state = true, .write_grad = true}, [&](const SubGroup& group) {
          std::uint64_t number = 0;
          for (const Array& array : arrays_of(group, state->placement())) {
            fill(group, number++, array.data, group.count * array.element_size);
          }
          return Result<void>();
        });
    EXPECT_TRUE(filled.has_value() && state->ring().finish().has_value());
  }
  ~Fixture() {
    EXPECT_TRUE(state->ring().finish().has_value());
    EXPECT_TRUE(state->close().has_value());
  }

  /// Flips every bit of what it writes. Counts the sub-groups that were verified.
  Result<void> update() {
    done = 0;
    const SubGroupStreamOptions options{.read_state = true, .read_grad = true, .write_state = true};
    ARTESIAN_TRY_VOID(
        stream->run({block_unit}, options,
                    {.slice =
                         [&](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
                           for (const Array& array : arrays_of(group, state->placement())) {
                             if (array.data == group.grad) continue;
                             for (auto* at = array.data + begin * array.element_size;
                                  at != array.data + end * array.element_size; ++at) {
                               *at = ~*at;
                             }
                           }
                         },
                     .after =
                         [&](const SubGroup&) {
                           ++done;
                           return Result<void>();
                         }}));
    return state->ring().finish();
  }
  /// Reads all arrays whole. Expects the bytes of `fill`, with their bits flipped or not.
  Result<void> check(std::byte flipped) {
    const auto look = [&](const SubGroup& group) -> Result<void> {
      std::uint64_t number = 0;
      for (const Array& array : arrays_of(group, state->placement())) {
        const bool read =
            array.data != group.param || state->placement().update_reads_param(group.unit);
        std::vector<std::byte> expected(group.count * array.element_size);
        fill(group, number++, expected.data(), expected.size());
        if (array.data != group.grad) {
          for (std::byte& byte : expected) byte ^= flipped;
        }
        if (!read) continue;
        EXPECT_EQ(std::memcmp(array.data, expected.data(), expected.size()), 0) << array.name;
      }
      return {};
    };
    return stream->run({block_unit}, {.read_state = true, .read_grad = true}, look);
  }
  /// Flips a bit in the swap file: of an element of the first sub-group, in the named array.
  void flip(const std::string& name, std::uint64_t element) {
    SubGroup group{.unit = block_unit};
    std::uint64_t number = 0;
    const auto arrays = arrays_of(group, state->placement());
    while (arrays.at(number).name != name) ++number;
    std::byte first[128];
    fill(group, number, first, sizeof(first));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream_of(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(stream_of), {}};
      const void* found = ::memmem(bytes.data(), bytes.size(), first + 64, 64);  // intact
      if (found == nullptr) continue;
      auto offset = static_cast<const char*>(found) - bytes.data() - 64;
      offset += static_cast<std::ptrdiff_t>(element * arrays[number].element_size);
      const auto byte = static_cast<char>(bytes[static_cast<std::size_t>(offset)] ^ 4);
      const int file = ::open(entry.path().c_str(), O_WRONLY | O_CLOEXEC);
      EXPECT_EQ(::pwrite(file, &byte, 1, offset), 1);
      EXPECT_EQ(::fsync(file), 0);
      EXPECT_EQ(::close(file), 0);
      return;
    }
    FAIL() << "no swap file has " << name;
  }
  std::vector<std::string> names_read() {
    std::vector<std::string> names;
    for (const Array& array : arrays_of({.unit = block_unit}, state->placement())) {
      const bool param = std::string(array.name) == "param";
      if (param && !state->placement().update_reads_param(block_unit)) continue;
      names.push_back(array.name);
    }
    return names;
  }

  std::unique_ptr<ModelState> state;
  std::optional<SubGroupStream> stream;
  std::vector<std::uint32_t> units;  // all
  std::uint64_t done = 0;
};

class GroupBlocksTest : public testing::TestWithParam<std::pair<DType, Master>> {};

INSTANTIATE_TEST_SUITE_P(Masters, GroupBlocksTest,
                         testing::Values(std::pair(DType::Float32, Master::Parameter),
                                         std::pair(DType::Float16, Master::Own),
                                         std::pair(DType::BFloat16, Master::Own),
                                         std::pair(DType::BFloat16, Master::Split)));

TEST_P(GroupBlocksTest, DamageToAnySliceOfAnyArrayIsFoundAndNothingIsWritten) {
  Fixture fixture(GetParam().first, GetParam().second);
  tiering::TierStore& store = fixture.state->store();
  for (const std::string& name : fixture.names_read()) {
    for (const std::uint64_t element :
         {std::uint64_t{0}, slice - 1, slice, 2 * slice + 7, sub_group - 1}) {
      SCOPED_TRACE(name + " " + std::to_string(element));
      fixture.flip(name, element);
      const auto wholes = fixture.check(std::byte{0});
      const auto before = store.statistics();
      const auto updated = fixture.update();
      ASSERT_FALSE(wholes.has_value());
      ASSERT_FALSE(updated.has_value());
      EXPECT_EQ(updated.error().code, ErrorCode::Corrupt);
      EXPECT_EQ(updated.error().to_string(), wholes.error().to_string());
      EXPECT_EQ(updated.error().file, wholes.error().file);
      EXPECT_EQ(updated.error().offset, wholes.error().offset);
      EXPECT_EQ(updated.error().length, wholes.error().length);
      EXPECT_EQ(fixture.done, 0u);
      const auto after = store.statistics();
      EXPECT_EQ(after.bytes_written, before.bytes_written);
      EXPECT_EQ(after.verify_failures, before.verify_failures + 1);
      EXPECT_EQ(after.blocks_verified, before.blocks_verified + fixture.names_read().size());
      fixture.flip(name, element);
    }
  }
  ASSERT_TRUE(fixture.check(std::byte{0}).has_value());
  ASSERT_TRUE(fixture.update().has_value());
  EXPECT_EQ(fixture.done, fixture.state->placement().sub_group_count(block_unit));
  ASSERT_TRUE(fixture.check(std::byte{0xff}).has_value());
}

TEST_P(GroupBlocksTest, DamageToSeveralArraysIsOneError) {
  Fixture fixture(GetParam().first, GetParam().second);
  const std::vector<std::string> names = fixture.names_read();
  for (const std::string& name : names) fixture.flip(name, 7);
  const auto updated = fixture.update();
  ASSERT_FALSE(updated.has_value());
  EXPECT_EQ(updated.error().code, ErrorCode::Corrupt);
  EXPECT_EQ(fixture.state->store().statistics().verify_failures, names.size());
  for (const std::string& name : names) fixture.flip(name, 7);
  ASSERT_TRUE(fixture.update().has_value());
}

TEST_P(GroupBlocksTest, WhatIsNotVerifiedIsNotSealedEither) {
  Fixture off(GetParam().first, GetParam().second, Verify::Off);
  for (const std::string& name : off.names_read()) off.flip(name, slice);
  ASSERT_TRUE(off.update().has_value());
  EXPECT_EQ(off.state->store().statistics().blocks_verified, 0u);

  Fixture sample(GetParam().first, GetParam().second, Verify::Sample);
  sample.flip("exp_avg_sq", slice);  // of a record every 16th block is verified, the first included
  ASSERT_TRUE(sample.update().has_value());
  const std::uint64_t verified = sample.state->store().statistics().blocks_verified;
  const std::uint64_t groups = sample.state->placement().sub_group_count(block_unit);
  const std::uint64_t others = sample.state->placement().update_reads_param(block_unit) ? 2 : 1;
  EXPECT_EQ(verified, groups + others);  // of parameters and gradients, too, the first block
}

TEST_P(GroupBlocksTest, ASampledBlockIsVerified) {
  Fixture sample(GetParam().first, GetParam().second, Verify::Sample);
  sample.flip("exp_avg", slice);
  const auto updated = sample.update();
  ASSERT_FALSE(updated.has_value());
  EXPECT_EQ(updated.error().code, ErrorCode::Corrupt);
}

TEST_P(GroupBlocksTest, WhatFailsAfterTheSlicesIsNotWritten) {
  Fixture fixture(GetParam().first, GetParam().second);
  const std::uint64_t written = fixture.state->store().statistics().bytes_written;
  const auto spoil = [&](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin; at < end; ++at) group.exp_avg[at] = 0.0f;
  };
  const auto fail = [](const SubGroup&) {
    return Result<void>(make_error(ErrorCode::Invalid, "made to fail"));
  };
  const auto run = fixture.stream->run({block_unit}, {.read_state = true, .write_state = true},
                                       {.slice = spoil, .after = fail});
  ASSERT_FALSE(run.has_value());
  EXPECT_EQ(run.error().code, ErrorCode::Invalid);
  EXPECT_EQ(fixture.state->store().statistics().bytes_written, written);
  EXPECT_TRUE(fixture.check(std::byte{0}).has_value());
}

}  // namespace
}  // namespace artesian::zero3
