// Proves that a released parameter cannot be touched: reading or writing its address ends the
// process with a line that names it, also under AddressSanitizer. Other faults are passed on.
#include "zero3/torch/parameter_guard.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

class GuardDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  std::unique_ptr<ParameterGuard> guard_ =
      ParameterGuard::create({"wte.weight", "h.0.bias"}, {100'000, 12}).value();
};

TEST_F(GuardDeathTest, AnAccessNamesTheParameter) {
  auto* inside = reinterpret_cast<volatile char*>(guard_->address(0)) + 99'999;
  EXPECT_EXIT(static_cast<void>(*inside), testing::ExitedWithCode(1),
              "parameter: wte.weight: got an access while released, allowed only inside its stage");
  auto* bias = reinterpret_cast<volatile char*>(guard_->address(1));
  EXPECT_EXIT(*bias = 1, testing::ExitedWithCode(1), "h.0.bias: got an access while released");
}

TEST_F(GuardDeathTest, AnotherFaultIsPassedOn) {
  auto* nowhere = reinterpret_cast<volatile char*>(std::uintptr_t{4096});
  EXPECT_DEATH(static_cast<void>(*nowhere),
               "^((.|\n)*SEGV(.|\n)*|)$");  // a sanitizer's report, or none
}

}  // namespace
}  // namespace artesian::zero3
