// Proves that the arena lends aligned pieces that never overlap, reuses its memory, never holds
// more than was in use at one moment, and refuses when the kernel does. Random pieces are compared
// with a naive map of bytes. The kernel (mincore) says what is held. The refusals are real (limits,
// a filter of system calls).
#include "pinned/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seccomp.h"

namespace artesian::pinned {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t granule = Arena::granule_size;

std::unique_ptr<Arena> make_arena(std::uint64_t bytes) {
  auto arena = Arena::reserve(bytes);
  EXPECT_TRUE(arena.has_value());
  return std::move(arena).value();
}

std::span<std::byte> must_take(Arena& arena, std::uint64_t bytes) {
  const auto piece = arena.take(bytes);
  EXPECT_FALSE(piece.empty()) << bytes;
  return piece;
}

/// Takes a piece and writes every page of it.
std::span<std::byte> take_and_fill(Arena& arena, std::uint64_t bytes) {
  const auto piece = must_take(arena, bytes);
  std::memset(piece.data(), 1, piece.size());
  return piece;
}

/// Bytes of [start, start + bytes) that are in memory, as the kernel reports.
std::uint64_t resident(const std::byte* start, std::uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(mincore(const_cast<std::byte*>(start), bytes, pages.data()), 0);
  const auto is_in = [](unsigned char each) { return (each & 1) != 0; };
  return page * static_cast<std::uint64_t>(std::count_if(pages.begin(), pages.end(), is_in));
}

TEST(Arena, PiecesAreAlignedAndRoundedToPages) {
  const auto arena = make_arena(4 * granule);
  for (const std::uint64_t bytes : {1ul, page - 1, page, page + 1, granule + 1, 4 * granule}) {
    const auto piece = take_and_fill(*arena, bytes);
    EXPECT_EQ(piece.size(), (bytes + page - 1) / page * page);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % page, 0u);
    EXPECT_EQ(arena->statistics().bytes_in_use, piece.size());
    EXPECT_EQ(arena->give_back(piece.data()), piece.size());
  }
  EXPECT_EQ(arena->statistics().bytes_in_use, 0u);
  EXPECT_EQ(arena->statistics().bytes_in_use_peak, 4 * granule);
}

TEST(Arena, TheRangeStartsOnAHugePageAndKnowsItsOwn) {
  const auto arena = make_arena(granule + 1);  // two granules
  const auto piece = must_take(*arena, 2 * granule);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data()) % granule, 0u);
  EXPECT_TRUE(arena->contains(piece.data()));
  EXPECT_TRUE(arena->contains(piece.data() + 2 * granule - 1));
  EXPECT_FALSE(arena->contains(piece.data() + 2 * granule));
  EXPECT_FALSE(arena->contains(piece.data() - 1));
  EXPECT_FALSE(arena->contains(&piece));
  EXPECT_FALSE(arena->contains(nullptr));
}

TEST(Arena, GivesNothingWhereNothingFits) {
  const auto arena = make_arena(2 * granule);
  const auto first = must_take(*arena, granule);
  EXPECT_TRUE(arena->take(granule + 1).empty());
  EXPECT_TRUE(arena->take(~0ull).empty());
  const auto second = must_take(*arena, granule);
  EXPECT_TRUE(arena->take(1).empty());
  EXPECT_EQ(arena->statistics().bytes_in_use, 2 * granule);
  EXPECT_NE(first.data(), second.data());
}

TEST(Arena, WhatIsGivenBackIsUsedAgainAsItWas) {
  const auto arena = make_arena(8 * granule);
  const auto first = take_and_fill(*arena, 3 * granule);
  std::memset(first.data(), 7, first.size());
  arena->give_back(first.data());
  EXPECT_EQ(arena->statistics().bytes_in_use, 0u);
  EXPECT_EQ(arena->statistics().bytes_held, 3 * granule);
  EXPECT_EQ(resident(first.data(), 3 * granule), 3 * granule);
  const auto again = must_take(*arena, 3 * granule);
  EXPECT_EQ(again.data(), first.data());
  EXPECT_EQ(again[3 * granule - 1], std::byte{7});  // no page is fresh from the kernel
  EXPECT_EQ(arena->statistics().bytes_returned, 0u);
}

TEST(Arena, FreedNeighboursJoinInEveryOrder) {
  std::vector<int> order{0, 1, 2};
  do {
    const auto arena = make_arena(3 * granule);
    std::vector<std::byte*> pieces;
    for (int i = 0; i < 3; ++i) pieces.push_back(must_take(*arena, granule).data());
    for (const int i : order) arena->give_back(pieces[static_cast<std::size_t>(i)]);
    EXPECT_EQ(must_take(*arena, 3 * granule).data(), pieces[0]);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Arena, HoldsNoMoreThanWasInUseAtOnce) {
  const auto arena = make_arena(16 * granule);
  const auto first = take_and_fill(*arena, 4 * granule);  // 0..4
  const auto fence = take_and_fill(*arena, granule);      // 4..5
  arena->give_back(first.data());
  EXPECT_EQ(arena->statistics().bytes_held, 5 * granule);
  // Too long for the gap, so it is placed behind the fence. Six granules in use at once are one
  // more than before.
  const auto second = take_and_fill(*arena, 5 * granule);
  EXPECT_EQ(second.data(), fence.data() + granule);
  EXPECT_EQ(arena->statistics().bytes_held, 6 * granule);
  EXPECT_EQ(arena->statistics().bytes_held_bound, 6 * granule);
  EXPECT_EQ(arena->statistics().bytes_returned, 4 * granule);
  EXPECT_EQ(resident(first.data(), 10 * granule), 6 * granule);
  EXPECT_EQ(resident(first.data(), 4 * granule), 0u);  // a gap that was not needed
}

TEST(Arena, WhatIsOverGoesBackFromTheEnd) {
  const auto arena = make_arena(16 * granule);
  const auto first = take_and_fill(*arena, 4 * granule);  // 0..4
  const auto fence = take_and_fill(*arena, granule);      // 4..5
  const auto last = take_and_fill(*arena, 2 * granule);   // 5..7; seven at once
  arena->give_back(first.data());
  arena->give_back(last.data());
  (void)take_and_fill(*arena, 5 * granule);  // 5..10: three fresh ones, three of the gap go
  EXPECT_EQ(arena->statistics().bytes_held, 7 * granule);
  EXPECT_EQ(resident(first.data(), granule), granule);
  EXPECT_EQ(resident(first.data() + granule, 3 * granule), 0u);
  EXPECT_EQ(resident(fence.data(), 6 * granule), 6 * granule);
}

TEST(Arena, AGranuleInUseInPartStays) {
  const auto arena = make_arena(8 * granule);
  const auto large = take_and_fill(*arena, 2 * granule - page);
  const auto small = take_and_fill(*arena, page);  // the last page of the second granule
  arena->give_back(large.data());
  (void)take_and_fill(*arena, 2 * granule);  // behind: three at once, so the first one is released
  EXPECT_EQ(small[0], std::byte{1});
  EXPECT_EQ(arena->statistics().bytes_held, 3 * granule);
  EXPECT_EQ(resident(large.data(), granule), 0u);
  EXPECT_EQ(resident(large.data() + granule, granule), granule);
}

TEST(Arena, WhatIsKeptIsGivenFromTheEnd) {
  const auto arena = make_arena(16 * granule);
  EXPECT_TRUE(arena->take_kept(page).empty());            // nothing has been used yet
  const auto first = take_and_fill(*arena, 3 * granule);  // 0..3
  const auto fence = take_and_fill(*arena, granule);      // 3..4
  const auto last = take_and_fill(*arena, 2 * granule);   // 4..6
  EXPECT_TRUE(arena->take_kept(page).empty());            // all is in use
  arena->give_back(first.data());
  arena->give_back(last.data());
  EXPECT_EQ(arena->take_kept(granule + page).data(), last.data() + granule - page);
  EXPECT_EQ(arena->take_kept(granule).data(), first.data() + 2 * granule);  // its last granule
  EXPECT_TRUE(arena->take_kept(3 * granule).empty());
  EXPECT_EQ(arena->statistics().bytes_held, 6 * granule);
  EXPECT_EQ(arena->statistics().bytes_returned, 0u);
  (void)take_and_fill(*arena, 3 * granule);  // 6..9: eight at once, so one of the gap is released
  EXPECT_EQ(arena->statistics().bytes_held, arena->statistics().bytes_held_bound);
  EXPECT_TRUE(arena->take_kept(2 * granule).empty());  // some of the gap was released
  EXPECT_EQ(fence[0], std::byte{1});
}

/// Takes and returns pieces at random, and tracks those in use.
class Model {
 public:
  Model(Arena& arena, std::uint64_t seed) : arena_(arena), random_(seed) {}

  void step() {
    if (!pieces_.empty() && random_() % 100 < 45 + pieces_.size() / 4) {
      give_back();
    } else {
      take();
    }
    most_granules_ = std::max(most_granules_, granules_in_use());
  }
  void check() {
    const ArenaStatistics found = arena_.statistics();
    std::uint64_t bytes = 0;
    for (const auto& [data, piece] : pieces_) bytes += piece.size;
    EXPECT_EQ(found.bytes_in_use, bytes);
    EXPECT_EQ(found.bytes_held_bound, most_granules_ * granule);
    EXPECT_LE(found.bytes_held, found.bytes_held_bound);
    EXPECT_LE(resident(start_, end_), found.bytes_held);
  }
  std::uint64_t kept() const { return kept_; }
  void give_back_all() {
    while (!pieces_.empty()) give_back();
  }

 private:
  struct Piece {
    std::uint64_t size = 0;
    std::byte mark{};
  };

  void take() {
    // Sizes from a page to some granules, each order of magnitude as often.
    const std::uint64_t bytes = (random_() % 15 + 1) << (random_() % 20);
    const std::uint64_t held = arena_.statistics().bytes_held;
    auto piece = random_() % 4 == 0 ? arena_.take_kept(bytes) : std::span<std::byte>();
    if (!piece.empty()) {
      ++kept_;
      EXPECT_EQ(arena_.statistics().bytes_held, held);
    } else {
      piece = must_take(arena_, bytes);
    }
    if (piece.empty()) return;
    if (start_ == nullptr) start_ = piece.data();
    ASSERT_GE(piece.size(), bytes);
    const auto next = pieces_.lower_bound(piece.data());
    if (next != pieces_.end()) {
      ASSERT_LE(piece.data() + piece.size(), next->first);
    }
    if (next != pieces_.begin()) {
      const auto before = std::prev(next);
      ASSERT_LE(before->first + before->second.size, piece.data());
    }
    const auto mark = static_cast<std::byte>(random_() % 256);
    std::memset(piece.data(), static_cast<int>(mark), piece.size());
    pieces_[piece.data()] = {.size = piece.size(), .mark = mark};
    end_ = std::max(end_, static_cast<std::uint64_t>(piece.data() - start_) + piece.size());
  }
  void give_back() {
    auto chosen = pieces_.begin();
    std::advance(chosen, random_() % pieces_.size());
    const Piece& piece = chosen->second;
    EXPECT_EQ(*chosen->first, piece.mark);
    EXPECT_EQ(std::memcmp(chosen->first, chosen->first + 1, piece.size - 1), 0);  // all bytes alike
    EXPECT_EQ(arena_.give_back(chosen->first), piece.size);
    pieces_.erase(chosen);
  }
  std::uint64_t granules_in_use() const {
    std::uint64_t count = 0;
    std::uint64_t counted_to = 0;  // granules before it
    for (const auto& [data, piece] : pieces_) {
      const auto offset = static_cast<std::uint64_t>(data - start_);
      const std::uint64_t end = (offset + piece.size + granule - 1) / granule;
      const std::uint64_t first = std::max(counted_to, offset / granule);
      count += end - std::min(first, end);
      counted_to = std::max(counted_to, end);
    }
    return count;
  }

  Arena& arena_;
  std::mt19937_64 random_;
  std::map<std::byte*, Piece> pieces_;
  std::byte* start_ = nullptr;  // of the range: where the first piece lies
  std::uint64_t end_ = 0;       // of what has been used
  std::uint64_t most_granules_ = 0;
  std::uint64_t kept_ = 0;  // pieces of what was held
};

TEST(Arena, RandomPiecesNeverOverlapAndTheBoundHolds) {
  const std::uint64_t seed = test_support::test_seed(1);
  std::uint64_t returned = 0;
  for (std::uint64_t round = 0; round < 4; ++round) {
    const auto arena = make_arena(1ull << 30);
    Model model(*arena, seed + round);
    for (int i = 0; i < 1500; ++i) {
      model.step();
      if (i % 50 == 0) model.check();
    }
    EXPECT_GT(model.kept(), 50u);
    returned += arena->statistics().bytes_returned;
    model.give_back_all();
    model.check();
    EXPECT_EQ(arena->statistics().bytes_in_use, 0u);
    EXPECT_FALSE(arena->take(1ull << 30).empty());  // all of it in one piece again
  }
  EXPECT_GT(returned, 0u);  // only so was the bound kept
}

TEST(Arena, ThreadsTakeAndGiveBackEachOthersPieces) {
  const auto arena = make_arena(256 * granule);
  constexpr int count = 4;
  std::vector<std::atomic<std::byte*>> slots(32);
  std::atomic<int> spoilt{0};
  // A piece begins and ends with its size. A thread that swaps a piece out of a slot returns it.
  const auto churn = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 2000; ++i) {
      const auto piece = arena->take(page + random() % (2 * granule));
      std::uint64_t size = piece.size();
      if (piece.empty()) {
        spoilt += 1000;
        return;
      }
      std::memcpy(piece.data(), &size, sizeof size);
      std::memcpy(piece.data() + size - sizeof size, &size, sizeof size);
      std::byte* const old = slots[random() % slots.size()].exchange(piece.data());
      if (old == nullptr) continue;
      std::uint64_t at_end = 0;
      std::memcpy(&size, old, sizeof size);
      std::memcpy(&at_end, old + size - sizeof size, sizeof at_end);
      if (at_end != size || arena->give_back(old) != size) ++spoilt;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < count; ++i) threads.emplace_back(churn, i + 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(spoilt.load(), 0);
  for (auto& slot : slots) {
    if (slot.load() != nullptr) arena->give_back(slot.load());
  }
  const ArenaStatistics found = arena->statistics();
  EXPECT_EQ(found.bytes_in_use, 0u);
  EXPECT_LE(found.bytes_held, found.bytes_held_bound);
  // At most the slots, and the pieces that each thread holds.
  EXPECT_LE(found.bytes_held_bound, (slots.size() + 2 * count) * 3 * granule);
}

TEST(Arena, AForkedChildHasItsOwnCopy) {
  const auto arena = make_arena(8 * granule);
  const auto piece = take_and_fill(*arena, granule);
  arena->lock_for_fork();
  const int status = test_support::run_in_child([&] {
    arena->unlock_after_fork();
    const auto own = arena->take(granule);
    if (own.empty() || piece[0] != std::byte{1}) return 1;
    std::memset(own.data(), 2, own.size());
    std::memset(piece.data(), 2, piece.size());
    arena->give_back(own.data());
    return 0;
  });
  arena->unlock_after_fork();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(piece[0], std::byte{1});
  EXPECT_EQ(arena->statistics().bytes_in_use, granule);
}

TEST(Arena, IsNotReservedWhereItIsRefused) {
  for (const std::uint64_t bytes : {1ull << 60, ~0ull, ~0ull - granule}) {
    const auto arena = Arena::reserve(bytes);
    ASSERT_FALSE(arena.has_value()) << bytes;
    EXPECT_EQ(arena.error().code, ErrorCode::Exhausted);
  }
}

TEST(Arena, IsNotReservedWhereAddressesAreLimited) {
  if (test_support::sanitized) GTEST_SKIP() << "a sanitizer needs all addresses";
  const int status = test_support::run_in_child([] {
    const rlimit limit{.rlim_cur = 64ull << 30, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    const auto arena = Arena::reserve(granule);
    return !arena.has_value() && arena.error().code == ErrorCode::Unsupported ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(Arena, GivesNothingWhereTheKernelGivesNoMore) {
  const int status = test_support::run_in_child([] {
    auto made = Arena::reserve(8 * granule);
    if (!made.has_value()) return 1;
    Arena& arena = *made.value();
    const auto piece = arena.take(granule);
    if (!test_support::refuse_call(__NR_mprotect, ENOMEM)) return 2;
    if (!arena.take(granule).empty()) return 3;
    if (arena.statistics().bytes_in_use != granule) return 4;
    arena.give_back(piece.data());
    return arena.take(granule).data() == piece.data() ? 0 : 5;  // it can lend what it holds
  });
  EXPECT_EQ(status, 0);
}

TEST(Arena, AddressesAloneAreReserved) {
  if (test_support::sanitized) GTEST_SKIP() << "a sanitizer has data of its own";
  const int status = test_support::run_in_child([] {
    // The range would exceed the limit on data.
    const rlimit limit{.rlim_cur = 4ull << 30, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 1;
    auto made = Arena::reserve(256ull << 30);
    if (!made.has_value()) return 2;
    return made.value()->take(granule).empty() ? 3 : 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(Arena, MemoryThatTheKernelKeepsIsHeldAndUsed) {
  const int status = test_support::run_in_child([] {
    auto made = Arena::reserve(16 * granule);
    if (!made.has_value()) return 1;
    Arena& arena = *made.value();
    const auto first = arena.take(4 * granule);
    (void)arena.take(granule);
    arena.give_back(first.data());
    if (!test_support::refuse_call(__NR_madvise, EINVAL)) return 2;  // as after mlockall
    const auto second = arena.take(5 * granule);
    if (second.empty()) return 3;
    return arena.statistics().bytes_held == 10 * granule ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

TEST(Arena, TheBoundHoldsWithoutHugePages) {
  const int status = test_support::run_in_child([] {
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return 1;
    auto made = Arena::reserve(16 * granule);
    if (!made.has_value()) return 2;
    Arena& arena = *made.value();
    const auto first = take_and_fill(arena, 4 * granule);
    (void)take_and_fill(arena, page);
    if (resident(first.data(), 5 * granule) != 4 * granule + page) return 3;
    arena.give_back(first.data());
    (void)take_and_fill(arena, 5 * granule);  // behind
    if (arena.statistics().bytes_held != 6 * granule) return 4;
    return resident(first.data(), 10 * granule) == 5 * granule + page ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
}

TEST(Arena, LeavesNoMappingBehind) {
  const std::size_t before = test_support::map_count();
  for (int i = 0; i < 100; ++i) (void)take_and_fill(*make_arena(8 * granule), granule);
  EXPECT_LE(test_support::map_count(), before + 8);
}

TEST(ArenaDeathTest, WhatWasNotTakenCannotBeGivenBack) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto arena = make_arena(4 * granule);
  const auto piece = must_take(*arena, granule);
  EXPECT_DEATH(arena->give_back(piece.data() + page), "CHECK failed");
  arena->give_back(piece.data());
  EXPECT_DEATH(arena->give_back(piece.data()), "CHECK failed");
  int elsewhere = 0;
  EXPECT_DEATH(arena->give_back(&elsewhere), "CHECK failed");
}

}  // namespace
}  // namespace artesian::pinned
