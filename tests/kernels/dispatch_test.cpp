// Proves that a target can be forced and released, and that an unknown one is refused by name.
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

namespace artesian::kernels {
namespace {

TEST(Dispatch, TheBestTargetIsActiveUntilAnotherIsForced) {
  const auto targets = supported_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(active_target_name(), targets.front());
  for (const auto& target : targets) {
    EXPECT_TRUE(force_target(target).has_value());
    EXPECT_EQ(active_target_name(), target);
    EXPECT_EQ(supported_targets(), targets) << "forcing hides nothing";
    EXPECT_EQ(active_target_name(), target) << "asking changes nothing";
  }
  EXPECT_TRUE(force_target("").has_value());
  EXPECT_EQ(active_target_name(), targets.front());
}

TEST(Dispatch, TheFallbackIsAlwaysThere) {
  const auto targets = supported_targets();
  EXPECT_TRUE(targets.back() == "SCALAR" || targets.back() == "EMU128") << targets.back();
}

TEST(Dispatch, AnUnknownTargetIsRefusedByName) {
  const auto forced = force_target("AVX9000");
  ASSERT_FALSE(forced.has_value());
  EXPECT_EQ(forced.error().code, ErrorCode::Invalid);
  EXPECT_NE(forced.error().message.find("AVX9000"), std::string::npos);
  EXPECT_NE(forced.error().message.find(supported_targets().back()), std::string::npos);
}

}  // namespace
}  // namespace artesian::kernels
