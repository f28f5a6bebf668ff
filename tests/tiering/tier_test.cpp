// Proves that a budget is hard, that every byte is counted under its tag, and that reservations
// give back exactly what they took, moved or not. Random reservations are compared with plain sums.
#include "tiering/tier.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/process.h"

namespace artesian::tiering {
namespace {

TEST(Tier, Names) {
  EXPECT_STREQ(tier_name(Tier::Device), "device");
  EXPECT_STREQ(tier_name(Tier::Host), "host");
  EXPECT_STREQ(tier_name(Tier::Nvme), "nvme");
}

TEST(Budget, ReservesUpToTheLastByteAndNoMore) {
  Budget budget({100, 0, ~0ull});
  auto all = budget.reserve(Tier::Device, 100, "all");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(budget.free(Tier::Device), 0u);
  EXPECT_FALSE(budget.reserve(Tier::Device, 1, "more").has_value());
  EXPECT_FALSE(budget.reserve(Tier::Host, 1, "more").has_value());
  EXPECT_TRUE(budget.reserve(Tier::Host, 0, "nothing").has_value());
  auto huge = budget.reserve(Tier::Nvme, ~0ull, "huge");
  EXPECT_TRUE(huge.has_value());
  EXPECT_FALSE(budget.reserve(Tier::Nvme, ~0ull, "more").has_value());  // the sum would wrap
}

TEST(Budget, RefusalNamesTierTagAskedAndMissing) {
  Budget budget({0, 4096, 0});
  auto first = budget.reserve(Tier::Host, 1024, "gradients");
  const auto refused = budget.reserve(Tier::Host, 8192, "optimizer ring");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  EXPECT_EQ(refused.error().to_string(),
            "host budget: optimizer ring needs 8.00 KiB, but 1.00 KiB of 4.00 KiB are in use: "
            "5.00 KiB (5120 bytes) missing");
  EXPECT_EQ(budget.lines(Tier::Host).size(), 1u);  // a refused tag leaves no line
}

TEST(Budget, MovedReservationsGiveBackOnce) {
  Budget budget({100, 100, 0});
  {
    auto first = budget.reserve(Tier::Device, 40, "a");
    Reservation moved = std::move(first).value();
    Reservation target;
    target = std::move(moved);
    EXPECT_EQ(moved.bytes(), 0u);  // NOLINT: the moved-from state is promised
    EXPECT_EQ(target.bytes(), 40u);
    auto second = budget.reserve(Tier::Device, 60, "b");
    target = std::move(second).value();  // gives the 40 back
    EXPECT_EQ(budget.used(Tier::Device), 60u);
    target.reset();
    target.reset();
    EXPECT_EQ(budget.used(Tier::Device), 0u);
  }
  EXPECT_EQ(budget.peak(Tier::Device), 100u);
}

TEST(Budget, RandomReservationsEqualPlainSums) {
  constexpr std::uint64_t limit = 1000;
  std::mt19937_64 random(test_support::test_seed(7));
  Budget budget({limit, 0, 0});
  std::vector<std::pair<std::string, Reservation>> held;
  std::map<std::string, std::uint64_t> sums;
  std::map<std::string, std::uint64_t> peaks;
  std::uint64_t used = 0;
  for (int step = 0; step < 10000; ++step) {
    if (random() % 2 == 0) {
      const std::string tag(1, static_cast<char>('a' + random() % 5));
      const std::uint64_t bytes = random() % 300;
      auto reserved = budget.reserve(Tier::Device, bytes, tag);
      ASSERT_EQ(reserved.has_value(), used + bytes <= limit);
      if (!reserved.has_value()) continue;
      held.emplace_back(tag, std::move(reserved).value());
      used += bytes;
      sums[tag] += bytes;
      peaks[tag] = std::max(peaks[tag], sums[tag]);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      used -= held.back().second.bytes();
      sums[held.back().first] -= held.back().second.bytes();
      held.pop_back();
    }
    ASSERT_EQ(budget.used(Tier::Device), used);
  }
  for (const auto& line : budget.lines(Tier::Device)) {
    EXPECT_EQ(line.bytes, sums[line.tag]) << line.tag;
    EXPECT_EQ(line.bytes_peak, peaks[line.tag]) << line.tag;
  }
}

TEST(BudgetDeathTest, DyingWithBytesLentAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        Reservation outlives;
        Budget budget({100, 100, 100});
        outlives = budget.reserve(Tier::Host, 1, "lost").value();
      },
      "CHECK failed");
}

}  // namespace
}  // namespace artesian::tiering
