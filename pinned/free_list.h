// FreeList: the free byte runs of a range, in address order, with neighbours always merged. Memory
// for all nodes is reserved at construction for the worst case (every second grain leased), so
// taking and giving never allocates. Not thread-safe: the pool locks around it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace artesian::pinned {

class FreeList {
 public:
  struct Run {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  /// Starts with [0, bytes) free, handed out in multiples of `grain` bytes.
  FreeList(std::uint64_t bytes, std::uint64_t grain);

  /// Offset of the first run that is long enough, cut from its low end; nothing if none is.
  std::optional<std::uint64_t> take_low(std::uint64_t length) noexcept;
  /// As take_low, from the other end: the last run that is long enough, cut from its high end.
  std::optional<std::uint64_t> take_high(std::uint64_t length) noexcept;
  /// Takes [offset, offset + length), which must be free.
  void take_at(std::uint64_t offset, std::uint64_t length) noexcept;
  /// Frees [offset, offset + length), and checks that no byte of it was free already.
  void give(std::uint64_t offset, std::uint64_t length) noexcept;

  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t bytes_free() const noexcept { return bytes_free_; }
  /// Length of the longest run; 0 when nothing is free.
  std::uint64_t longest() const noexcept;
  const std::vector<Run>& runs() const noexcept { return runs_; }

 private:
  std::uint64_t bytes_;
  std::uint64_t grain_;
  std::uint64_t bytes_free_;
  std::vector<Run> runs_;
};

}  // namespace artesian::pinned
