// Proves that names of ours are recognised, and nothing that merely looks like them.
#include "tiering/swap_names.h"

#include <gtest/gtest.h>

namespace artesian::tiering {
namespace {

TEST(SwapNames, AreWrittenAndReadBack) {
  EXPECT_EQ(swap_file_name(0x0123456789abcdef, 0), "artesian-0123456789abcdef-rank0.swap");
  EXPECT_EQ(lock_file_name(12), "artesian-rank12.lock");
  for (const std::uint64_t run_id : {0ull, 1ull, ~0ull}) {
    for (const std::uint32_t rank : {0u, 9u, ~0u}) {
      const auto name = parse_swap_file_name(swap_file_name(run_id, rank));
      ASSERT_TRUE(name.has_value());
      EXPECT_EQ(name->run_id, run_id);
      EXPECT_EQ(name->rank, rank);
      EXPECT_EQ(parse_lock_file_name(lock_file_name(rank)), rank);
    }
  }
}

TEST(SwapNames, NothingElseIsOurs) {
  for (const char* name :
       {"", ".swap", "artesian-.swap", "artesian-0123456789abcdef.swap", "artesian-rank0.swap",
        "artesian-0123456789abcdef-rank.swap", "artesian-0123456789abcdef-rank00.swap",
        "artesian-0123456789abcdef-rank-1.swap", "artesian-0123456789ABCDEF-rank0.swap",
        "artesian-0123456789abcdef-rank0.swap~", "x-artesian-0123456789abcdef-rank0.swap",
        "artesian-0123456789abcde-rank0.swap", "artesian-0123456789abcdef0-rank0.swap",
        "artesian-0123456789abcdef-rank4294967296.swap", "artesian-0123456789abcdeg-rank0.swap",
        "artesian-+123456789abcdef-rank0.swap", "artesian-0123456789abcdef-rank0.lock"}) {
    EXPECT_FALSE(parse_swap_file_name(name).has_value()) << name;
  }
  for (const char* name : {"", "artesian-rank.lock", "artesian-rank01.lock", "artesian-rank-1.lock",
                           "artesian-rank1.lock2", "artesian-rank1.swap", "artesian-rank 1.lock",
                           "artesian-rank4294967296.lock", "rank1.lock"}) {
    EXPECT_FALSE(parse_lock_file_name(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace artesian::tiering
