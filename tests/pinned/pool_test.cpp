// Proves that the pool lends exact, aligned, never overlapping pieces from both ends, gets them all
// back in one piece, counts them, works the same where page-locking is refused, and says how much
// of it is on huge pages. Random leases are compared with a naive map of pages; the refusals are
// real (another user, a real limit, a process that must not have such pages).
#include "pinned/pool.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "base/log.h"
#include "pinned/huge_pages.h"
#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"

namespace artesian::pinned {
namespace {

using test_support::Baseline;

constexpr std::uint64_t page = 4096;

std::unique_ptr<Pool> make_pool(std::uint64_t bytes, Lock lock = Lock::Never) {
  auto pool = Pool::create({.bytes = bytes, .lock = lock, .name = "test pool"});
  EXPECT_TRUE(pool.has_value());
  return std::move(pool).value();
}

BufferLease must_lease(Pool& pool, std::uint64_t bytes, Placement placement = Placement::Low) {
  auto lease = pool.lease(bytes, placement);
  EXPECT_TRUE(lease.has_value()) << bytes;
  return std::move(lease).value();
}

std::uint64_t offset_of(const Pool& pool, const BufferLease& lease) {
  return static_cast<std::uint64_t>(lease.data() - pool.range().data());
}

TEST(Pool, SizesAreExactAndAligned) {
  const auto pool = make_pool(10 * page + 1);
  EXPECT_EQ(pool->range().size(), 11 * page);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool->range().data()) % (2u << 20), 0u);
  for (const std::uint64_t bytes : {1ul, page - 1, page, page + 1, 11 * page}) {
    const auto lease = must_lease(*pool, bytes);
    EXPECT_EQ(lease.size(), (bytes + page - 1) / page * page);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()) % page, 0u);
    EXPECT_EQ(pool->statistics().bytes_in_use, lease.size());
  }
  EXPECT_EQ(pool->statistics().bytes_in_use, 0u);
  EXPECT_EQ(pool->statistics().bytes_in_use_peak, 11 * page);
  EXPECT_EQ(pool->statistics().bytes_reserved, 11 * page);
}

TEST(Pool, LeasesFromBothEnds) {
  const auto pool = make_pool(16 * page);
  const auto low = must_lease(*pool, 2 * page);
  const auto high = must_lease(*pool, 3 * page, Placement::High);
  const auto next_low = must_lease(*pool, page);
  const auto next_high = must_lease(*pool, page, Placement::High);
  EXPECT_EQ(offset_of(*pool, low), 0u);
  EXPECT_EQ(offset_of(*pool, next_low), 2 * page);
  EXPECT_EQ(offset_of(*pool, high), 13 * page);
  EXPECT_EQ(offset_of(*pool, next_high), 12 * page);
  EXPECT_EQ(pool->statistics().bytes_free_largest, 9 * page);
}

TEST(Pool, FreedNeighboursJoinInEveryOrder) {
  for (const auto& order : std::vector<std::vector<int>>{
           {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    const auto pool = make_pool(3 * page);
    std::vector<BufferLease> leases;
    for (int i = 0; i < 3; ++i) leases.push_back(must_lease(*pool, page));
    for (const int i : order) leases[static_cast<std::size_t>(i)].reset();
    EXPECT_EQ(pool->statistics().bytes_free_largest, 3 * page);
    EXPECT_TRUE(must_lease(*pool, 3 * page));
  }
}

TEST(Pool, ExhaustionSaysWhatIsFree) {
  const auto pool = make_pool(4 * page);
  const auto first = must_lease(*pool, page);
  auto second = must_lease(*pool, page);
  const auto third = must_lease(*pool, page);
  second.reset();
  const auto refused = pool->lease(2 * page);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  EXPECT_EQ(
      refused.error().to_string(),
      "test pool: no free run of 8.00 KiB: 8.00 KiB of 16.0 KiB are free, 4.00 KiB of them in "
      "one piece; raise the memory budget");
  EXPECT_FALSE(pool->lease(~0ull).has_value());
}

TEST(Pool, RefusesImpossiblePools) {
  const auto empty = Pool::create({.bytes = 0, .lock = Lock::Never, .name = "p"});
  ASSERT_FALSE(empty.has_value());
  EXPECT_EQ(empty.error().code, ErrorCode::Invalid);
  for (const std::uint64_t bytes : {1ull << 60, ~0ull, ~0ull - 4096, ~0ull - (2ull << 20)}) {
    const auto huge = Pool::create({.bytes = bytes, .lock = Lock::Try, .name = "p"});
    ASSERT_FALSE(huge.has_value()) << bytes;
    EXPECT_EQ(huge.error().code, ErrorCode::Exhausted);
  }
}

// The naive model: one flag per page, searched from the front or the back.
class PageMap {
 public:
  explicit PageMap(std::size_t pages) : used_(pages, false) {}
  /// First page of the piece, or -1.
  long take(std::size_t pages, Placement placement) {
    const long last = static_cast<long>(used_.size()) - static_cast<long>(pages);
    for (long i = 0; i <= last; ++i) {
      const long start = placement == Placement::Low ? i : last - i;
      if (!fits(start, pages)) continue;
      set(start, pages, true);
      return start;
    }
    return -1;
  }
  void set(long start, std::size_t pages, bool used) {
    for (std::size_t i = 0; i < pages; ++i) used_[static_cast<std::size_t>(start) + i] = used;
  }

 private:
  bool fits(long start, std::size_t pages) const {
    for (std::size_t i = 0; i < pages; ++i) {
      if (used_[static_cast<std::size_t>(start) + i]) return false;
    }
    return true;
  }
  std::vector<bool> used_;
};

TEST(Pool, RandomLeasesEqualTheNaiveModel) {
  constexpr std::size_t pages = 97;
  std::mt19937_64 random(test_support::test_seed(20260101));
  const auto pool = make_pool(pages * page);
  PageMap model(pages);
  std::vector<BufferLease> leases;
  std::uint64_t in_use = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 5 < 3) {
      const std::size_t count = 1 + random() % (random() % 4 == 0 ? 40 : 6);
      const auto placement = random() % 2 == 0 ? Placement::Low : Placement::High;
      const long expected = model.take(count, placement);
      auto lease = pool->lease(count * page - random() % page, placement);
      ASSERT_EQ(lease.has_value(), expected >= 0) << "step " << step;
      if (!lease.has_value()) continue;
      ASSERT_EQ(offset_of(*pool, *lease), static_cast<std::uint64_t>(expected) * page);
      in_use += lease->size();
      leases.push_back(std::move(lease).value());
    } else if (!leases.empty()) {
      std::swap(leases[random() % leases.size()], leases.back());
      const auto start = static_cast<long>(offset_of(*pool, leases.back()) / page);
      model.set(start, leases.back().size() / page, false);
      in_use -= leases.back().size();
      leases.pop_back();
    }
    ASSERT_EQ(pool->statistics().bytes_in_use, in_use);
  }
  leases.clear();
  EXPECT_EQ(pool->statistics().bytes_free_largest, pages * page);
}

TEST(Pool, ThreadsNeverShareAPiece) {
  // The other three hold at most 24 pages, which cut the rest into four runs at most: of 29 free
  // pages one has eight.
  const auto pool = make_pool(53 * page);
  std::vector<std::thread> threads;
  for (unsigned char id = 1; id <= 4; ++id) {
    threads.emplace_back([&pool, id] {
      std::mt19937_64 random(id);
      for (int i = 0; i < 500; ++i) {
        const auto lease = pool->lease((1 + random() % 8) * page);
        ASSERT_TRUE(lease.has_value());
        std::memset(lease->data(), id, lease->size());
        for (std::uint64_t k = 0; k < lease->size(); k += 512) {
          ASSERT_EQ(static_cast<unsigned char>(lease->data()[k]), id);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->statistics().bytes_in_use, 0u);
  EXPECT_LE(pool->statistics().bytes_in_use_peak, 32 * page);
}

TEST(PoolDeathTest, WrongReturnsAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto pool = make_pool(8 * page);
  auto lease = must_lease(*pool, 2 * page);
  EXPECT_DEATH(pool->give_back(lease.data() + 2 * page, page), "CHECK failed");  // never lent
  EXPECT_DEATH(pool->give_back(lease.data(), 9 * page), "CHECK failed");
  EXPECT_DEATH(pool->give_back(lease.data() + 1, page), "CHECK failed");
  EXPECT_DEATH(pool->give_back(pool->range().data() - page, page), "CHECK failed");
  EXPECT_DEATH((void)pool->lease(0), "CHECK failed");
  EXPECT_DEATH(
      {
        auto other = make_pool(page);
        auto kept = must_lease(*other, page);
        other.reset();  // a lease outlives its pool
      },
      "CHECK failed");
}

TEST(Pool, LeavesNothingBehind) {
  const Baseline before = Baseline::now();
  const std::size_t locked_before = test_support::status_kib("VmLck");
  const std::byte* data = nullptr;
  {
    const auto pool = make_pool(4 << 20, Lock::Try);
    data = pool->range().data();
    EXPECT_TRUE(test_support::mapped(data));
    std::memset(must_lease(*pool, 4 << 20).data(), 1, 4 << 20);
    if (!test_support::sanitized && pool->statistics().locked) {
      EXPECT_EQ(test_support::status_kib("VmLck"), locked_before + 4096);
    }
  }
  EXPECT_FALSE(test_support::mapped(data));
  EXPECT_EQ(test_support::status_kib("VmLck"), locked_before);
  EXPECT_LE(Baseline::settled(before), before);
}

TEST(Pool, NeverLockedStaysUntouched) {
  const std::size_t before = test_support::status_kib("VmRSS");
  const auto pool = make_pool(256 << 20);
  EXPECT_FALSE(pool->statistics().locked);
  EXPECT_LT(test_support::status_kib("VmRSS"), before + (16 << 10));
}

TEST(Pool, FaultingInTakesItAll) {
  const std::size_t before = test_support::status_kib("VmRSS");
  const auto pool = make_pool(64 << 20);
  pool->fault_in();
  EXPECT_GE(test_support::status_kib("VmRSS"), before + (63 << 10));
  EXPECT_EQ(must_lease(*pool, 64 << 20).data()[12345], std::byte{0});
}

TEST(Pool, MoreThanThereIsStaysPageable) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t total_kib = 0;
  ASSERT_TRUE(meminfo >> key >> total_kib);
  ASSERT_EQ(key, "MemTotal:");
  const std::uint64_t bytes = (total_kib - (64 << 10)) << 10;  // never all available
  const auto pool = Pool::create({.bytes = bytes, .lock = Lock::Try, .name = "p"});
  if (!pool.has_value()) GTEST_SKIP() << "this kernel refuses to reserve that much";
  EXPECT_FALSE((*pool)->statistics().locked);
  const std::size_t before = test_support::status_kib("VmRSS");
  (*pool)->fault_in();
  EXPECT_LT(test_support::status_kib("VmRSS"), before + (16 << 10));
}

// Row 30 of the reliability table: the same bytes, one warning, no abort. Runs in a child, as uid
// 65534 with a real limit; returns 0, or a number that says which expectation failed.
int memlock_child(std::uint64_t limit) {
  const rlimit memlock{.rlim_cur = limit, .rlim_max = limit};
  if (setrlimit(RLIMIT_MEMLOCK, &memlock) != 0) return 2;
  if (setgroups(0, nullptr) != 0 || setresgid(65534, 65534, 65534) != 0) return 3;
  if (setresuid(65534, 65534, 65534) != 0) return 4;
  static int warnings = 0;
  static bool named = true;
  set_log_sink([](LogLevel level, std::string_view line) {
    if (line.find("2 MiB pages") != line.npos) return;  // about something else
    warnings += level == LogLevel::Warning ? 1 : 0;
    named = named && line.find("memlock limit is ") != line.npos &&
            line.find("ulimit -l") != line.npos && line.find("LimitMEMLOCK") != line.npos;
  });
  for (int i = 0; i < 2; ++i) {  // two pools, one warning
    auto pool = Pool::create({.bytes = 16 << 20, .lock = Lock::Try, .name = "big"});
    if (!pool.has_value()) return 5;
    if ((*pool)->statistics().locked) return 6;
    auto lease = (*pool)->lease(16 << 20);
    if (!lease.has_value()) return 7;
    std::memset(lease->data(), 7, lease->size());
  }
  if (warnings != 1 || !named) return 8;
  auto small = Pool::create({.bytes = 1 << 20, .lock = Lock::Try, .name = "small"});
  if (!small.has_value()) return 9;
  if ((*small)->statistics().locked != (limit >= (1u << 20))) return 10;
  return warnings == 1 ? 0 : 11;
}

TEST(Pool, WorksWithoutTheRightToLockMemory) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (test_support::sanitized) GTEST_SKIP() << "this build's mlock does nothing";
  for (const std::uint64_t limit : {0ul, 64ul << 10, 8ul << 20}) {
    EXPECT_EQ(test_support::run_in_child([limit] { return memlock_child(limit); }), 0) << limit;
  }
}

/// KiB of huge pages under the mapping that contains the address.
std::uint64_t huge_kib(const std::byte* data) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    }
    std::uint64_t kib = 0;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) return kib;
  }
  return 0;
}

// Direct transfers are a third faster if their memory is contiguous, also in a pool smaller than a
// huge page.
TEST(Pool, SmallPoolsLieOnHugePagesToo) {
  Lock lock = Lock::Try;
  NodePolicy nodes;
  const auto lies_on_a_huge_page = [&](std::uint64_t bytes) {
    const auto pool = Pool::create({.bytes = bytes, .lock = lock, .nodes = nodes}).value();
    EXPECT_EQ(pool->range().size(), bytes) << "no more is lent than was asked for";
    pool->fault_in();
    return huge_kib(pool->range().data()) == 2048;
  };
  for (int variant = 0; variant < 3; ++variant) {
    if (variant == 1) lock = Lock::Never;
    if (variant == 2) nodes.nodes = machine_nodes().usable;  // placed ones, too
    for (const std::uint64_t bytes : {64u << 10, 512u << 10, (2u << 20) - 4096}) {
      // Whether the kernel has huge pages changes from moment to moment. As long as a pool as large
      // as such a page gets one, a small pool must get one within some tries.
      bool huge = false;
      for (int attempt = 0; !huge && attempt < 10; ++attempt) {
        if (!lies_on_a_huge_page(2 << 20)) GTEST_SKIP() << "no huge pages here now";
        huge = lies_on_a_huge_page(bytes);
      }
      EXPECT_TRUE(huge) << bytes;
    }
  }
}

// A pool's report about its pages is the kernel's, before and after they are touched.
TEST(Pool, CountsWhatIsOnHugePages) {
  for (const std::uint64_t bytes : {512u << 10, 2u << 20, 48u << 20, (48u << 20) + 4096}) {
    const auto pool = make_pool(bytes);
    EXPECT_EQ(pool->statistics().bytes_on_huge_pages, 0u);
    pool->fault_in();
    const PoolStatistics got = pool->statistics();
    const std::uint64_t expected = std::min(huge_kib(pool->range().data()) << 10, bytes);
    EXPECT_EQ(got.bytes_on_huge_pages, expected) << bytes;
    if (bytes >= 2u << 20) {
      EXPECT_EQ(got.huge_pages, expected >= bytes / (2u << 20) * (3u << 19)) << bytes;
    }
  }
}

/// In a child process: sets `flags` of PR_SET_THP_DISABLE, then makes two pools. 0: as expected;
/// 100: not supported by this kernel.
int pools_of_process(unsigned long flags, bool expect_off) {
  if (prctl(PR_SET_THP_DISABLE, 1, flags, 0, 0) != 0) return 100;
  static int warnings = 0;
  set_log_sink([](LogLevel level, std::string_view line) {
    const bool told = line.find("PR_SET_THP_DISABLE") != line.npos;
    warnings += level == LogLevel::Warning && told ? 1 : 0;
  });
  const HugePages allowed = huge_pages_allowed();
  if (allowed == HugePages::OffInSystem) return 100;
  if ((allowed == HugePages::OffInProcess) != expect_off) return 1;
  for (const Lock lock : {Lock::Try, Lock::Never}) {
    const auto pool = make_pool(4 << 20, lock);
    pool->fault_in();
    const PoolStatistics got = pool->statistics();
    if (!expect_off) continue;
    if (got.huge_pages || got.bytes_on_huge_pages != 0) return 2;
  }
  return warnings == (expect_off ? 1 : 0) ? 0 : 3;
}

// As container runtimes and batch systems start their processes: madvise still succeeds. In a
// separate process, since the warning is logged once in each.
TEST(PoolDeathTest, SaysWhenTheProcessMayNotHaveHugePages) {
  if (test_support::sanitized) GTEST_SKIP() << "this build's mlock faults nothing in";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto as_expected = [](int status) {
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 100);
  };
  EXPECT_EXIT(_exit(pools_of_process(0, true)), as_expected, "");
  // Linux 6.18: off for memory that is not advised. Ours is.
  constexpr unsigned long except_advised = 1 << 1;
  EXPECT_EXIT(_exit(pools_of_process(except_advised, false)), as_expected, "");
}

// Otherwise the kernel would merge two pools, and count pages for both.
TEST(Pool, NoOtherAdjoinsIt) {
  const auto pool = make_pool(2 << 20);
  char expected[32];
  std::snprintf(expected, sizeof expected, "%lx-",
                reinterpret_cast<std::uintptr_t>(pool->range().data() + pool->range().size()));
  std::ifstream maps("/proc/self/maps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(expected)) found = line.find(" ---p ") != line.npos;
  }
  EXPECT_TRUE(found) << expected;
}

}  // namespace
}  // namespace artesian::pinned
