// Proves what "did you mean" suggests, and when it suggests nothing.
#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace artesian {
namespace {

TEST(NearestName, IsTheFewestEditsAwayAndNotTooFar) {
  const std::vector<std::string_view> names{"none", "cpu", "nvme"};
  EXPECT_EQ(nearest_name("nvmee", names), "nvme");
  EXPECT_EQ(nearest_name("NVMe", names), "nvme");
  EXPECT_EQ(nearest_name("gpu", names), "cpu");
  EXPECT_EQ(nearest_name("qqqqqq", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), names), "");
}

}  // namespace
}  // namespace artesian
