// Proves that any bytes of a path become UTF-8 from which the bytes can be restored.
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace artesian {
namespace {

TEST(Utf8, PathsThatAreNotAreEscaped) {
  EXPECT_EQ(as_utf8(""), "");
  EXPECT_EQ(as_utf8("a\\b/\xc3\xa9.txt"), "a\\b/\xc3\xa9.txt");
  EXPECT_EQ(as_utf8("t\xe9xt"), "t\\xE9xt");
  EXPECT_EQ(as_utf8("\\xE9 \xe9"), "\\\\xE9 \\xE9") << "two paths never become one";
  EXPECT_EQ(as_utf8("\xc3"), "\\xC3") << "cut at the end";
  EXPECT_EQ(as_utf8("\xed\xa0\x80"), "\\xED\\xA0\\x80") << "half a surrogate pair";
}

}  // namespace
}  // namespace artesian
