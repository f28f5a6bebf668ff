// Proves that tiers have the names by which users know them.
#include "tiering/tier.h"

#include <gtest/gtest.h>

namespace artesian::tiering {
namespace {

TEST(Tier, Names) {
  EXPECT_STREQ(tier_name(Tier::Device), "device");
  EXPECT_STREQ(tier_name(Tier::Host), "host");
  EXPECT_STREQ(tier_name(Tier::Nvme), "nvme");
}

}  // namespace
}  // namespace artesian::tiering
