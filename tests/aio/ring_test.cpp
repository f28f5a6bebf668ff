// Proves how the io_uring engine handles rings in trouble. Ten times as many completions as the
// queue holds are all reaped, and lost ones are fatal and named (reliability.md test 9). If the
// kernel refuses submissions, the transfers end with errors, and the thread sleeps. The refusals
// are real, by seccomp filters. A callback that submits wakes no thread: its own is awake.
#include "aio/ring.h"

#include "aio/engine_base.h"
#include "aio/lane_engine.h"
#include "tests/aio/engine_fixture.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/sleeping_threads.h"

namespace artesian::aio {

/// Accesses the memory that the kernel shares with a ring.
struct RingPeer {
  static unsigned completions_max(const Ring& ring) { return ring.ring_.cq.ring_entries; }
  static void lose_completions(Ring& ring, unsigned count) { *ring.ring_.cq.koverflow = count; }
};

namespace {

using test_support::others_fall_asleep;
using test_support::run_in_child;

/// Sets up a ring, or skips the test if the kernel refuses it.
#define ARTESIAN_OPEN_RING(ring, depth) \
  Ring ring;                            \
  if ((ring).open(depth) != 0) GTEST_SKIP() << "no io_uring here"

class RingTest : public EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Only, RingTest, testing::Values(Tested::IoUring), engine_name);

TEST_P(RingTest, TenTimesTheQueueUnreapedAreAllReaped) {
  constexpr std::uint32_t depth = 4;
  constexpr std::uint64_t length = 512;
  ARTESIAN_OPEN_RING(ring, depth);
  const std::uint64_t count = 10 * RingPeer::completions_max(ring);
  const auto file = filled("file", count * length);
  const BufferLease memory = read_lease(count * length);
  std::deque<Completion> completions(count);
  std::vector<Block> blocks(count);
  for (std::uint64_t index = 0; index < count; ++index) {
    completions[index].prepare({.file = file.get(), .offset = index * length, .length = length},
                               BufferLease(memory.data(), length, nullptr));
    Block& block = blocks[index];
    block.origin = completions[index].request();
    block.descriptor = file->descriptor();
    block.memory = memory.data() + index * length;
    block.offset = index * length;
    block.length = length;
    ring.prepare(block, length);
    if (ring.blocks_queued() == depth) ring.submit();
  }
  EXPECT_EQ(ring.blocks_pending(), count);
  std::vector<std::uint64_t> answers(count, 0);
  while (ring.blocks_pending() != 0) {
    ring.wait(1);
    for (const Answer& answer : ring.reap()) {
      EXPECT_EQ(answer.result, static_cast<std::int64_t>(length));
      ++answers[static_cast<std::size_t>(answer.block - blocks.data())];
    }
  }
  EXPECT_EQ(answers, std::vector<std::uint64_t>(count, 1));
  EXPECT_TRUE(filled_right(memory, 0, count * length));
  ring.close();
}

/// A ring that counts wake-ups.
struct CountingRing : Ring {
  static inline std::atomic<int> wakes = 0;
  void wake() const noexcept {
    ++wakes;
    Ring::wake();
  }
};

TEST_P(RingTest, CallbacksThatSubmitWriteNoEventfd) {
  struct Chain {
    Engine* engine = nullptr;
    Completion completion;
    std::uint64_t left = 100;
    static void next(Completion& completion, void* context) noexcept {
      auto* chain = static_cast<Chain*>(context);
      if (--chain->left == 0) return;
      const Request request = completion.request();
      completion.prepare(request, completion.take_buffer(), next, chain);
      Completion* const list[] = {&completion};
      chain->engine->submit(list);
    }
  };
  // One transfer at a time: a lane of two slots always has a free one, and could take more.
  auto made = std::make_unique<LaneEngine<CountingRing>>(
      EngineKind::IoUring, EngineOptions{.block_size = 4096, .queue_depth = 2}, nullptr);
  if (!made->start()) GTEST_SKIP() << "no io_uring here";
  EngineOwner engine(std::move(made));
  const auto file = filled("file", 4096);
  Chain chain{.engine = &engine, .completion = {}};
  chain.completion.prepare({.file = file.get(), .length = 4096}, read_lease(4096), Chain::next,
                           &chain);
  CountingRing::wakes = 0;
  submit(engine, chain.completion);
  ASSERT_TRUE(engine.drain(Deadline::after_seconds(patience_s)));
  EXPECT_EQ(chain.left, 0u);
  EXPECT_LE(CountingRing::wakes, 1);  // the first submission's
}

TEST_P(RingTest, LostCompletionsAreFatalAndNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  remove_directory();
  {
    ARTESIAN_OPEN_RING(probe, 4);
    probe.close();
  }
  EXPECT_DEATH(
      {
        Ring ring;
        ARTESIAN_CHECK(ring.open(4) == 0);
        RingPeer::lose_completions(ring, 3);
        ring.reap();
      },
      "io_uring lost 3 completions.*completion queue overflow");
}

constexpr std::size_t to_submit =
    1;  // the argument of io_uring_enter that is the number of submissions
constexpr std::uint32_t any = ~std::uint32_t{0};

/// One read by an engine whose rings may not submit; returns its error. For child processes.
Error error_of_refused_read(Engine& engine, File& file) {
  CountedBuffers buffers;
  Completion read;
  read.prepare({.file = &file, .length = 16384}, buffers.lease(16384));
  Completion* const list[] = {&read};
  engine.submit(list);
  if (!engine.wait(read, Deadline::after_seconds(60))) return {};
  auto result = read.result();
  return result ? Error{} : result.error();
}

TEST_P(RingTest, RefusedSubmissionsComeBackAsErrorsAndTheThreadSleeps) {
  const auto file = filled("file", 65536);
  for (const int system_error : {EPERM, EAGAIN, ENOMEM}) {
    const int status = run_in_child([&] {
      auto engine = make_io_uring({.block_size = 4096, .queue_depth = 2});
      if (!engine) return 77;
      if (!others_fall_asleep()) return 4;  // its wake-up is submitted, too
      if (!test_support::refuse_call(__NR_io_uring_enter, system_error, to_submit, any, true)) {
        return 77;
      }
      for (int round = 0; round < 3; ++round) {
        const Error error = error_of_refused_read(**engine, *file);
        if (error.system_error != system_error || error.file != file->path()) return 1;
        const bool counted = error.message.find("65 times in a row") != error.message.npos;
        if (counted != (system_error == EAGAIN)) return 2;
        if (!others_fall_asleep()) return 3;
      }
      engine->reset();
      return 0;
    });
    if (status == 77) GTEST_SKIP() << "no seccomp filters or no io_uring here";
    EXPECT_EQ(status, 0) << system_error;
  }
}

// With a transfer in the kernel the thread waits for that one, and submissions that the kernel
// refuses again end as failures. The transfer in the kernel is not affected.
TEST_P(RingTest, RefusalsWhileATransferIsInTheKernelWaitForIt) {
  const auto file = filled("file", 65536);
  const int status = run_in_child([&] {
    auto engine = make_io_uring({.queue_depth = 4});
    if (!engine) return 77;
    CountedBuffers buffers;
    StalledFile stalled;
    Completion first;
    first.prepare({.file = &stalled, .length = 8}, buffers.lease(8));
    Completion* const list[] = {&first};
    (*engine)->submit(list);
    while ((*engine)->statistics().blocks_in_kernel_max == 0) sched_yield();
    if (!others_fall_asleep()) return 1;  // so it is in the kernel
    if (!test_support::refuse_call(__NR_io_uring_enter, EAGAIN, to_submit, any, true)) return 77;
    Completion second;
    second.prepare({.file = file.get(), .length = 4096}, buffers.lease(4096));
    Completion* const more[] = {&second};
    (*engine)->submit(more);
    if ((*engine)->wait(second, Deadline::after_seconds(0.05))) return 2;
    stalled.release();
    if (!(*engine)->drain(Deadline::after_seconds(60))) return 3;
    if (!first.result()) return 4;
    auto result = second.result();
    return !result && result.error().system_error == EAGAIN ? 0 : 5;
  });
  if (status == 77) GTEST_SKIP() << "no seccomp filters or no io_uring here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace artesian::aio
