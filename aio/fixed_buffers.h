// Memory registered with a ring, cut into the pieces that the kernel takes (1 GiB each). A transfer
// that lies within one piece names its index; one that spans a cut goes unregistered.
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
  std::vector<iovec> pieces_;
};

}  // namespace artesian::aio
