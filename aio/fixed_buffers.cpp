#include "aio/fixed_buffers.h"

#include <algorithm>

#include "base/check.h"
#include "base/huge_page.h"
#include "base/units.h"

namespace artesian::aio {
namespace {

std::uintptr_t begin_of(const iovec& piece) {
  return reinterpret_cast<std::uintptr_t>(piece.iov_base);
}

}  // namespace

FixedBuffers::FixedBuffers(std::span<const std::span<std::byte>> ranges, std::uint64_t piece_size) {
  for (const std::span<std::byte> range : ranges) {
    // Cuts at huge pages: see Note [Whole huge pages].
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
    const std::uint64_t first = round_up(begin, huge_page_size) - begin;
    const std::uint64_t end = round_down(begin + range.size(), huge_page_size);
    if (end <= begin + first) {
      add(range, piece_size);
      continue;
    }
    const std::uint64_t last = end - begin;
    ARTESIAN_CHECK(first < last && last <= range.size(), first, last, range.size());
    add(range.first(first), piece_size);
    add(range.subspan(first, last - first), piece_size);
    add(range.subspan(last), piece_size);
  }
  std::sort(pieces_.begin(), pieces_.end(),
            [](const iovec& left, const iovec& right) { return begin_of(left) < begin_of(right); });
  ARTESIAN_CHECK(pieces_.size() <= 1 << 16, pieces_.size());  // indices have 16 bits
  for (std::size_t index = 1; index < pieces_.size(); ++index) {
    const iovec& before = pieces_[index - 1];
    ARTESIAN_CHECK(begin_of(before) + before.iov_len <= begin_of(pieces_[index]), index);
  }
}

void FixedBuffers::add(std::span<std::byte> range, std::uint64_t piece_size) {
  ARTESIAN_CHECK(piece_size != 0);
  for (std::uint64_t at = 0; at < range.size(); at += piece_size) {
    const std::uint64_t length = std::min(piece_size, range.size() - at);
    pieces_.push_back({.iov_base = range.data() + at, .iov_len = length});
  }
}

std::optional<std::uint16_t> FixedBuffers::find(const std::byte* data,
                                                std::uint64_t length) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto after = std::upper_bound(
      pieces_.begin(), pieces_.end(), begin,
      [](std::uintptr_t address, const iovec& piece) { return address < begin_of(piece); });
  if (after == pieces_.begin()) return std::nullopt;
  const iovec& piece = *(after - 1);
  if (begin + length > begin_of(piece) + piece.iov_len) return std::nullopt;
  return static_cast<std::uint16_t>(after - 1 - pieces_.begin());
}

}  // namespace artesian::aio
