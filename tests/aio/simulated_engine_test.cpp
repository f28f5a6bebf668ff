// Proves what all engines share (aio/engine_base.h) under faults that no disk produces on demand,
// on a simulated disk and a virtual clock. For each of many seeds requests are reordered, delayed,
// cut, interrupted, failed and cancelled. Every byte is right, every error is named, every buffer
// is returned (reliability.md tests 11 and 41). A slow disk is no error and delays only its own
// requests (test 40). A transfer that never ends is a Timeout that lists it (test 39).
#include "tests/support/simulated_engine.h"

#include <deque>

#include "tests/aio/engine_fixture.h"
#include "tests/support/memory_files.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"

namespace artesian::aio {
namespace {

using test_support::SimulatedEngine;
using test_support::SimulatedOptions;
using test_support::soaking;

constexpr std::uint64_t sector = 512;
constexpr std::uint64_t file_sectors = 256;

std::byte byte_at(std::uint64_t offset) {
  return static_cast<std::byte>((offset * 2654435761u) >> 13);
}

void fill(std::byte* data, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t index = 0; index < length; ++index) data[index] = byte_at(offset + index);
}

bool filled_right(const BufferLease& lease, std::uint64_t offset, std::uint64_t length) {
  std::vector<std::byte> expected(length);
  fill(expected.data(), offset, length);
  return std::equal(expected.begin(), expected.end(), lease.data());
}

/// One engine from creation to end, all drawn from a seed.
class Life {
 public:
  explicit Life(std::uint64_t seed) : seed_(seed) {
    file_ = files_.open("/disk/file", {.create = Create::Exclusive}).value();
    std::vector<std::byte> bytes(file_sectors * sector);
    fill(bytes.data(), 0, bytes.size());
    ARTESIAN_CHECK(file_->write_at(bytes.data(), bytes.size(), 0).has_value());
  }

  /// Returns what was wrong, or an empty text.
  std::string run() {
    const EngineOptions options{.block_size = 4096,
                                .queue_depth = static_cast<std::uint32_t>(1 + draw(6)),
                                .threads = static_cast<std::uint32_t>(1 + draw(2)),
                                .overlap_events = draw(4) != 0};
    const bool writes_fail = draw(8) == 0;
    const SimulatedOptions simulated{
        .seed = seed_,
        .slow = static_cast<std::uint32_t>(draw(50)),
        .shortened = 200,
        .interrupted = static_cast<std::uint32_t>(draw(200)),
        .read_failures = static_cast<std::uint32_t>(draw(100)),
        .write_failures = writes_fail ? static_cast<std::uint32_t>(draw(100)) : 0};
    SimulatedEngine engine(options, simulated);
    std::deque<Completion> transfers(1 + draw(12));
    for (std::uint64_t round = 0; round < 2 && wrong_.empty(); ++round) {
      submit(engine, transfers);
      meddle(engine, transfers);
      if (!engine.drain(Deadline::after_seconds(1000))) return "not drained";
      for (Completion& transfer : transfers) judge(transfer);
      if (called_ != callbacks_) wrong_ = "a callback was lost, or came twice";
    }
    if (buffers_.lent() != 0) wrong_ = "a buffer is still lent";
    trace = engine.trace();
    faults = engine.faults_injected();
    return wrong_;
  }
  std::uint64_t trace = 0;
  std::uint64_t faults = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;

 private:
  std::uint64_t draw(std::uint64_t limit) { return random_word(seed_, 7, draws_++) % limit; }

  void submit(SimulatedEngine& engine, std::deque<Completion>& transfers) {
    std::vector<Completion*> list;
    for (Completion& transfer : transfers) {
      const std::uint64_t first = draw(file_sectors);
      const std::uint64_t length = draw(file_sectors - first + 1) % 64 * sector;
      const bool writes = draw(2) == 0;
      const bool calls = draw(3) == 0;
      callbacks_ += calls ? 1 : 0;
      BufferLease lease = buffers_.lease(length);
      // Writes have the bytes that the file has already, so any mix of reads and writes is right.
      if (writes) {
        fill(lease.data(), first * sector, length);
      } else {
        std::memset(lease.data(), 0xee, length);
      }
      transfer.prepare({.operation = writes ? Operation::Write : Operation::Read,
                        .priority = static_cast<Priority>(draw(4)),
                        .file = file_.get(),
                        .offset = first * sector,
                        .length = length},
                       std::move(lease), calls ? count : nullptr, &called_);
      list.push_back(&transfer);
    }
    engine.submit(list);
  }

  /// Advances to random instants of the virtual clock and cancels a transfer at each.
  void meddle(SimulatedEngine& engine, std::deque<Completion>& transfers) {
    for (std::uint64_t times = draw(6); times != 0; --times) {
      engine.pass(draw(2'000'000));
      Completion& any = transfers[draw(transfers.size())];
      const bool ready = engine.wait(any, Deadline{0}).has_value();
      if (ready != any.ready()) wrong_ = "a wait says other than its completion";
      Completion& other = transfers[draw(transfers.size())];
      engine.cancel(other);
      // A transfer in flight owns its buffer.
      std::uint64_t in_flight = 0;
      for (const Completion& transfer : transfers) in_flight += transfer.in_flight() ? 1 : 0;
      if (buffers_.lent() < in_flight) wrong_ = "a buffer is free before its completion";
    }
  }

  void judge(Completion& transfer) {
    if (!transfer.ready()) wrong_ = "a completion is not ready";
    auto result = transfer.result();
    const Request request = transfer.request();
    const BufferLease lease = transfer.take_buffer();
    if (!lease) wrong_ = "a buffer is lost";
    if (result) {
      if (!filled_right(lease, request.offset, request.length)) wrong_ = "bytes are wrong";
      return;
    }
    const Error& error = result.error();
    cancelled += error.code == ErrorCode::Cancelled ? 1 : 0;
    failed += error.code == ErrorCode::Io ? 1 : 0;
    const bool expected = error.code == ErrorCode::Cancelled ||
                          (error.code == ErrorCode::Io && error.system_error == EIO);
    if (!expected || error.file != "/disk/file") wrong_ = error.to_string();
    const bool poisoned = file_->poison() != nullptr;
    const bool inside = request.offset <= error.offset &&
                        error.offset + error.length <= request.offset + request.length;
    if (!inside && !poisoned) wrong_ = "outside of its request: " + error.to_string();
  }

  static void count(Completion&, void* context) noexcept {
    ++*static_cast<std::uint64_t*>(context);
  }

  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  test_support::MemoryFiles files_{1 << 20};
  std::unique_ptr<File> file_;
  CountedBuffers buffers_;
  std::uint64_t callbacks_ = 0;
  std::uint64_t called_ = 0;
  std::string wrong_;
};

TEST(SimulatedEngine, EverySeedEndsWithEveryByteRightOrAnErrorThatIsNamed) {
  set_log_sink([](LogLevel, std::string_view) {});  // drops warnings of retries
  const std::uint64_t first = test_support::test_seed(1000);
  const std::uint64_t seeds = soaking() ? 1'000'000 : test_support::sanitized ? 1'000 : 10'000;
  std::uint64_t faults = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    Life life(seed);
    ASSERT_EQ(life.run(), "") << "seed " << seed;
    faults += life.faults;
    cancelled += life.cancelled;
    failed += life.failed;
  }
  std::printf("%llu faults, %llu requests cancelled, %llu failed\n",
              static_cast<unsigned long long>(faults), static_cast<unsigned long long>(cancelled),
              static_cast<unsigned long long>(failed));
  EXPECT_GT(faults, seeds);
  EXPECT_GT(cancelled, seeds / 10);
  EXPECT_GT(failed, seeds / 10);
  set_log_sink({});
}

TEST(SimulatedEngine, TheSameSeedIsTheSameRun) {
  set_log_sink([](LogLevel, std::string_view) {});
  std::uint64_t different = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Life first(seed);
    Life again(seed);
    Life other(seed + 1'000'000);
    ASSERT_EQ(first.run() + again.run() + other.run(), "");
    ASSERT_EQ(first.trace, again.trace) << seed;
    different += first.trace != other.trace ? 1 : 0;
  }
  EXPECT_GE(different, 195u);  // some have nothing to do
  set_log_sink({});
}

/// Virtual seconds of 20,000 reads, 32 of them in flight at a time.
double seconds_of_reads(std::uint32_t slow) {
  test_support::MemoryFiles files(1 << 20);
  const auto file = files.open("/disk/file", {.create = Create::Exclusive}).value();
  ARTESIAN_CHECK(file->allocate(4096).has_value());
  SimulatedEngine engine({.block_size = 4096, .queue_depth = 32}, {.slow = slow});
  CountedBuffers buffers;
  struct Chain {
    Engine* engine;
    std::uint64_t left = 20'000;
    static void next(Completion& completion, void* context) noexcept {
      auto* chain = static_cast<Chain*>(context);
      ARTESIAN_CHECK(completion.result().has_value());
      if (chain->left == 0) return;
      --chain->left;
      completion.prepare(completion.request(), completion.take_buffer(), next, context);
      Completion* const list[] = {&completion};
      chain->engine->submit(list);
    }
  } chain{.engine = &engine};
  std::deque<Completion> reads(32);
  for (Completion& read : reads) {
    read.prepare({.file = file.get(), .length = 4096}, buffers.lease(4096), Chain::next, &chain);
    Completion* const list[] = {&read};
    engine.submit(list);
  }
  ARTESIAN_CHECK(engine.drain(Deadline::after_seconds(1000)).has_value());
  ARTESIAN_CHECK(chain.left == 0);
  return static_cast<double>(engine.virtual_ns()) * 1e-9;
}

TEST(SimulatedEngine, OneRequestInAHundredAHundredTimesSlowerCostsItsShareOnly) {
  const double usual = seconds_of_reads(0);
  const double slowed = seconds_of_reads(10);
  std::printf("%.3f and %.3f virtual seconds: %.0f%%\n", usual, slowed, 100 * usual / slowed);
  EXPECT_GT(slowed, usual);
  EXPECT_GE(usual / slowed, 0.4);
}

// A disk that is a hundred times too slow for an hour of its clock is not reported as hanging.
TEST(SimulatedEngine, ASlowDiskIsNoFalseAlarm) {
  test_support::MemoryFiles files(1 << 20);
  const auto file = files.open("/disk/file", {.create = Create::Exclusive}).value();
  ASSERT_TRUE(file->allocate(4096));
  SimulatedEngine engine({.block_size = 4096, .queue_depth = 4}, {.delay_us_max = 100'000});
  CountedBuffers buffers;
  std::uint64_t waits = 0;
  while (engine.virtual_ns() < 3600 * std::uint64_t{1'000'000'000}) {
    Completion read;
    read.prepare({.file = file.get(), .length = 4096}, buffers.lease(4096));
    Completion* const list[] = {&read};
    engine.submit(list);
    ASSERT_TRUE(engine.wait(read, Deadline::after_seconds(60))) << waits;
    ++waits;
  }
  EXPECT_GT(waits, 3600u * 1000 / 100);
}

TEST(SimulatedEngine, ATransferThatNeverEndsIsATimeoutThatListsWhatIsInFlight) {
  StalledPoll stall;
  test_support::MemoryFiles files(1 << 20);
  const auto file = files.open("/disk/file", {.create = Create::Exclusive}).value();
  ASSERT_TRUE(file->allocate(65536));
  StalledFile stalled;
  CountedBuffers buffers;
  SimulatedEngine engine({.block_size = 4096, .queue_depth = 1}, {}, &stall);
  Completion lost;
  Completion behind;
  lost.prepare({.file = &stalled, .length = 8}, buffers.lease(8));
  behind.prepare({.file = file.get(), .offset = 8192, .length = 4096}, buffers.lease(4096));
  Completion* const list[] = {&lost, &behind};
  engine.submit(list);
  auto waited = engine.wait(behind, Deadline::after_seconds(3600));
  ASSERT_FALSE(waited);
  // A deadline is taken from the real clock first, so the time that passed there before the wait is
  // missing.
  EXPECT_GE(engine.virtual_ns(), 3000 * std::uint64_t{1'000'000'000});
  auto drained = engine.drain(Deadline::after_seconds(1));
  ASSERT_FALSE(drained);
  for (const Error& error : {waited.error(), drained.error()}) {
    EXPECT_EQ(error.code, ErrorCode::Timeout);
    for (const char* part : {"in the kernel: read of stalled at offset 0, length 8, for ",
                             "1 request waits for its turn"}) {
      EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
    }
  }
  EXPECT_EQ(waited.error().file, "/disk/file");
  EXPECT_EQ(waited.error().offset, 8192u);
  stalled.release();
  EXPECT_TRUE(engine.drain(Deadline::after_seconds(60)));
}

}  // namespace
}  // namespace artesian::aio
