// Proves the checksums to be XXH3 by known answers (of the reference implementation and its
// documentation), and the digest independent of how its input is cut but not of what it names.
#include "kernels/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace artesian::kernels {
namespace {

std::string digest_of(std::string_view bytes) {
  Digest digest;
  digest.update(bytes.data(), bytes.size());
  return digest.hex();
}

TEST(Checksum64, KnownAnswers) {
  EXPECT_EQ(checksum64(nullptr, 0, 0), 0x2d06800538d394c2u);
  EXPECT_EQ(checksum64("a", 1, 0), 0xe6c632b61e964e1fu);
  EXPECT_EQ(checksum64("abc", 3, 0), 0x78af5f94892f3950u);
}

TEST(Checksum64, DependsOnTheSeedAndEveryBit) {
  std::vector<unsigned char> block(4096, 1);
  const auto sum = checksum64(block.data(), block.size(), 42);
  EXPECT_EQ(checksum64(block.data(), block.size(), 42), sum);
  EXPECT_NE(checksum64(block.data(), block.size(), 43), sum);
  EXPECT_NE(checksum64(block.data(), block.size() - 1, 42), sum);
  for (std::size_t bit = 0; bit < block.size() * 8; bit += 97) {
    block[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    EXPECT_NE(checksum64(block.data(), block.size(), 42), sum) << bit;
    block[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
  }
}

TEST(Digest, KnownAnswers) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(digest_of("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Digest, TheCutDoesNotMatter) {
  std::string bytes(100000, '\0');
  std::iota(bytes.begin(), bytes.end(), '\1');
  Digest cut;
  std::size_t first = 0;
  for (std::size_t piece = 0; first < bytes.size(); ++piece) {
    const std::size_t size = std::min(piece, bytes.size() - first);
    cut.update(bytes.data() + first, size);
    first += size;
  }
  EXPECT_EQ(cut.hex(), digest_of(bytes));
  cut.update("x", 1);
  EXPECT_EQ(cut.hex(), digest_of(bytes + "x")) << "asking does not end it";
}

TEST(Digest, NamesAndLengthsKeepArraysApart) {
  const auto digest_of_array = [](std::string_view name, std::string_view bytes) {
    Digest digest;
    digest.start_named(name, bytes.size());
    digest.update(bytes.data(), bytes.size());
    return digest;
  };
  Digest one = digest_of_array("ab", "cd");
  Digest two = digest_of_array("abc", "d");
  Digest three = digest_of_array("ab", "c");
  three.update("d", 1);
  Digest streamed;
  streamed.start_named("ab", 2);
  streamed.update("c", 1);
  streamed.update("d", 1);
  EXPECT_NE(one.hex(), two.hex());
  EXPECT_NE(one.hex(), three.hex());
  EXPECT_EQ(one.hex(), streamed.hex());
}

}  // namespace
}  // namespace artesian::kernels
