#include "base/random.h"

#include <cmath>

namespace artesian {
namespace {

constexpr std::uint32_t multiplier_0 = 0xD2511F53u;
constexpr std::uint32_t multiplier_1 = 0xCD9E8D57u;
constexpr std::uint32_t weyl_0 = 0x9E3779B9u;
constexpr std::uint32_t weyl_1 = 0xBB67AE85u;

std::array<std::uint32_t, 4> block_at(std::uint64_t seed, std::uint64_t stream,
                                      std::uint64_t block) noexcept {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                     static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                    seed);
}

/// Two standard normals from two words. The first uniform is in (0, 1], so that its log is finite.
std::array<double, 2> box_muller(std::uint32_t first, std::uint32_t second) noexcept {
  const double uniform = (static_cast<double>(first) + 1.0) * 0x1p-32;
  const double angle = static_cast<double>(second) * 0x1p-32 * 6.283185307179586;
  const double radius = std::sqrt(-2.0 * std::log(uniform));
  double sine = 0.0;
  double cosine = 0.0;
  ::sincos(angle, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::uint64_t key) noexcept {
  auto key_0 = static_cast<std::uint32_t>(key);
  auto key_1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = std::uint64_t{multiplier_0} * counter[0];
    const std::uint64_t product_1 = std::uint64_t{multiplier_1} * counter[2];
    counter = {static_cast<std::uint32_t>(product_1 >> 32) ^ counter[1] ^ key_0,
               static_cast<std::uint32_t>(product_1),
               static_cast<std::uint32_t>(product_0 >> 32) ^ counter[3] ^ key_1,
               static_cast<std::uint32_t>(product_0)};
    key_0 += weyl_0;
    key_1 += weyl_1;
  }
  return counter;
}

void fill_normal(std::span<float> target, std::uint64_t seed, std::uint64_t stream,
                 std::uint64_t index_first) noexcept {
  std::uint64_t index = index_first;
  std::size_t filled = 0;
  while (filled < target.size()) {
    const auto words = block_at(seed, stream, index / 4);
    const auto low = box_muller(words[0], words[1]);
    const auto high = box_muller(words[2], words[3]);
    const std::array<double, 4> normals{low[0], low[1], high[0], high[1]};
    for (std::uint64_t lane = index % 4; lane < 4 && filled < target.size(); ++lane, ++index) {
      target[filled++] = static_cast<float>(normals[lane]);
    }
  }
}

std::uint64_t random_word(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept {
  const auto words = block_at(seed, stream, index);
  return std::uint64_t{words[0]} | std::uint64_t{words[1]} << 32;
}

}  // namespace artesian
