#include "tiering/device/host_device.h"

#include <cstring>

#include "kernels/cast.h"

namespace artesian::tiering {

Result<std::unique_ptr<pinned::Pool>> HostDevice::create_arena(std::uint64_t bytes) {
  // The CPU computes with this memory many times, so it is faulted in first.
  return pinned::Pool::create({.bytes = bytes,
                               .lock = pinned::Lock::Never,
                               .name = "device memory",
                               .nodes = pinned::choose_nodes(pinned::machine_nodes(), {})});
}

Result<void> HostDevice::copy_to_device(std::byte* target, const std::byte* source,
                                        std::uint64_t bytes) {
  check_copy(target, source, bytes);
  std::memcpy(target, source, bytes);
  bytes_to_device_ += bytes;
  return {};
}

Result<void> HostDevice::copy_to_host(std::byte* target, const std::byte* source,
                                      std::uint64_t bytes) {
  check_copy(target, source, bytes);
  std::memcpy(target, source, bytes);
  bytes_to_host_ += bytes;
  return {};
}

Result<void> HostDevice::copy_within(Queue, std::byte* target, const std::byte* source,
                                     std::uint64_t bytes) {
  check_copy(target, source, bytes);
  std::memcpy(target, source, bytes);
  return {};
}

Result<void> HostDevice::zero(Queue, std::byte* target, std::uint64_t bytes) {
  ARTESIAN_CHECK(target != nullptr, bytes);
  std::memset(target, 0, bytes);
  return {};
}

Result<void> HostDevice::expand(Queue, const std::byte* source, DType source_dtype, float* target,
                                std::uint64_t count) {
  check_expand(source, source_dtype, target);
  kernels::expand(source, source_dtype, target, count);
  return {};
}

Result<void> HostDevice::accumulate_gradients(Queue, std::span<const kernels::GradientPiece> pieces,
                                              const kernels::GradientDtypes& dtypes) {
  check_gradients(pieces, dtypes);
  for (const kernels::GradientPiece& piece : pieces) kernels::accumulate_piece(piece, dtypes);
  return {};
}

Result<void> HostDevice::sum_squares(Queue, const std::byte* data, DType dtype, std::uint64_t count,
                                     double* leaf_sums) {
  check_squares(data, dtype, leaf_sums);
  kernels::sum_squares(data, dtype, count, leaf_sums);
  return {};
}

Result<void> HostDevice::update_steps(Queue, std::span<const kernels::AdamPiece> pieces,
                                      const kernels::UpdateStep& step) {
  check_update(pieces, step);
  for (const kernels::AdamPiece& piece : pieces) {
    kernels::update(piece.arrays, piece.count, step);
  }
  return {};
}

HostDevice& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace artesian::tiering
