// Proves that a call that does not end costs its caller no more than a deadline, and that its late
// end does no harm. A call that ends in time returns its result and releases what it owned.
#include "base/detached_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>

namespace artesian {
namespace {

TEST(DetachedCall, GivesItsResultAndLetsGo) {
  auto owned = std::make_shared<int>(7);
  auto started = DetachedCall<int>::start("it", [owned]() -> Result<int> { return *owned; });
  ASSERT_TRUE(started.has_value());
  const auto result = started->wait(Deadline{});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(DetachedCall, AnErrorThatNobodyTookIsForgotten) {
  auto started =
      DetachedCall<void>::start("it", [] { return Result<void>(make_error(ErrorCode::Io, "x")); });
  ASSERT_TRUE(started.has_value());
  EXPECT_TRUE(started->done_within(Deadline{}));
}

TEST(DetachedCall, OneThatDoesNotEndCostsADeadline) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  const auto gate = std::make_shared<Gate>();
  auto started = DetachedCall<void>::start("opening the folder", [gate]() -> Result<void> {
    std::unique_lock lock(gate->mutex);
    gate->opened.wait(lock, [&] { return gate->open; });
    return {};
  });
  ASSERT_TRUE(started.has_value());
  const auto late = started->wait(Deadline::after_seconds(0.01));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::Timeout);
  EXPECT_NE(late.error().message.find("opening the folder"), std::string::npos);
  EXPECT_FALSE(started->done());
  {
    const std::lock_guard lock(gate->mutex);
    gate->open = true;
    gate->opened.notify_all();
  }
  EXPECT_TRUE(started->wait(Deadline{}).has_value());
}

}  // namespace
}  // namespace artesian
