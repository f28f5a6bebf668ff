// Proves on every engine the order of classes, cancelling, waits with deadlines, callbacks and
// draining: no buffer is free before its completion (reliability.md test 11). Tests hold requests
// back by a stalled file or a delayed answer, never by time.
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/process_cpus.h"
#include "tests/aio/engine_fixture.h"
#include "tests/support/process.h"
#include "tests/support/sleeping_threads.h"

namespace artesian::aio {
namespace {

class EngineControl : public EngineFixture {};
ARTESIAN_EVERY_ENGINE(EngineControl);

struct Order {
  std::mutex mutex;
  std::vector<const Completion*> ended;
  static void note(Completion& completion, void* context) noexcept {
    auto* order = static_cast<Order*>(context);
    const std::lock_guard lock(order->mutex);
    order->ended.push_back(&completion);
  }
};

TEST_P(EngineControl, UrgentClassesOvertakeQueuedOnes) {
  auto engine = make({.queue_depth = 1});
  const auto file = filled("file", 4096);
  StalledFile stalled;
  Order order;
  Completion first;
  first.prepare({.file = &stalled, .length = 8}, read_lease(8), Order::note, &order);
  submit(*engine, first);
  constexpr Priority classes[] = {Priority::WriteBack, Priority::WriteBack, Priority::OptimizerRead,
                                  Priority::Prefetch,  Priority::Demand,    Priority::Demand};
  std::deque<Completion> others(6);
  for (std::size_t index = 0; index < others.size(); ++index) {
    others[index].prepare({.operation = index < 2 ? Operation::Write : Operation::Read,
                           .priority = classes[index],
                           .file = file.get(),
                           .length = 4096},
                          write_lease(0, 4096), Order::note, &order);
    submit(*engine, others[index]);
  }
  stalled.release();
  ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
  EXPECT_EQ(order.ended, (std::vector<const Completion*>{&first, &others[4], &others[5], &others[3],
                                                         &others[2], &others[0], &others[1]}));
}

// The kernel needs requests of each class that keep it busy: files that stall.
TEST_P(EngineControl, WriteBackLeavesRoomForReadsAndTakesAllWhenThereAreNone) {
  constexpr std::uint32_t depth = 8;
  const auto file = filled("file", 4096);
  for (const bool beside_a_read : {true, false}) {
    auto engine = make({.queue_depth = depth});
    StalledFile stalled_read;
    StalledFile stalled;  // reads of the class stand for its writes: the kernel has none that stall
    std::deque<Completion> first(beside_a_read ? 1 : 0);
    for (Completion& read : first) {
      read.prepare({.file = &stalled_read, .length = 8}, read_lease(8));
      submit(*engine, read);
      while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
    }
    std::deque<Completion> write_backs(2 * depth);
    std::vector<Completion*> list;
    for (Completion& write : write_backs) {
      write.prepare({.priority = Priority::WriteBack, .file = &stalled, .length = 8},
                    read_lease(8));
      list.push_back(&write);
    }
    engine->submit(list);
    const std::uint64_t most = beside_a_read ? 1 + depth / 2 : depth;
    while (engine->statistics().blocks_in_kernel_max < most) sched_yield();
    if (beside_a_read) {
      Completion urgent;
      urgent.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
      run(*engine, urgent);  // it has a slot, though nothing else has ended
      expect_moved(urgent);
      EXPECT_LE(engine->statistics().blocks_in_kernel_max, most + 1);
      stalled_read.release();
      await(*engine, first[0]);
      // Without other requests, write-back has the remaining slots, too.
      while (engine->statistics().blocks_in_kernel_max < depth) sched_yield();
    }
    stalled.release(2 * depth);
    ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
    EXPECT_EQ(engine->statistics().blocks_in_kernel_max, depth);
  }
}

/// Engines in which a block may hold its thread.
class EngineThreads : public EngineFixture {};
ARTESIAN_REAL_ENGINES(EngineThreads);

TEST_P(EngineThreads, AllTakeTheBlocksOfOneWriteBackOnceItIsAlone) {
  constexpr std::uint32_t threads = 16;
  constexpr std::uint64_t blocks = 4 * threads;
  HeldWriteBacks held(stall());
  auto engine = make({.block_size = 4096, .queue_depth = 1, .threads = threads}, &held);
  const auto file = create("file");
  StalledFile stalled;
  std::deque<Completion> reads(threads / 2);
  for (Completion& read : reads) {
    read.prepare({.file = &stalled, .length = 8}, read_lease(8));
    submit(*engine, read);
  }
  while (engine->statistics().blocks_in_kernel_max < reads.size()) sched_yield();
  Completion write;
  write.prepare({.operation = Operation::Write,
                 .priority = Priority::WriteBack,
                 .file = file.get(),
                 .length = blocks * 4096},
                write_lease(0, blocks * 4096));
  submit(*engine, write);
  while (held.held() < threads / 2) sched_yield();  // beside others, half of the places
  stalled.release(reads.size());
  for (Completion& read : reads) await(*engine, read);
  const Deadline deadline = Deadline::after_seconds(patience_s);
  while (held.held() < threads && monotonic_ns() < deadline.at_ns) sched_yield();
  EXPECT_EQ(held.held(), threads);
  held.release();
  await(*engine, write);
  expect_moved(write);
}

// As a program's main thread that OpenMP has bound.
TEST_P(EngineThreads, RunOnEveryProcessorThoughTheirStarterIsBoundToOne) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one processor";
  const auto file = filled("file", 65536);
  const int status = test_support::run_in_child([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    note_process_cpus();
    if (sched_setaffinity(0, sizeof one, &one) != 0) return 1;
    auto engine = make({.queue_depth = 2, .threads = 2});
    Completion read;
    read.prepare({.file = file.get(), .length = 65536}, read_lease(65536));
    submit(*engine, read);
    if (!engine->wait(read, Deadline::after_seconds(patience_s)) || !read.result()) return 2;
    const auto look = [&] {
      int others = 0;
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        const pid_t id = std::stoi(task.path().filename());
        if (id == gettid()) continue;
        cpu_set_t its;
        if (sched_getaffinity(id, sizeof its, &its) != 0) continue;  // it has ended
        if (!CPU_EQUAL(&its, &all)) return 3;
        ++others;
      }
      return others >= 2 ? 0 : 4;
    };
    // A thread unbinds itself when it first runs, which may be later on a busy machine.
    const Deadline deadline = Deadline::after_seconds(patience_s);
    int seen = look();
    while (seen != 0 && monotonic_ns() < deadline.at_ns) {
      sched_yield();
      seen = look();
    }
    return seen;
  });
  EXPECT_EQ(status, 0);
}

// The lane that is woken first has one free slot, and its next request stalls.
TEST_P(EngineControl, ALaneThatIsAlmostFullHoldsNothingBack) {
  constexpr std::uint32_t depth = 4;
  auto engine = make({.queue_depth = depth, .threads = 2});
  StalledFile stalled;
  StalledFile quick;
  std::deque<Completion> first(depth - 1);
  ASSERT_TRUE(test_support::others_fall_asleep());  // then the first lane takes each of these
  for (std::uint64_t index = 0; index < first.size(); ++index) {
    first[index].prepare({.file = &stalled, .length = 8}, read_lease(8));
    submit(*engine, first[index]);
    while (engine->statistics().blocks_in_kernel_max <= index) sched_yield();
  }
  std::deque<Completion> others(depth);
  std::vector<Completion*> list;
  for (Completion& read : others) {
    File& file = list.empty() ? stalled : quick;
    read.prepare({.file = &file, .length = 8}, read_lease(8));
    list.push_back(&read);
  }
  quick.release(depth - 1);
  engine->submit(list);
  for (std::size_t index = 1; index < depth; ++index) {
    auto waited = engine->wait(others[index], Deadline::after_seconds(patience_s));
    EXPECT_TRUE(waited) << index << ": " << waited.error().to_string();
  }
  stalled.release(depth);
  quick.release(depth);  // if one of the others were still waiting
  ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
}

TEST_P(EngineControl, QueuedWorkEndsAtOnceWhenCancelled) {
  auto engine = make({.queue_depth = 1});
  const auto file = filled("file", 4096);
  StalledFile stalled;
  Completion in_kernel;
  in_kernel.prepare({.file = &stalled, .length = 8}, read_lease(8));
  submit(*engine, in_kernel);
  // There is no completion yet to wait on.
  while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
  std::deque<Completion> queued(3);
  for (Completion& read : queued) {
    read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
    submit(*engine, read);
  }
  for (const std::size_t index : {1u, 0u}) {  // from the middle, then from the front
    engine->cancel(queued[index]);
    ASSERT_TRUE(queued[index].ready());
    const Error error = error_of(queued[index]);
    EXPECT_EQ(error.code, ErrorCode::Cancelled);
    EXPECT_EQ(error.file, file->path());
  }
  engine->cancel(in_kernel);
  EXPECT_FALSE(in_kernel.ready()) << "its buffer still belongs to the kernel";
  stalled.release();
  await(*engine, in_kernel);
  expect_moved(in_kernel);
  await(*engine, queued[2]);
  expect_moved(queued[2]);
  engine->cancel(queued[2]);  // too late, and harmless
  expect_moved(queued[2]);
}

// A thread that waits already, with nothing in the kernel whose end would wake it.
TEST_P(EngineControl, CancellingWakesWhoWaits) {
  auto engine = make({.queue_depth = 1});
  const auto file = filled("file", 4096);
  StalledFile stalled;
  Completion in_kernel;
  in_kernel.prepare({.file = &stalled, .length = 8}, read_lease(8));
  submit(*engine, in_kernel);
  while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
  Completion queued;
  queued.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
  submit(*engine, queued);
  const std::uint64_t begin = monotonic_ns();
  Result<void> waited;
  std::thread waiter(
      [&] { waited = engine->wait(queued, Deadline::after_seconds(10 * patience_s)); });
  EXPECT_TRUE(test_support::others_fall_asleep());
  engine->cancel(queued);
  waiter.join();
  EXPECT_LT(monotonic_ns() - begin, patience_s * 1e9);
  EXPECT_TRUE(waited.has_value());
  EXPECT_EQ(error_of(queued).code, ErrorCode::Cancelled);
  stalled.release();
  await(*engine, in_kernel);
}

TEST_P(EngineControl, CancelDropsTheBlocksThatAreNotInTheKernel) {
  DelayedAnswer delayed;
  auto engine = make({.block_size = 4096, .queue_depth = 1}, &delayed);
  const auto file = filled("file", 3 * 4096);
  Completion read;
  read.prepare({.file = file.get(), .length = 3 * 4096}, read_lease(3 * 4096));
  submit(*engine, read);
  delayed.await();
  engine->cancel(read);
  EXPECT_FALSE(read.ready());
  delayed.release();
  await(*engine, read);
  EXPECT_EQ(error_of(read).code, ErrorCode::Cancelled);
  EXPECT_EQ(engine->statistics().blocks, 1u);
  EXPECT_TRUE(read.take_buffer());
}

// Requests that end without the kernel call their callbacks though every transfer in the kernel
// stalls: a cancelled request, an empty one, and one of a file that failed before.
TEST_P(EngineControl, CallbacksOfWhatNeedsNoDiskRunWhileTheDiskStalls) {
  constexpr std::uint32_t depth = 2;
  auto engine = make({.queue_depth = depth});
  const auto file = filled("file", 4096);
  const auto broken = filled("broken", 4096);
  broken->poison_with(make_error(ErrorCode::Io, "made up"));
  StalledFile stalled;
  std::deque<Completion> in_kernel(depth);
  for (Completion& read : in_kernel) {
    read.prepare({.file = &stalled, .length = 8}, read_lease(8));
    submit(*engine, read);
  }
  while (engine->statistics().blocks_in_kernel_max < depth) sched_yield();
  ASSERT_TRUE(test_support::others_fall_asleep());
  Order order;
  std::deque<Completion> others(3);
  others[0].prepare({.file = file.get(), .length = 4096}, read_lease(4096), Order::note, &order);
  submit(*engine, others[0]);
  engine->cancel(others[0]);
  await(*engine, others[0]);
  EXPECT_EQ(error_of(others[0]).code, ErrorCode::Cancelled);
  others[1].prepare({.file = file.get()}, {}, Order::note, &order);
  run(*engine, others[1]);
  expect_moved(others[1]);
  others[2].prepare({.file = broken.get(), .length = 4096}, read_lease(4096), Order::note, &order);
  run(*engine, others[2]);
  EXPECT_EQ(error_of(others[2]).message, "made up");
  for (Completion& read : in_kernel) EXPECT_TRUE(read.in_flight());
  stalled.release(depth);
  ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
  EXPECT_EQ(order.ended, (std::vector<const Completion*>{&others[0], &others[1], &others[2]}));
}

TEST_P(EngineControl, WaitEndsAtItsDeadlineAndTheRequestGoesOn) {
  auto engine = make({});
  StalledFile stalled;
  Completion read;
  read.prepare({.file = &stalled, .length = 8}, read_lease(8));
  submit(*engine, read);
  auto waited = engine->wait(read, Deadline::after_seconds(0.02));
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, ErrorCode::Timeout);
  EXPECT_EQ(waited.error().file, "stalled");
  auto past = engine->wait(read, Deadline{0});
  ASSERT_FALSE(past);
  auto drained = engine->drain(Deadline::after_seconds(0.02));
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().code, ErrorCode::Timeout);
  EXPECT_TRUE(read.in_flight());
  stalled.release();
  await(*engine, read);
  expect_moved(read);
}

struct Chain {
  Engine* engine = nullptr;
  std::thread::id submitter = std::this_thread::get_id();
  int left = 0;
  int on_submitter = 0;
  static void next(Completion& completion, void* context) noexcept {
    auto* chain = static_cast<Chain*>(context);
    if (std::this_thread::get_id() == chain->submitter) ++chain->on_submitter;
    if (!completion.result() || --chain->left == 0) return;
    completion.prepare(completion.request(), completion.take_buffer(), next, context);
    Completion* const list[] = {&completion};
    chain->engine->submit(list);
  }
};

TEST_P(EngineControl, CallbacksSubmitAgainOnProgressThreads) {
  auto engine = make({.queue_depth = 2});
  const auto file = filled("file", 4096);
  Chain chain{.engine = engine.get(), .left = 2000};
  Completion read;
  read.prepare({.file = file.get(), .length = 4096}, read_lease(4096), Chain::next, &chain);
  submit(*engine, read);
  ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
  EXPECT_EQ(chain.left, 0);
  EXPECT_EQ(chain.on_submitter, 0);
  EXPECT_EQ(engine->statistics().blocks, 2000u);
  expect_moved(read);
}

TEST_P(EngineControl, EmptyRequestsCallTheirCallbackOnProgressThreads) {
  auto engine = make({});
  const auto file = create("file");
  Chain chain{.engine = engine.get(), .left = 1000};
  Completion read;
  read.prepare({.file = file.get()}, {}, Chain::next, &chain);
  submit(*engine, read);
  ASSERT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
  EXPECT_EQ(chain.left, 0);
  EXPECT_EQ(chain.on_submitter, 0);
}

// A completion with a callback becomes ready without the engine's lock, at any moment of a wait.
TEST_P(EngineControl, WaitMayMeetTheEndOfARequestWithACallback) {
  auto engine = make({});
  const auto file = create("file");
  for (int round = 0; round < 20000; ++round) {
    std::atomic<bool> called = false;
    Completion read;
    read.prepare(
        {.file = file.get()}, {},
        [](Completion&, void* context) noexcept {
          static_cast<std::atomic<bool>*>(context)->store(true);
        },
        &called);
    submit(*engine, read);
    await(*engine, read);
    while (!called) sched_yield();
  }
}

TEST_P(EngineControl, ManyThreadsSubmitCancelAndWait) {
  const std::uint64_t seed = test_support::test_seed(7);
  auto engine = make({.block_size = 4096, .queue_depth = 3, .threads = 2});
  const auto file = filled("file", 64 * 4096);
  const auto work = [&](std::uint64_t stream) {
    std::deque<Completion> reads(16);
    for (std::uint64_t round = 0; round < 100; ++round) {
      std::vector<Completion*> list;
      for (Completion& read : reads) {
        const std::uint64_t word = random_word(seed, stream, round * reads.size() + list.size());
        read.prepare({.priority = static_cast<Priority>(word % 4),
                      .file = file.get(),
                      .offset = (word >> 8) % 32 * 4096,
                      .length = (word >> 16) % 32 * 1024},
                     read_lease(32 * 1024));
        list.push_back(&read);
      }
      engine->submit(list);
      for (std::size_t index = 0; index < list.size(); ++index) {
        if (random_word(seed, stream + 100, round * 16 + index) % 4 == 0) {
          engine->cancel(*list[index]);
        }
      }
      for (Completion* read : list) {
        auto waited = engine->wait(*read, Deadline::after_seconds(patience_s));
        ARTESIAN_CHECK(waited.has_value());
        auto result = read->result();
        const Request request = read->request();
        const BufferLease lease = read->take_buffer();
        ARTESIAN_CHECK(result ? filled_right(lease, request.offset, request.length)
                              : result.error().code == ErrorCode::Cancelled);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t stream = 0; stream < 4; ++stream) threads.emplace_back(work, stream);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(buffers_.lent(), 0u);
}

using EngineControlDeathTest = EngineControl;
ARTESIAN_EVERY_ENGINE(EngineControlDeathTest);

TEST_P(EngineControlDeathTest, TakingTheBufferInFlightIsAProgrammerError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  remove_directory();
  EXPECT_DEATH(
      {
        auto engine = make({});
        StalledFile stalled;
        Completion read;
        read.prepare({.file = &stalled, .length = 8}, read_lease(8));
        submit(*engine, read);
        static_cast<void>(read.take_buffer());
      },
      "CHECK failed: !in_flight");
}

}  // namespace
}  // namespace artesian::aio
