// Memory registered with a ring, cut into the pieces that the kernel takes (1 GiB each). A transfer
// that lies within one piece names its index; one that spans a cut goes unregistered.
//
// Note [Whole huge pages]: the kernel keeps a piece by its huge pages if all of it lies on such,
// and else, for a single small page, all of it by 4096 bytes: then it handles each 1 MiB as 256
// pieces of memory, and direct transfers of it took 1.7 times the CPU time (measured on Linux 6.18
// with 1 MiB x 33, of which the last is on small pages, against x 32 and x 34). A range ends on
// small pages where it is no multiple of 2 MiB, as few are; so what is before its first and after
// its last whole huge page are pieces of their own.
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
