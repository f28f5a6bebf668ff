// Proves the queues of the simulated accelerator (tests/support/simulated_accelerator), also under
// `make tsan`: what is enqueued runs in every order that waits allow; two operations that lack an
// order are named in each; and any threads may enqueue, wait and look on, as autograd's do.
#include "tests/support/simulated_accelerator/late_queues.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace artesian::test_support {
namespace {

constexpr std::array<Order, 3> orders{Order::Late, Order::Early, Order::Random};

TEST(LateQueues, LateWorkRunsWhenSomebodyWaits) {
  LateQueues queues;
  const std::size_t one = queues.add_queue();
  int ran = 0;
  queues.enqueue(one, "a", {}, [&] { ++ran; });
  const LateQueues::Mark mark = queues.record(one);
  queues.enqueue(one, "b", {}, [&] { ++ran; });
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(queues.passed(mark));
  queues.finish(mark);
  EXPECT_EQ(ran, 1);
  queues.finish_all();
  EXPECT_EQ(ran, 2);
  EXPECT_TRUE(queues.all_idle());
}

TEST(LateQueues, AMissingWaitIsNamedInEveryOrderAndAWaitIsKept) {
  for (const Order order : orders) {
    for (const bool waits : {false, true}) {
      LateQueues queues;
      queues.set_order(order, 7);
      const std::size_t copies = queues.add_queue();
      const std::size_t compute = queues.add_queue();
      int slot = 0;
      int seen = 0;
      queues.enqueue(copies, "copy", {range_at(&slot, sizeof slot, true)}, [&] { slot = 1; });
      if (waits) queues.wait(compute, queues.record(copies));
      queues.enqueue(compute, "read", {range_at(&slot, sizeof slot, false)}, [&] { seen = slot; });
      queues.finish(queues.record(compute));
      EXPECT_TRUE(!waits || seen == 1);
      EXPECT_EQ(queues.counts().races, waits ? 0u : 1u);
      EXPECT_EQ(queues.races().size(), waits ? 0u : 1u);
      queues.finish_all();
    }
  }
}

TEST(LateQueues, WhatHasRunIsDestroyedWithoutTheLock) {
  for (const Order order : orders) {
    LateQueues queues;
    queues.set_order(order, 3);
    const std::size_t one = queues.add_queue();
    // Another thread can use the queues while the work dies, as one that has the interpreter would.
    int looked = 0;
    std::shared_ptr<int> held(&looked, [&](int* count) {
      std::thread other([&] { *count += queues.all_idle() ? 1 : 0; });
      other.join();
    });
    queues.enqueue(one, "keeps", {}, [kept = std::move(held)] {});
    queues.finish_all();
    EXPECT_EQ(looked, 1);
  }
}

TEST(LateQueues, ThreadsMayUseThemAtOnce) {
  constexpr int threads = 4;
  constexpr int rounds = 200;
  for (const Order order : orders) {
    LateQueues queues;
    queues.set_order(order, 5);
    for (int index = 0; index <= threads; ++index) queues.add_queue();
    std::array<int, threads> sums{};  // each is one queue's, and the last queue's, in turn
    std::atomic<int> ended{0};
    const auto work = [&](std::size_t own) {
      int& sum = sums[own];
      const std::vector<Range> range{range_at(&sum, sizeof sum, true)};
      for (int round = 0; round < rounds; ++round) {
        queues.enqueue(own, "add", range, [&sum] { ++sum; });
        queues.wait(threads, queues.record(own));
        queues.enqueue(threads, "double", range, [&sum] { sum = 2 * sum % 1'000'003; });
        const LateQueues::Mark behind = queues.record(threads);
        queues.wait(own, behind);
        if (round % 16 == 0) queues.finish(behind);
        if (round % 16 == 8) static_cast<void>(queues.passed(behind));
        if (round % 16 == 9) static_cast<void>(queues.is_used(range.front()));
      }
      ++ended;
    };
    std::vector<std::thread> running;
    for (std::size_t own = 0; own < threads; ++own) running.emplace_back(work, own);
    while (ended < threads) static_cast<void>(queues.counts());
    for (std::thread& each : running) each.join();
    queues.finish_all();
    int expected = 0;
    for (int round = 0; round < rounds; ++round) expected = 2 * (expected + 1) % 1'000'003;
    for (const int sum : sums) EXPECT_EQ(sum, expected);
    EXPECT_EQ(queues.counts().races, 0u) << queues.races().front();
    EXPECT_TRUE(queues.all_idle());
  }
}

}  // namespace
}  // namespace artesian::test_support
