// Engines of several paths as one: each path has its own, requests for all are passed to all, and
// if one cannot be made none is left.
#include "aio/path_engines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "tests/support/baseline.h"
#include "tests/support/memory_files.h"

namespace artesian::aio {
namespace {

constexpr EngineOptions options{.block_size = 4096, .queue_depth = 2, .stop_seconds = 1};

class Held : public testing::Test {
 protected:
  Held() {
    both = make_path_engines(2, [this]() -> Result<std::unique_ptr<Engine>> {
             auto engine = std::make_unique<test_support::MemoryEngine>(options);
             parts.push_back(engine.get());
             return std::unique_ptr<Engine>(std::move(engine));
           }).value();
    file = files.open("/disk/file", {.create = Create::Exclusive}).value();
    EXPECT_TRUE(file->allocate(1 << 20).has_value());
  }
  void write(Completion& completion, std::uint32_t path, std::uint64_t blocks) {
    const Request request{.operation = Operation::Write,
                          .file = file.get(),
                          .offset = path * blocks * 4096,
                          .length = blocks * 4096};
    completion.prepare(request, BufferLease(memory.data(), request.length, nullptr));
    Completion* const list[] = {&completion};
    both->for_path(path).submit(list);
  }

  test_support::MemoryFiles files{1 << 20};
  std::unique_ptr<File> file;
  std::array<std::byte, 64 << 10> memory{};
  std::vector<test_support::MemoryEngine*> parts;
  std::unique_ptr<Engine> both;
};

TEST_F(Held, APathThatStallsLeavesTheOtherItsSlots) {
  parts[1]->hold();
  Completion slow;
  Completion quick;
  write(slow, 1, 16);  // eight times the queue
  write(quick, 0, 4);
  EXPECT_TRUE(both->for_path(0).wait(quick, Deadline::after_seconds(20)).has_value());
  EXPECT_FALSE(slow.ready());
  const auto drained = both->drain(Deadline::after_seconds(0));
  ASSERT_FALSE(drained.has_value());
  EXPECT_EQ(drained.error().code, ErrorCode::Timeout);
  parts[1]->release();
  EXPECT_TRUE(both->drain(Deadline::after_seconds(20)).has_value());
  EXPECT_TRUE(slow.ready());
  const EngineStatistics all = both->statistics();
  EXPECT_EQ(all.bytes_written, 20u * 4096);
  EXPECT_EQ(all.blocks, 20u);
  EXPECT_EQ(both->for_path(0).statistics().bytes_written, 4u * 4096);
}

/// An engine with rings; `room` is how many of all rings may register memory.
class LimitedRings final : public Engine {
 public:
  struct Shared {
    std::uint32_t room = 0;
    std::vector<std::pair<const Engine*, std::uint32_t>> registered;  // engine, its ring
  };
  LimitedRings(std::uint32_t rings, Shared& shared) : rings_(rings), shared_(shared) {}
  std::uint32_t rings() const noexcept override { return rings_; }
  int register_with_ring(std::uint32_t ring,
                         std::span<const std::span<std::byte>> ranges) noexcept override {
    std::erase(shared_.registered, std::pair<const Engine*, std::uint32_t>(this, ring));
    if (ranges.empty()) return 0;
    if (shared_.registered.size() >= shared_.room) return ENOMEM;
    shared_.registered.emplace_back(this, ring);
    return 0;
  }
  void submit(std::span<Completion* const>) noexcept override {}
  Result<void> wait(Completion&, Deadline) noexcept override { return {}; }
  void cancel(Completion&) noexcept override {}
  void abandon(Completion&) noexcept override {}
  Result<void> drain(Deadline) noexcept override { return {}; }
  EngineStatistics statistics() const noexcept override { return {}; }
  EngineKind kind() const noexcept override { return EngineKind::IoUring; }

 private:
  const std::uint32_t rings_;
  Shared& shared_;
};

TEST(PathEngines, ShareTheRoomForRegisteredMemoryInTurn) {
  LimitedRings::Shared shared;
  std::vector<std::uint32_t> rings{2, 0, 3};  // of each path
  auto all =
      make_path_engines(3, [&, path = 0u]() mutable -> Result<std::unique_ptr<Engine>> {
        return std::unique_ptr<Engine>(std::make_unique<LimitedRings>(rings[path++], shared));
      }).value();
  const Engine* const first = &all->for_path(0);
  const Engine* const third = &all->for_path(2);
  const std::vector<std::pair<const Engine*, std::uint32_t>> order{
      {first, 0}, {third, 0}, {first, 1}, {third, 1}, {third, 2}};
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  std::array<std::byte, 4096> memory{};
  const std::span<std::byte> ranges[] = {memory};
  EXPECT_EQ(all->rings(), 5u);
  for (const std::uint32_t room : {5u, 3u, 0u}) {  // earlier registrations are forgotten
    shared.room = room;
    EXPECT_EQ(all->register_memory(ranges), room != 0);
    auto registered = shared.registered;
    ASSERT_EQ(registered.size(), room);
    for (std::uint32_t ring = 0; ring < room; ++ring) {
      EXPECT_EQ(std::count(registered.begin(), registered.end(), order[ring]), 1) << ring;
    }
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "io_uring registers 4.00 KiB of buffers with 3 of 5 rings, each of which counts them "
            "anew (Cannot allocate memory; see ulimit -l): transfers of the others go "
            "unregistered");
  EXPECT_EQ(lines[1],
            "io_uring cannot register 4.00 KiB of buffers (Cannot allocate memory; see ulimit "
            "-l): transfers go unregistered");
}

/// An engine whose counters count up from `first`.
class CountingEngine final : public Engine {
 public:
  static constexpr std::size_t counters = sizeof(EngineStatistics) / sizeof(std::uint64_t);
  using Counters = std::array<std::uint64_t, counters>;
  explicit CountingEngine(std::uint64_t first) : first_(first) {}
  EngineStatistics statistics() const noexcept override {
    Counters values{};
    std::iota(values.begin(), values.end(), first_);
    return std::bit_cast<EngineStatistics>(values);
  }
  void submit(std::span<Completion* const>) noexcept override {}
  Result<void> wait(Completion&, Deadline) noexcept override { return {}; }
  void cancel(Completion&) noexcept override {}
  void abandon(Completion&) noexcept override {}
  Result<void> drain(Deadline) noexcept override { return {}; }
  EngineKind kind() const noexcept override { return EngineKind::Threads; }

 private:
  const std::uint64_t first_;
};

TEST(PathEngines, SumEveryCounterAndTakeTheWorstLatency) {
  std::uint64_t first = 0;
  const auto both =
      make_path_engines(2, [&first]() -> Result<std::unique_ptr<Engine>> {
        return std::unique_ptr<Engine>(std::make_unique<CountingEngine>(first += 1000));
      }).value();
  const auto values = std::bit_cast<CountingEngine::Counters>(both->statistics());
  constexpr std::size_t latencies = 3;  // the last ones
  for (std::size_t index = 0; index < values.size(); ++index) {
    const bool sum = index + latencies < values.size();
    EXPECT_EQ(values[index], sum ? 3000 + 2 * index : 2000 + index) << index;
  }
}

TEST(PathEngines, OfOnePathAreTheEngineItself) {
  const auto one = make_path_engines(1, [] { return make_engine(EngineKind::Threads, options); });
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(&(*one)->for_path(0), one->get());
  EXPECT_EQ((*one)->kind(), EngineKind::Threads);
}

TEST(PathEngines, AFailureLeavesNone) {
  const auto before = test_support::Baseline::now();
  int left = 2;
  const auto refused = make_path_engines(3, [&left]() -> Result<std::unique_ptr<Engine>> {
    if (left-- == 0) return make_error(ErrorCode::Unsupported, "no more of them");
    return make_engine(EngineKind::Threads, options);
  });
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "no more of them");
  EXPECT_LE(test_support::Baseline::settled(before), before);
}

}  // namespace
}  // namespace artesian::aio
