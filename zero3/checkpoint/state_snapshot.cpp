#include "zero3/checkpoint/state_snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tiering/block_checksums.h"

namespace artesian::zero3 {
namespace {

/// Bytes that one thread copies and sums at a time: whole checksum pieces that fit in its cache.
constexpr std::uint64_t slice_bytes = 256 << 10;
static_assert(slice_bytes % tiering::BlockChecksums::piece_bytes == 0);

/// Returns the address of an array of a sub-group, at its first element.
const std::byte* array_of(const SubGroup& group, SavedArray array) {
  const auto bytes = [](const auto* data) { return reinterpret_cast<const std::byte*>(data); };
  switch (array) {
    case SavedArray::Master: return bytes(group.master);
    case SavedArray::MasterHigh: return group.param;
    case SavedArray::MasterLow: return bytes(group.master_low);
    case SavedArray::Weight: return group.param;
    default: break;
  }
  const bool average = moment_kind(array) == MomentKind::Average;
  const std::uint16_t* half = average ? group.half_avg : group.half_avg_sq;
  if (half != nullptr) return bytes(half);
  return bytes(average ? group.exp_avg : group.exp_avg_sq);
}

}  // namespace

bool StateSnapshot::has(std::uint32_t unit, std::uint64_t index) const noexcept {
  ARTESIAN_CHECK(unit < units_.image_of.size(), unit, units_.image_of.size());
  const std::size_t image = units_.image_of[unit];
  ARTESIAN_CHECK(image < units_.images.size(), unit, image);
  for (const SavedArray array : arrays_of(units_.images[image])) {
    const BlockRange range = layout_.blocks_of(image, array, index);
    for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
      if (!file_.has(block)) return false;
    }
  }
  return true;
}

void StateSnapshot::forget() noexcept {
  for (std::uint64_t block = 0; block < layout_.blocks().size(); ++block) file_.forget(block);
}

void StateSnapshot::add(const SubGroup& group) noexcept {
  std::vector<Piece> pieces;
  const std::uint64_t slices = lease_pieces(group, pieces);
  if (failed()) return;
  copy(pieces, slices);
  for (Piece& piece : pieces) file_.write(piece.block, std::move(piece.buffer));
}

/// Takes a buffer for each block of a sub-group. Returns the number of slices in them.
std::uint64_t StateSnapshot::lease_pieces(const SubGroup& group,
                                          std::vector<Piece>& pieces) noexcept {
  const std::size_t image = units_.image_at(group.unit, group.image_first);
  std::uint64_t slices = 0;
  for (const SavedArray array : arrays_of(units_.images[image])) {
    const std::byte* from = array_of(group, array);
    ARTESIAN_CHECK(from != nullptr, image, group.index);
    const BlockRange range = layout_.blocks_of(image, array, group.index);
    for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
      const std::uint64_t bytes = layout_.blocks()[static_cast<std::size_t>(block)].length;
      pieces.push_back({block, from, bytes, buffer_for(bytes), slices});
      if (failed()) return 0;
      slices += (bytes + slice_bytes - 1) / slice_bytes;
      from += bytes;
    }
  }
  return slices;
}

/// One thread copies and sums each slice. The sums of a block's slices add up to the block's sum.
void StateSnapshot::copy(std::vector<Piece>& pieces, std::uint64_t slices) noexcept {
  ARTESIAN_CHECK(!pieces.empty() && pieces.front().first_slice == 0, pieces.size());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(slices));
  const auto piece_of = [&](std::uint64_t slice) -> const Piece& {
    const auto next = std::upper_bound(
        pieces.begin(), pieces.end(), slice,
        [](std::uint64_t wanted, const Piece& piece) { return wanted < piece.first_slice; });
    return *std::prev(next);
  };
  team_.parallel_for(slices, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (; from < to; ++from) {
      const Piece& piece = piece_of(from);
      const std::uint64_t begin = (from - piece.first_slice) * slice_bytes;
      const std::uint64_t length = std::min(slice_bytes, piece.bytes - begin);
      std::byte* const target = piece.buffer.data() + begin;
      std::memcpy(target, piece.from + begin, length);
      sums[static_cast<std::size_t>(from)] = file_.sum(piece.block, {begin, length}, target);
    }
  });
  for (std::size_t place = 0; place < pieces.size(); ++place) {
    const std::uint64_t end = place + 1 < pieces.size() ? pieces[place + 1].first_slice : slices;
    std::uint64_t sum = 0;
    for (std::uint64_t slice = pieces[place].first_slice; slice < end; ++slice) {
      sum += sums[static_cast<std::size_t>(slice)];
    }
    file_.set_sum(pieces[place].block, sum);
  }
}

void StateSnapshot::add_buffers(const std::vector<std::span<const std::byte>>& buffers) noexcept {
  const auto& places = layout_.buffers();
  ARTESIAN_CHECK(buffers.size() == places.size(), buffers.size(), places.size());
  const BlockRange range = layout_.buffer_blocks();
  std::size_t next = 0;  // the first buffer with bytes in this block, or after it
  for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
    const CheckpointBlock& at = layout_.blocks()[static_cast<std::size_t>(block)];
    const std::uint64_t end = at.offset + at.length;
    BufferLease lease = buffer_for(at.length);
    if (!lease) return;
    std::memset(lease.data(), 0, at.length);
    while (next < places.size() && places[next].offset + places[next].bytes <= at.offset) ++next;
    for (std::size_t index = next; index < places.size() && places[index].offset < end; ++index) {
      const SavedBufferPlace& place = places[index];
      ARTESIAN_CHECK(buffers[index].size() == place.bytes, buffers[index].size(), place.bytes);
      const std::uint64_t first = std::max(place.offset, at.offset);
      const std::uint64_t last = std::min(place.offset + place.bytes, end);
      if (first >= last) continue;  // this array has no bytes in the block
      std::memcpy(lease.data() + (first - at.offset),
                  buffers[index].data() + (first - place.offset), last - first);
    }
    file_.set_sum(block, file_.sum(block, {0, at.length}, lease.data()));
    file_.write(block, std::move(lease));
  }
}

/// Empty if the snapshot has failed.
BufferLease StateSnapshot::buffer_for(std::uint64_t bytes) noexcept {
  while (file_.fault() == nullptr) {
    auto lease = buffers_.lease(bytes);
    if (lease.has_value()) return std::move(lease).value();
    if (file_.in_flight() == 0) {
      file_.fail(std::move(lease).error());
    } else {
      file_.wait_for_one();
    }
  }
  return {};
}

}  // namespace artesian::zero3
