// The bytes that aio_bench moves, with which every block read can be verified.
//
// The first word of each 4096-byte sector identifies its origin. Once in a quarter of a block, and
// at most once in 256 KiB, the word is a stamp of (offset in the file, pass), unique to each write
// and set before it. In all other sectors the word is a mark of (buffer, position in it), set
// before the clock starts and again for each later pass over the file. Stamping every sector of
// every write took more CPU time than the write itself; one stamp per 256 KiB in a block of 8 MiB
// still took an eighth of it. So stale data differ in every sector, as do blocks written by another
// buffer; two blocks of one buffer and pass differ only in their stamps. Blocks written back keep
// the marks that were read and get new stamps. The rest of a block depends only on the position in
// the block, so that each buffer is filled once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/units.h"

namespace artesian::bench {

class Pattern {
 public:
  static constexpr std::uint64_t sector = 4096;
  static constexpr std::uint64_t sample_min = 64 * sector;

  /// `block_size`: a multiple of 8; blocks are checked with a pattern of the same size.
  explicit Pattern(std::uint64_t block_size)
      : body_(block_size), sample_(std::max(sample_min, round_up(block_size / 4, sector))) {
    for (std::uint64_t at = 0; at < block_size; at += sizeof(std::uint64_t)) {
      store(body_.data() + at, mix(at));
    }
  }

  /// Fills a buffer of at most one block, without stamps.
  void fill(std::span<std::byte> block) const noexcept {
    std::memcpy(block.data(), body_.data(), block.size());
  }
  /// Sets the mark in every sector. `buffer`: a number not used for any other buffer, nor for this
  /// one before.
  static void mark(std::span<std::byte> block, std::uint32_t buffer) noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += sector) {
      store(block.data() + at, mark_of(at, buffer));
    }
  }
  /// Sets the stamp in place of the mark in each sample's first sector.
  void stamp(std::span<std::byte> block, std::uint64_t offset, std::uint32_t pass) const noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += sample_) {
      store(block.data() + at, stamp_of(offset + at, pass));
    }
  }

  /// True if one of the samples is right; each pass and block checks a different one. This is cheap
  /// enough for a timed run. Each check reads a cache line that the transfer itself does not use:
  /// one check per 64 KiB took a seventh of the CPU time of direct reads.
  bool spot(std::span<const std::byte> block, std::uint64_t offset, std::uint32_t pass,
            std::uint64_t choice) const noexcept {
    const std::uint64_t samples = round_up(block.size(), sample_) / sample_;
    const std::uint64_t at = choice % samples * sample_;
    return load(block.data() + at) == stamp_of(offset + at, pass);
  }
  /// True if every byte is right, for a block with this stamp from a buffer with this mark.
  bool whole(std::span<const std::byte> block, std::uint64_t offset, std::uint32_t pass,
             std::uint32_t buffer) const noexcept {
    for (std::uint64_t at = 0; at < block.size(); at += sector) {
      constexpr std::uint64_t word = sizeof(std::uint64_t);
      const bool stamped = at % sample_ == 0;
      const std::uint64_t first = stamped ? stamp_of(offset + at, pass) : mark_of(at, buffer);
      if (load(block.data() + at) != first) return false;
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
  static std::uint64_t stamp_of(std::uint64_t offset, std::uint32_t pass) noexcept {
    return mix(offset ^ mix(pass));
  }
  static std::uint64_t mark_of(std::uint64_t at, std::uint32_t buffer) noexcept {
    return mix(at ^ mix(~std::uint64_t{buffer}));  // mixes in numbers that no pass uses
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
  const std::uint64_t sample_;  // bytes between stamps
};

}  // namespace artesian::bench
