// Memory registered with a ring, cut into the pieces that the kernel takes (1 GiB each). A transfer
// that lies within one piece names its index; one that spans a cut goes unregistered.
//
// Note [Whole huge pages]: the kernel records a piece by huge pages only if all of it lies on huge
// pages. A single small page makes it record the whole piece by 4096 bytes: each 1 MiB is then
// handled as 256 pieces of memory, and direct transfers took 1.7 times the CPU time (measured on
// Linux 6.18 with 1 MiB x 33, of which the last is on small pages, against x 32 and x 34). Most
// ranges are not multiples of 2 MiB and end on small pages; so the parts before the first and after
// the last whole huge page become pieces of their own.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace artesian::aio {

class FixedBuffers {
 public:
  static constexpr std::uint64_t piece_size_max = std::uint64_t{1} << 30;

  FixedBuffers() = default;
  /// The ranges must not overlap.
  explicit FixedBuffers(std::span<const std::span<std::byte>> ranges,
                        std::uint64_t piece_size = piece_size_max);

  /// Index of the piece that holds all of [data, data + length).
  std::optional<std::uint16_t> find(const std::byte* data, std::uint64_t length) const noexcept;
  /// In address order; a piece's position is its index.
  const std::vector<iovec>& pieces() const noexcept { return pieces_; }

 private:
  void add(std::span<std::byte> range, std::uint64_t piece_size);

  std::vector<iovec> pieces_;
};

}  // namespace artesian::aio
