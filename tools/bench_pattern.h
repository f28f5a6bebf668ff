// The bytes that aio_bench moves, so that every block read can be told right from wrong. The first
// word of each 4096-byte sector is a stamp of (offset in the file, pass): stale and misplaced data
// differ there. The rest of a block depends on the position in the block alone, so that a buffer is
// filled once and only stamped before each write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace artesian::bench {

class Pattern {
 public:
  static constexpr std::uint64_t sector = 4096;
  static constexpr std::uint64_t sample = 64 * sector;

  explicit Pattern(std::uint64_t block_size) : body_(block_size) {
    for (std::uint64_t at = 0; at < block_size; at += sizeof(std::uint64_t)) {
      store(body_.data() + at, mix(at));
    }
  }

  /// Fills a buffer of at most a block, without stamps.
  void fill(std::span<std::byte> block) const noexcept {
    std::memcpy(block.data(), body_.data(), block.size());
  }
  /// Every `step` bytes: `whole` needs every sector's, `sampled` is content with every sample's.
  static void stamp(std::span<std::byte> block, std::uint64_t offset, std::uint64_t pass,
                    std::uint64_t step = sector) noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += step) {
      store(block.data() + at, stamp_of(offset + at, pass));
    }
  }

  /// Whether one of the samples is right, another one from pass to pass and from block to block:
  /// cheap enough for a timed run. Each look is at a line of memory that the transfer itself never
  /// touches: at one in 64 KiB they were a seventh of the CPU time of direct reads.
  static bool spot(std::span<const std::byte> block, std::uint64_t offset, std::uint64_t pass,
                   std::uint64_t choice) noexcept {
    const std::uint64_t at = choice % samples_of(block.size()) * sample;
    return load(block.data() + at) == stamp_of(offset + at, pass);
  }
  /// Whether all samples are right.
  static bool sampled(std::span<const std::byte> block, std::uint64_t offset,
                      std::uint64_t pass) noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += sample) {
      if (load(block.data() + at) != stamp_of(offset + at, pass)) return false;
    }
    return true;
  }
  /// Whether every byte is right.
  bool whole(std::span<const std::byte> block, std::uint64_t offset,
             std::uint64_t pass) const noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += sector) {
      constexpr std::uint64_t word = sizeof(std::uint64_t);
      if (load(block.data() + at) != stamp_of(offset + at, pass)) return false;
      if (std::memcmp(block.data() + at + word, body_.data() + at + word, sector - word) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  /// SplitMix64's finalizer: every bit of the value changes about half of the result's.
  static std::uint64_t mix(std::uint64_t value) noexcept {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }
  static std::uint64_t samples_of(std::uint64_t size) noexcept {
    return (size + sample - 1) / sample;
  }
  static std::uint64_t stamp_of(std::uint64_t offset, std::uint64_t pass) noexcept {
    return mix(offset ^ mix(pass));
  }
  static void store(std::byte* target, std::uint64_t word) noexcept {
    std::memcpy(target, &word, sizeof word);
  }
  static std::uint64_t load(const std::byte* source) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, source, sizeof word);
    return word;
  }

  std::vector<std::byte> body_;
};

}  // namespace artesian::bench
