// Proves the rules of a schedule: tasks of a resource run in order and one at a time, after those
// they wait for; reads and writes share a disk that is not duplex. For random schedules no end
// precedes the work of the busiest resource, nothing overlaps on a resource, and a shorter task
// makes nothing later.
#include "zero3/plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"

namespace artesian::zero3 {
namespace {

constexpr auto none = Schedule::none;

TEST(Schedule, RunsInOrderAndAfterWhatIsWaitedFor) {
  Schedule schedule(Disk::Shared);
  const auto read = schedule.add(Resource::DiskRead, 2.0, {none});
  const auto computed = schedule.add(Resource::Compute, 1.0, {read});
  const auto beside = schedule.add(Resource::DiskRead, 3.0, {});
  EXPECT_EQ(schedule.start(computed), 2.0);
  EXPECT_EQ(schedule.start(beside), 2.0);
  const auto all = schedule.join({computed, beside, none});
  EXPECT_EQ(schedule.finish(all), 5.0);
  EXPECT_EQ(schedule.busy(Resource::DiskRead), 5.0);
  EXPECT_EQ(schedule.busy(Resource::Compute), 1.0);
  EXPECT_EQ(schedule.finish(none), 0.0);
}

TEST(Schedule, SharesADiskThatIsNotDuplex) {
  for (const auto& [disk, end] : {std::pair{Disk::Shared, 5.0}, {Disk::Duplex, 3.0}}) {
    Schedule schedule(disk);
    const auto read = schedule.add(Resource::DiskRead, 2.0, {});
    const auto written = schedule.add(Resource::DiskWrite, 3.0, {});
    EXPECT_EQ(schedule.finish(schedule.join({read, written})), end);
    EXPECT_EQ(schedule.busy(Resource::DiskWrite), 3.0);
  }
}

TEST(Schedule, ADiskOfParametersIsOneMore) {
  for (const auto& [disk, end] : {std::pair{Disk::Shared, 5.0}, {Disk::Duplex, 3.0}}) {
    Schedule schedule(disk);
    const auto beside = schedule.add(Resource::DiskRead, 4.0, {});
    const auto read = schedule.add(Resource::ParamRead, 2.0, {});
    const auto written = schedule.add(Resource::ParamWrite, 3.0, {});
    EXPECT_EQ(schedule.finish(beside), 4.0);
    EXPECT_EQ(schedule.finish(schedule.join({read, written})), end);
  }
}

TEST(Schedule, NamesEachResource) {
  for (std::size_t index = 0; index < resource_count; ++index) {
    EXPECT_NE(std::string(resource_name(static_cast<Resource>(index))), "");
  }
}

struct RandomSchedule {
  Schedule schedule;
  std::vector<Resource> resources;
  std::vector<Schedule::Task> tasks;
};

/// `faster`: a resource whose tasks take half the time.
RandomSchedule random_schedule(std::uint64_t seed, std::size_t faster) {
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) { return random_word(41, seed, draw++) % bound; };
  RandomSchedule made{Schedule(below(2) == 0 ? Disk::Shared : Disk::Duplex), {}, {}};
  for (std::uint64_t count = 0; count < 200; ++count) {
    const std::uint64_t resource = below(resource_count);
    const auto waits_for = [&] {
      return made.tasks.empty() || below(3) == 0 ? none : made.tasks[below(made.tasks.size())];
    };
    const double seconds = static_cast<double>(below(100)) * (resource == faster ? 0.5 : 1.0);
    const auto one = waits_for();
    const auto other = waits_for();
    made.resources.push_back(static_cast<Resource>(resource));
    made.tasks.push_back(made.schedule.add(made.resources.back(), seconds, {one, other}));
  }
  return made;
}

TEST(Schedule, IsNeverBelowTheWorkAndNeverOverlaps) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomSchedule made = random_schedule(seed, resource_count);
    std::array<double, resource_count> free_at{};
    double end = 0.0;
    for (std::size_t index = 0; index < made.tasks.size(); ++index) {
      double& before = free_at[static_cast<std::size_t>(made.resources[index])];
      EXPECT_GE(made.schedule.start(made.tasks[index]), before);
      before = made.schedule.finish(made.tasks[index]);
      end = std::max(end, before);
    }
    for (std::size_t resource = 0; resource < resource_count; ++resource) {
      EXPECT_GE(end, made.schedule.busy(static_cast<Resource>(resource)));
    }
  }
}

TEST(Schedule, AFasterResourceMakesNothingLater) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const RandomSchedule slow = random_schedule(seed, resource_count);
    for (std::size_t faster = 0; faster < resource_count; ++faster) {
      const RandomSchedule fast = random_schedule(seed, faster);
      for (const auto task : slow.tasks) {
        ASSERT_LE(fast.schedule.finish(task), slow.schedule.finish(task)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
