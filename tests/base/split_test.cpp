// Proves that text is split into all of its pieces, empty ones included.
#include "base/split.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace artesian {
namespace {

using Pieces = std::vector<std::string_view>;

TEST(Split, KeepsEveryPiece) {
  EXPECT_EQ(split("a", ','), Pieces{"a"});
  EXPECT_EQ(split("a,b c,d", ','), (Pieces{"a", "b c", "d"}));
  EXPECT_EQ(split("", ','), Pieces{""});
  EXPECT_EQ(split(",", ','), (Pieces{"", ""}));
  EXPECT_EQ(split("a,,b,", ','), (Pieces{"a", "", "b", ""}));
  EXPECT_EQ(split("a,b|c", '|'), (Pieces{"a,b", "c"}));
}

}  // namespace
}  // namespace artesian
