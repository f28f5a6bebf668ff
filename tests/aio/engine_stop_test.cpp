// Proves that an engine may end at any of 1,000 random instants: none hangs, every completion is
// ready, and the process holds no resources afterwards (reliability.md test 12). An engine whose
// disk never answers names the transfers that hang, and gives them up together with their memory.
#include <sched.h>

#include <latch>

#include "base/keep_for_ever.h"
#include "pinned/pool.h"
#include "tests/aio/engine_fixture.h"
#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/sleeping_threads.h"

namespace artesian::aio {
namespace {

/// The resources that a process holds from the kernel.
struct Held {
  test_support::Baseline baseline;
  std::size_t maps = 0;
  std::size_t locked_kib = 0;
  std::size_t pinned_kib = 0;  // by rings

  static Held now() {
    return {.baseline = test_support::Baseline::now(),
            .maps = test_support::sanitized ? 0 : test_support::map_count(),
            .locked_kib = test_support::status_kib("VmLck"),
            .pinned_kib = test_support::status_kib("VmPin")};
  }
  /// How many threads allocate at once is chance, so any round may add an arena or a stack.
  std::size_t maps_max() const { return maps + test_support::maps_of_threads; }
  bool no_more_than(const Held& other) const {
    return baseline <= other.baseline && maps <= other.maps_max() &&
           locked_kib <= other.locked_kib && pinned_kib <= other.pinned_kib;
  }
};

/// The kernel lists threads and rings for a moment after they ended, and offers nothing to wait on.
/// `before` may have counted some of these, so it is an upper bound.
void expect_back_at(const Held& before) {
  const Deadline deadline = Deadline::after_seconds(60);
  Held now = Held::now();
  while (!now.no_more_than(before) && monotonic_ns() < deadline.at_ns) {
    sched_yield();
    now = Held::now();
  }
  EXPECT_LE(now.baseline, before.baseline);
  EXPECT_LE(now.maps, before.maps_max());
  EXPECT_LE(now.locked_kib, before.locked_kib);
  EXPECT_LE(now.pinned_kib, before.pinned_kib);
}

class EngineStop : public EngineFixture {
 protected:
  static constexpr std::uint64_t file_size = 1 << 20;
  static constexpr std::uint64_t length_max = 32 << 10;

  /// Submits random requests to an engine, and ends it at a random instant.
  void stop_somewhere(std::uint64_t seed, std::uint64_t round, pinned::Pool& pool, File& file) {
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) {
      return random_word(seed, round, drawn++) % below;
    };
    auto engine = make({.block_size = 4096u << draw(3),
                        .queue_depth = static_cast<std::uint32_t>(1 + draw(8)),
                        .threads = static_cast<std::uint32_t>(1 + draw(3)),
                        .single_submit = draw(2) == 0,
                        .overlap_events = draw(2) == 0});
    const std::span<std::byte> ranges[] = {pool.range()};
    if (draw(4) == 0) engine->register_memory(ranges);
    std::deque<Completion> transfers(draw(40));
    std::atomic<std::uint64_t> called = 0;
    std::uint64_t callbacks = 0;
    std::vector<Completion*> list;
    for (Completion& transfer : transfers) {
      const bool calls = draw(2) == 0;
      callbacks += calls ? 1 : 0;
      const Request request{.operation = draw(2) == 0 ? Operation::Read : Operation::Write,
                            .priority = static_cast<Priority>(draw(4)),
                            .file = &file,
                            .offset = draw((file_size - length_max) / 512) * 512,
                            .length = draw(length_max / 512 + 1) * 512};
      BufferLease lease = pool.lease(length_max).value();
      // Writes have the bytes that the file has already, so any mix of reads and writes is right.
      if (request.operation == Operation::Write) fill(lease.data(), request.offset, request.length);
      transfer.prepare(request, std::move(lease), calls ? count : nullptr, &called);
      list.push_back(&transfer);
    }
    engine->submit(list);
    for (std::uint64_t count = draw(4); count != 0 && !list.empty(); --count) {
      engine->cancel(*list[draw(list.size())]);
    }
    const std::uint64_t instant = monotonic_ns() + draw(800'000);
    while (monotonic_ns() < instant) sched_yield();
    const std::uint64_t begin_ns = monotonic_ns();
    engine.reset();
    ended_in_ns_max_ = std::max(ended_in_ns_max_, monotonic_ns() - begin_ns);
    ASSERT_EQ(called, callbacks);
    for (Completion& transfer : transfers) {
      ASSERT_TRUE(transfer.ready());
      auto result = transfer.result();
      const Request request = transfer.request();
      const BufferLease lease = transfer.take_buffer();
      ASSERT_TRUE(result || result.error().code == ErrorCode::Cancelled);
      ASSERT_TRUE(!result || filled_right(lease, request.offset, request.length));
    }
    ASSERT_EQ(pool.statistics().bytes_in_use, 0u);
  }

  std::uint64_t ended_in_ns_max_ = 0;

 private:
  static void count(Completion&, void* context) noexcept {
    ++*static_cast<std::atomic<std::uint64_t>*>(context);
  }
};
ARTESIAN_EVERY_ENGINE(EngineStop);

TEST_P(EngineStop, AThousandRandomInstantsLeaveNothingBehind) {
  // The kernel takes some 20 ms to release an AIO context, and the simulated engine moves one block
  // at a time.
  const bool slow = GetParam() == Tested::Libaio || GetParam() == Tested::Simulated;
  const std::uint64_t rounds = slow && !test_support::soaking() ? 100 : 1000;
  const std::uint64_t seed = test_support::test_seed(12);
  const auto file = filled("file", file_size, Direct::IfAligned);
  auto pool = pinned::Pool::create({.bytes = 40 * length_max, .name = "test pool"}).value();
  make({}).reset();  // a sanitizer's own threads come with the first of ours
  Held before = Held::now();
  for (std::uint64_t round = 0; round < rounds && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    stop_somewhere(seed, round, *pool, *file);
  }
  expect_back_at(before);
  const double seconds = static_cast<double>(ended_in_ns_max_) * 1e-9;
  std::printf("the slowest end took %.3f s\n", seconds);
  EXPECT_LT(seconds, 30.0);  // 2 s on an idle machine; a hang is what this catches
}

std::vector<std::string> lines_of_log;

class EngineAbandons : public EngineFixture {
 protected:
  void SetUp() override {
    lines_of_log.clear();
    set_log_sink([](LogLevel level, std::string_view line) {
      if (level != LogLevel::Info) lines_of_log.emplace_back(line);
    });
  }
  void TearDown() override { set_log_sink({}); }
  /// Expects one line that names the transfer that hangs.
  static void expect_report() {
    ASSERT_EQ(lines_of_log.size(), 1u);
    for (const char* part : {"has not answered for ", " s; abandoned",
                             "read of stalled at offset 0, length 8, for "}) {
      EXPECT_NE(lines_of_log[0].find(part), std::string::npos) << lines_of_log[0];
    }
    EXPECT_GE(seconds_waited(), 0.02);
  }
  /// Returns the seconds that the line names.
  static double seconds_waited() {
    constexpr std::string_view before = "has not answered for ";
    return std::strtod(lines_of_log[0].c_str() + lines_of_log[0].find(before) + before.size(),
                       nullptr);
  }
  static void expect_abandoned(Completion& completion) {
    ASSERT_TRUE(completion.ready());
    const Error error = error_of(completion);
    EXPECT_EQ(error.code, ErrorCode::Timeout);
    EXPECT_EQ(error.file, "stalled");
    EXPECT_EQ(error.length, 8u);
    EXPECT_FALSE(completion.take_buffer()) << "the kernel may still write to it";
  }
};
ARTESIAN_EVERY_ENGINE(EngineAbandons);

TEST_P(EngineAbandons, AnEngineWhoseDiskNeverAnswersEndsWithAReport) {
  make({}).reset();  // a sanitizer's own threads come with the first of ours
  const Held before = Held::now();
  const auto file = filled("file", 4096);
  auto owned = std::make_unique<StalledFile>();
  StalledFile& stalled = *owned;
  keep_for_ever(std::move(owned));  // the engine's threads outlive this test
  auto pool = pinned::Pool::create({.bytes = 16384, .lock = pinned::Lock::Never}).value();
  std::byte* const memory = pool->range().data();
  Completion stuck;
  Completion queued;
  int called = 0;
  {
    auto engine = make({.queue_depth = 1, .stop_seconds = 0.02});
    stuck.prepare(
        {.file = &stalled, .length = 8}, pool->lease(4096).value(),
        [](Completion&, void* context) noexcept { ++*static_cast<int*>(context); }, &called);
    queued.prepare({.file = file.get(), .length = 4096}, pool->lease(4096).value());
    submit(*engine, stuck);
    while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
    submit(*engine, queued);
  }
  expect_report();
  expect_abandoned(stuck);
  EXPECT_EQ(called, 1);
  EXPECT_EQ(error_of(queued).code, ErrorCode::Cancelled);
  EXPECT_TRUE(queued.take_buffer()) << "the kernel never had it";
  EXPECT_EQ(pool->statistics().bytes_in_use, 4096u);
  pool.reset();
  EXPECT_TRUE(test_support::mapped(memory)) << "nothing else may come to lie there";
  stalled.release();  // harmless by now; the engine's threads end
  const Deadline deadline = Deadline::after_seconds(60);
  while (test_support::Baseline::now().threads > before.baseline.threads &&
         monotonic_ns() < deadline.at_ns) {
    sched_yield();
  }
  EXPECT_LE(test_support::Baseline::now().threads, before.baseline.threads);
}

TEST_P(EngineAbandons, OneTransferIsGivenUpAndTheOthersGoOn) {
  const auto file = filled("file", 4096);
  auto engine = make({.queue_depth = 2});
  StalledFile stalled;
  Completion stuck;
  stuck.prepare({.file = &stalled, .length = 8}, buffers_.lease(8));
  submit(*engine, stuck);
  while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
  engine->abandon(stuck);
  expect_abandoned(stuck);
  EXPECT_EQ(buffers_.abandoned(), 1u);
  Completion read;
  read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
  run(*engine, read);
  expect_moved(read);
  engine->abandon(read);  // too late, and harmless
  expect_moved(read);
  EXPECT_TRUE(engine->drain(Deadline::after_seconds(patience_s)));
  stalled.release();
  engine.reset();
  EXPECT_TRUE(lines_of_log.empty()) << "nothing was in flight any more: " << lines_of_log[0];
}

// Whether the abandoned transfer has returned, or is still in the kernel.
TEST_P(EngineAbandons, WhatIsHealthyHasItsTimeThoughAnotherWasGivenUp) {
  for (const bool back : {true, false}) {
    auto owned = std::make_unique<StalledFile>();
    StalledFile& stalled = *owned;
    keep_for_ever(std::move(owned));  // the engine's threads may outlive this test
    StalledFile slow;
    auto engine = make({.queue_depth = 2});
    Completion given_up;
    given_up.prepare({.file = &stalled, .length = 8}, buffers_.lease(8));
    submit(*engine, given_up);
    while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
    engine->abandon(given_up);
    expect_abandoned(given_up);
    if (back) stalled.release();
    ASSERT_TRUE(test_support::others_fall_asleep());
    Completion read;
    read.prepare({.file = &slow, .length = 8}, read_lease(8));
    submit(*engine, read);
    ASSERT_TRUE(test_support::others_fall_asleep());
    std::thread end([&] { engine.reset(); });
    usleep(300'000);  // longer than the engine waits for abandoned transfers
    slow.release();
    end.join();
    expect_moved(read);
    EXPECT_TRUE(lines_of_log.empty()) << lines_of_log[0];
    if (!back) stalled.release();
    ASSERT_TRUE(test_support::others_fall_asleep());  // the test frees their memory
  }
}

// The engine's patience ends while a callback runs. The callback is held until the log names it.
TEST_P(EngineAbandons, WhatCallbacksSubmitToAnEngineThatEndsIsCancelled) {
  static std::latch* ending = nullptr;
  std::latch ended(1);
  ending = &ended;
  set_log_sink([](LogLevel level, std::string_view) {
    if (level == LogLevel::Error) ending->count_down();
  });
  struct Again {
    Engine* engine = nullptr;
    std::vector<bool> moved;
    std::vector<ErrorCode> errors;
    static void next(Completion& completion, void* context) noexcept {
      auto* again = static_cast<Again*>(context);
      const auto result = completion.result();
      again->moved.push_back(result.has_value());
      if (!result) return again->errors.push_back(result.error().code);
      ending->wait();
      completion.prepare(completion.request(), completion.take_buffer(), next, context);
      Completion* const list[] = {&completion};
      again->engine->submit(list);
    }
  };
  const auto file = filled("file", 4096);
  auto engine = make({.stop_seconds = 0.02});
  Again again{.engine = engine.get(), .moved = {}, .errors = {}};
  Completion read;
  read.prepare({.file = file.get(), .length = 4096}, read_lease(4096), Again::next, &again);
  submit(*engine, read);
  engine.reset();
  EXPECT_EQ(again.moved, (std::vector<bool>{true, false}));
  EXPECT_EQ(again.errors, std::vector<ErrorCode>{ErrorCode::Cancelled});
  EXPECT_TRUE(read.take_buffer());
}

// The callback runs on the thread that ends the engine.
TEST_P(EngineAbandons, TheCallbackOfWhatIsGivenUpMaySubmitToo) {
  struct Again {
    Engine* engine = nullptr;
    File* file = nullptr;
    std::vector<ErrorCode> errors;
    static void next(Completion& completion, void* context) noexcept {
      auto* again = static_cast<Again*>(context);
      const auto result = completion.result();
      again->errors.push_back(result ? ErrorCode::Invalid : result.error().code);
      if (again->errors.size() == 3) return;
      completion.prepare({.file = again->file}, {}, next, context);
      Completion* const list[] = {&completion};
      again->engine->submit(list);
    }
  };
  auto owned = std::make_unique<StalledFile>();
  StalledFile& stalled = *owned;
  keep_for_ever(std::move(owned));  // the engine's threads outlive it
  auto engine = make({.stop_seconds = 0.02});
  Again again{.engine = engine.get(), .file = &stalled, .errors = {}};
  Completion read;
  read.prepare({.file = &stalled, .length = 8}, buffers_.lease(8), Again::next, &again);
  submit(*engine, read);
  while (engine->statistics().blocks_in_kernel_max == 0) sched_yield();
  engine.reset();
  EXPECT_EQ(again.errors, (std::vector<ErrorCode>{ErrorCode::Timeout, ErrorCode::Cancelled,
                                                  ErrorCode::Cancelled}));
  stalled.release();
  ASSERT_TRUE(test_support::others_fall_asleep());  // the test frees their memory
}

/// A point at which the first thread is held until release.
class Gate {
 public:
  void pass() {
    if (passed_.exchange(true)) return;
    arrived_.count_down();
    released_.wait();
  }
  /// Waits until a thread is held.
  void await() { arrived_.wait(); }
  void release() { released_.count_down(); }

 private:
  std::atomic<bool> passed_ = false;
  std::latch arrived_{1};
  std::latch released_{1};
};

/// The first call moves one sector, and its answer arrives late.
class LateShortAnswer final : public FaultSeam {
 public:
  std::uint64_t length_to_ask(const Block& block) noexcept override {
    return std::min<std::uint64_t>(512, block.rest());
  }
  std::int64_t answer(const Block&, std::int64_t result) noexcept override {
    gate.pass();
    return result;
  }
  Gate gate;
};

/// The first block is taken, and handed to the kernel late.
class LateTransfer final : public FaultSeam {
 public:
  std::uint64_t length_to_ask(const Block& block) noexcept override {
    gate.pass();
    return block.rest();
  }
  Gate gate;
};

TEST_P(EngineAbandons, ATransferThatComesBackLateIsNotContinued) {
  LateShortAnswer late;
  const auto file = filled("file", 8192);
  auto engine = make({.queue_depth = 1}, &late);
  Completion read;
  BufferLease lease = read_lease(8192);
  const std::byte* const memory = lease.data();
  read.prepare({.file = file.get(), .length = 8192}, std::move(lease));
  submit(*engine, read);
  late.gate.await();
  engine->abandon(read);
  EXPECT_EQ(error_of(read).code, ErrorCode::Timeout);
  late.gate.release();
  Completion next;  // takes the place of the late one
  next.prepare({.file = file.get(), .length = 512}, read_lease(512));
  run(*engine, next);
  EXPECT_EQ(memory[511], byte_at(511));
  EXPECT_EQ(memory[512], std::byte{0xee}) << "its descriptor may be another file's by then";
  engine.reset();
}

TEST_P(EngineAbandons, WhatTheKernelDoesNotHaveYetItNeverGets) {
  LateTransfer late;
  const auto other = filled("other", 512);
  auto engine = make({.queue_depth = 1}, &late);
  Completion write;
  int number = -1;
  {
    const auto file = create("file");
    number = file->descriptor();
    write.prepare({.operation = Operation::Write, .file = file.get(), .length = 8192},
                  write_lease(0, 8192));
    submit(*engine, write);
    late.gate.await();
    engine->abandon(write);
  }
  const auto next = create("next");
  EXPECT_EQ(next->descriptor(), number);
  late.gate.release();
  Completion read;  // takes the place of the late one
  read.prepare({.file = other.get(), .length = 512}, read_lease(512));
  run(*engine, read);
  expect_moved(read);
  EXPECT_EQ(next->size().value(), 0u) << "written to a file that it was not meant for";
  engine.reset();
}

}  // namespace
}  // namespace artesian::aio
