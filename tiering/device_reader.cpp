#include "tiering/device_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"

namespace artesian::tiering {

Result<std::unique_ptr<DeviceReader>> DeviceReader::create(Device& device, pinned::Pool& host_pool,
                                                           std::uint64_t bytes,
                                                           std::uint32_t count) {
  ARTESIAN_CHECK(count > 0 && bytes > 0 && bytes % 4096 == 0, count, bytes);
  std::unique_ptr<DeviceReader> reader(new DeviceReader(device));
  for (std::uint32_t index = 0; index < count; ++index) {
    ARTESIAN_TRY(memory, host_pool.lease(bytes, pinned::Placement::High));
    reader->buffers_.push_back(std::move(memory));
  }
  return reader;
}

std::vector<std::span<std::byte>> DeviceReader::buffers() const {
  std::vector<std::span<std::byte>> list;
  for (const BufferLease& buffer : buffers_) {
    list.emplace_back(buffer.data(), static_cast<std::size_t>(buffer.size()));
  }
  return list;
}

/// What fills each buffer in turn.
std::vector<DeviceReader::Pieces> DeviceReader::cut(std::span<const Part> parts) const {
  constexpr std::uint64_t alignment = 64;
  const std::uint64_t room = buffers_[0].size();
  std::vector<Pieces> fills;
  std::uint64_t used = room;  // of the last one
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::uint64_t offset = 0; offset < parts[part].bytes;) {
      const std::uint64_t bytes = std::min(parts[part].bytes - offset, room);
      if (used + bytes > room) {
        fills.emplace_back();
        used = 0;
      }
      fills.back().push_back({part, offset, bytes, used});
      used += round_up(bytes, alignment);
      offset += bytes;
    }
  }
  return fills;
}

Result<void> DeviceReader::read(std::span<const Part> parts, DeviceFence written,
                                const Sink& sink) noexcept {
  ARTESIAN_TRY_VOID(device_.wait(Queue::ToHost, written));
  auto outcome = read_pieces(parts, cut(parts), sink);
  if (outcome.has_value()) return {};
  ARTESIAN_TRY(end, device_.record(Queue::ToHost));  // copies under way still read the parts
  ARTESIAN_TRY_VOID(device_.finish(end));
  return outcome;
}

Result<void> DeviceReader::read_pieces(std::span<const Part> parts,
                                       const std::vector<Pieces>& fills,
                                       const Sink& sink) noexcept {
  std::vector<DeviceFence> arrived(buffers_.size());
  std::size_t issued = 0;
  for (std::size_t current = 0; current < fills.size(); ++current) {
    for (; issued < fills.size() && issued < current + buffers_.size(); ++issued) {
      const BufferLease& buffer = buffers_[issued % buffers_.size()];
      for (const Piece& piece : fills[issued]) {
        ARTESIAN_CHECK(piece.at + piece.bytes <= buffer.size(), piece.at, piece.bytes);
        ARTESIAN_TRY_VOID(device_.copy_to_host(
            buffer.data() + piece.at, parts[piece.part].source + piece.offset, piece.bytes));
      }
      ARTESIAN_TRY(end, device_.record(Queue::ToHost));
      arrived[issued % buffers_.size()] = end;
    }
    const std::size_t slot = current % buffers_.size();
    ARTESIAN_CHECK(current < issued && issued - current <= buffers_.size(), current, issued);
    const std::uint64_t before = monotonic_ns();
    auto come = device_.finish(arrived[slot]);
    wait_ns_ += monotonic_ns() - before;
    ARTESIAN_TRY_VOID(std::move(come));
    for (const Piece& piece : fills[current]) {
      const auto bytes = static_cast<std::size_t>(piece.bytes);
      ARTESIAN_TRY_VOID(sink(piece.part, piece.offset, {buffers_[slot].data() + piece.at, bytes}));
    }
  }
  return {};
}

Result<void> DeviceReader::read_into(std::byte* target, Part part, DeviceFence written) noexcept {
  return read({&part, 1}, written,
              [&, part](std::size_t, std::uint64_t offset, std::span<const std::byte> piece) {
                ARTESIAN_CHECK(offset + piece.size() <= part.bytes, offset, piece.size());
                std::memcpy(target + offset, piece.data(), piece.size());
                return Result<void>();
              });
}

}  // namespace artesian::tiering
