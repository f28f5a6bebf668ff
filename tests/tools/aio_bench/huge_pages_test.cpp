// Proves that reserved pages are released, and that a refusal of the machine is an error that
// leaves its setting alone. The simulated machine can reserve 50 pages, and 2 are in use.
#include "tools/aio_bench/huge_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace artesian::bench {
namespace {

class HugePages : public testing::Test {
 protected:
  HugePages() { std::ofstream(setting_) << "5\n"; }
  int setting() const {
    int number = -1;
    std::ifstream(setting_) >> number;
    return number;
  }
  HugePageCounters counters() const {
    return {.setting = setting_, .free = [this] {
              return static_cast<std::uint64_t>(std::clamp(setting(), 2, 50) - 2);
            }};
  }
  test_support::TemporaryDirectory folder_;
  const std::string setting_ = folder_.file("nr_hugepages");
};

TEST_F(HugePages, ThatAreFreeAreEnough) {
  auto made = HugePageReservation::make(3, counters());
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(setting(), 5);
}

TEST_F(HugePages, AreReservedAndGivenBackOnce) {
  {
    auto made = HugePageReservation::make(40, counters());
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    EXPECT_EQ(setting(), 42);
    const HugePageReservation moved = std::move(made).value();
    EXPECT_EQ(setting(), 42);
  }
  EXPECT_EQ(setting(), 5);
}

TEST_F(HugePages, ThatCannotBeHadAreAnErrorAndGivenBack) {
  auto made = HugePageReservation::make(100, counters());
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::Unsupported);
  EXPECT_EQ(made.error().message, "only 48 of 100 huge pages can be reserved");
  EXPECT_EQ(setting(), 5);
}

TEST_F(HugePages, WithoutTheSettingAreAnError) {
  std::filesystem::remove(setting_);
  auto made = HugePageReservation::make(10, counters());
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("cannot be read"), std::string::npos);
  auto unwritable = HugePageReservation::make(
      1 << 20, {.setting = "/proc/sys/kernel/ngroups_max", .free = [] { return 0; }});
  ASSERT_FALSE(unwritable.has_value());
  EXPECT_NE(unwritable.error().message.find("cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace artesian::bench
