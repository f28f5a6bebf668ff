// Proves that threads which read blocks, in several rows, get each block unchanged; that each is
// read once, most before it is needed; that no more are kept than allowed; and that an error is
// returned to the reader that asks first, and to no later one.
#include "zero3/checkpoint/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t blocks = 400;

/// Reads of blocks, each of which takes a while. A block's first byte is its number.
struct Source {
  Result<SharedBytes> read(BlockCache::Key key) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    ++reads[key.block];
    if (fails.exchange(false)) return make_error(ErrorCode::Io, "no");
    auto bytes = std::make_shared<AlignedBytes>(4096);
    bytes->data[0] = static_cast<std::byte>(key.block);
    alive += 1;
    return SharedBytes(bytes.get(), [this, bytes](const AlignedBytes*) { alive -= 1; });
  }
  BlockCache::Load load() {
    return [this](BlockCache::Key key) { return read(key); };
  }
  std::vector<std::atomic<int>> reads = std::vector<std::atomic<int>>(blocks);
  std::atomic<bool> fails = false;
  std::atomic<int> alive = 0;
};

void expect_block(BlockCache& cache, std::uint64_t block) {
  const auto bytes = cache.get({0, block});
  ASSERT_TRUE(bytes.has_value()) << bytes.error().to_string();
  ASSERT_EQ((*bytes)->data[0], static_cast<std::byte>(block));
}

TEST(BlockCache, EachOfSeveralRowsIsReadOnceByAllThreads) {
  Source source;
  BlockCache cache(source.load(), {blocks}, {.blocks = 24, .ahead = 2, .threads = 4});
  std::vector<std::thread> threads;
  std::atomic<int> alive_max = 0;
  std::barrier step(3);  // the team works on one sub-group at a time
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t at = 0; at < blocks / 4; ++at) {
        step.arrive_and_wait();
        for (std::uint64_t row = 0; row < 4; ++row) {
          expect_block(cache, row * (blocks / 4) + at);
          int seen = alive_max;
          while (seen < source.alive && !alive_max.compare_exchange_weak(seen, source.alive)) {
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& reads : source.reads) ASSERT_EQ(reads, 1);
  EXPECT_LE(alive_max, 24 + 3 + 4);
}

TEST(BlockCache, WhatComesNextIsThereBeforeItIsAskedFor) {
  Source source;
  BlockCache cache(source.load(), {blocks}, {.blocks = 24, .ahead = 2, .threads = 4});
  expect_block(cache, 0);
  for (int turn = 0; turn < 10'000 && (source.reads[1] == 0 || source.reads[2] == 0); ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(source.reads[1], 1);
  EXPECT_EQ(source.reads[2], 1);
  EXPECT_EQ(source.reads[3], 0);
  expect_block(cache, blocks - 1);  // behind which there is nothing
}

TEST(BlockCache, AnErrorIsToldOnce) {
  Source source;
  BlockCache cache(source.load(), {blocks}, {.blocks = 24, .ahead = 2, .threads = 4});
  for (const std::uint64_t block : {10, 20, 30}) {
    source.fails = true;
    int failed = 0;
    for (std::uint64_t at = block; at < block + 3; ++at) {
      const auto bytes = cache.get({0, at});
      failed += bytes.has_value() ? 0 : 1;
    }
    EXPECT_LE(failed, 1);
    for (std::uint64_t at = block; at < block + 3; ++at) expect_block(cache, at);
  }
}

TEST(BlockCache, WithoutThreadsAhead) {
  Source source;
  BlockCache cache(source.load(), {blocks}, {.blocks = 1, .ahead = 0, .threads = 0});
  for (std::uint64_t block = 0; block < 50; ++block) {
    expect_block(cache, block);
    expect_block(cache, block);
    EXPECT_EQ(source.reads[block], 1);
  }
  EXPECT_LE(source.alive, 1);
}

}  // namespace
}  // namespace artesian::zero3
