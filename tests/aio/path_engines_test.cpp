// Engines of several paths as one: each path has its own, what is asked of all is asked of all, and
// a failure to make one leaves none.
#include "aio/path_engines.h"

#include <gtest/gtest.h>

#include <array>

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
