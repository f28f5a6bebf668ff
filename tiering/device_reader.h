// DeviceReader: hands device memory to the host piece by piece, through a few pinned buffers: while
// the host works on one buffer, the next ones are being copied. Pieces that fit share a buffer, a
// fence and a wait. The buffers are reserved at start and are smaller than what is read.
//
// Thread: the compute thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tiering/device/device.h"

namespace artesian::tiering {

class DeviceReader {
 public:
  struct Part {
    const std::byte* source = nullptr;  // device memory
    std::uint64_t bytes = 0;
  };
  /// Called with pieces of the parts, in order; `offset` within the part. The span is valid during
  /// the call.
  using Sink = std::function<Result<void>(std::size_t part, std::uint64_t offset,
                                          std::span<const std::byte> piece)>;

  /// Takes `count` buffers of `bytes` (a multiple of 4096) from the pool. Errors: Exhausted.
  static Result<std::unique_ptr<DeviceReader>> create(Device& device, pinned::Pool& host_pool,
                                                      std::uint64_t bytes, std::uint32_t count);
  /// Reads the parts, which must be complete once `written` has passed. When it returns, even with
  /// an error of the sink, the parts are no longer being read. Errors: Io, Timeout (the device),
  /// the sink's.
  Result<void> read(std::span<const Part> parts, DeviceFence written, const Sink& sink) noexcept;
  /// As read, into host memory.
  Result<void> read_into(std::byte* target, Part part, DeviceFence written) noexcept;
  /// Lists the host memory of the buffers.
  std::vector<std::span<std::byte>> buffers() const;
  /// Returns the seconds spent waiting for the device so far.
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }

 private:
  struct Piece {
    std::size_t part;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint64_t at;  // byte of the buffer
  };
  using Pieces = std::vector<Piece>;
  explicit DeviceReader(Device& device) : device_(device) {}
  std::vector<Pieces> cut(std::span<const Part> parts) const;
  Result<void> read_pieces(std::span<const Part> parts, const std::vector<Pieces>& fills,
                           const Sink& sink) noexcept;

  Device& device_;
  std::vector<BufferLease> buffers_;
  std::uint64_t wait_ns_ = 0;
};

}  // namespace artesian::tiering
