// Proves that a Result carries its value or its error through moves, ARTESIAN_TRY and and_then,
// that error texts have all fields, and that reading the value of an error aborts.
#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

namespace artesian {
namespace {

Result<std::unique_ptr<int>> half(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::Invalid, "got an odd number, allowed even ones");
  return std::make_unique<int>(value / 2);
}

Result<int> quarter(int value) {
  ARTESIAN_TRY(once, half(value));
  ARTESIAN_TRY(twice, half(*once));
  return *twice;
}

Result<void> quarter_exists(int value) {
  ARTESIAN_TRY_VOID(quarter(value));
  return {};
}

TEST(Result, TryNamesTheValueOrReturnsTheError) {
  EXPECT_EQ(*quarter(8), 2);
  auto failed = quarter(6);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::Invalid);
  EXPECT_TRUE(quarter_exists(4));
  EXPECT_FALSE(quarter_exists(5));
}

TEST(Result, AndThenChains) {
  EXPECT_EQ(*half(8).and_then([](std::unique_ptr<int> value) { return quarter(*value); }), 1);
  EXPECT_FALSE(half(3).and_then([](std::unique_ptr<int> value) { return quarter(*value); }));
  EXPECT_TRUE(Result<void>().and_then([] { return Result<void>(); }));
}

TEST(Result, ErrorTextNamesWhatFileRangeAndCause) {
  Error error = make_error(ErrorCode::Io, "cannot read", EIO);
  error.file = "swap";
  error.offset = 4096;
  error.length = 512;
  EXPECT_EQ(error.to_string(), "cannot read: swap: at offset 4096, length 512: Input/output error");
  EXPECT_EQ(Error{.code = ErrorCode::Timeout}.to_string(), "Timeout");
  EXPECT_GT(error.source_line, 0);
}

TEST(Result, EveryCodeHasItsName) {
  for (const ErrorCode code :
       {ErrorCode::Io, ErrorCode::NoSpace, ErrorCode::Corrupt, ErrorCode::Invalid,
        ErrorCode::Exhausted, ErrorCode::Cancelled, ErrorCode::Timeout, ErrorCode::Busy,
        ErrorCode::Unsupported, ErrorCode::PeerLost}) {
    EXPECT_STRNE(error_code_name(code), "Unknown");
  }
}

TEST(ResultDeathTest, ValueOfAnErrorAborts) {
  EXPECT_DEATH(
      {
        auto failed = half(1);
        static_cast<void>(failed.value());
      },
      "CHECK failed");
}

TEST(CheckDeathTest, FailedCheckPrintsExpressionPlaceAndValues) {
  const int got = 3;
  EXPECT_DEATH(ARTESIAN_CHECK(got == 4, got, std::string("text").size()),
               "CHECK failed: got == 4 at .*result_test.cpp:[0-9]+ \\(3, 4\\)");
  ARTESIAN_CHECK(got == 3);
}

}  // namespace
}  // namespace artesian
