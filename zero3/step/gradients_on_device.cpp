// The part of Gradients for accumulators in a separate device's memory: kernels in the queue
// Compute, after the backward that computes the gradients. Sums of squares are copied to the host,
// and rows summed by the host are copied to the device, both through a small scratch range.
#include <algorithm>
#include <cstring>

#include "kernels/gradient.h"
#include "zero3/step/gradients.h"

namespace artesian::zero3 {

using kernels::norm_leaf;
using tiering::Queue;

/// Once, as padding must be zero.
Result<void> Gradients::clear_on_device(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(on_device(unit), unit);
  if (cleared_[unit]) return {};
  cleared_[unit] = true;
  const Placement& plan = state_.placement();
  return state_.device().zero(Queue::Compute, state_.store().memory(state_.grad(unit)),
                              plan.grad_bytes(unit));
}

/// The host source must stay valid until this returns; it waits for its copies.
Result<void> Gradients::add_on_device(std::uint32_t unit, const std::vector<Piece>& pieces,
                                      const GradientSource& source) noexcept {
  const Placement& plan = state_.placement();
  tiering::Device& device = state_.device();
  const std::uint64_t size = dtype_size(plan.grad_dtype);
  std::byte* memory = state_.store().memory(state_.grad(unit));
  ARTESIAN_CHECK(source.dtype == DType::Float32);
  ARTESIAN_TRY_VOID(clear_on_device(unit));
  const auto accumulate_part = [&](const Piece& piece, const std::byte* data) {
    const auto how = piece.fresh ? kernels::Accumulate::Set : kernels::Accumulate::Add;
    return device.accumulate_gradient(Queue::Compute, memory + piece.first * size, plan.grad_dtype,
                                      reinterpret_cast<const float*>(data), plan.param_dtype,
                                      piece.count, how);
  };
  if (source.on_device) {
    for (const Piece& piece : pieces) ARTESIAN_TRY_VOID(accumulate_part(piece, piece.data));
    return {};
  }
  return add_rows_on_device(pieces, accumulate_part);
}

/// Copies as many rows at a time as fit in the scratch range, or one row in parts.
Result<void> Gradients::add_rows_on_device(
    const std::vector<Piece>& rows,
    const std::function<Result<void>(const Piece&, const std::byte*)>& accumulate_part) noexcept {
  tiering::Device& device = state_.device();
  const std::span<std::byte> scratch = state_.grad_scratch();
  ARTESIAN_CHECK(scratch.size() >= sizeof(float), scratch.size());
  std::vector<Piece> batch;  // pieces whose data is in the scratch range
  std::uint64_t used = 0;
  const auto flush = [&]() -> Result<void> {
    ARTESIAN_TRY(copied, device.record(Queue::ToDevice));
    ARTESIAN_TRY_VOID(device.wait(Queue::Compute, copied));
    for (const Piece& part : batch) ARTESIAN_TRY_VOID(accumulate_part(part, part.data));
    ARTESIAN_TRY(read, device.record(Queue::Compute));
    ARTESIAN_TRY_VOID(device.wait(Queue::ToDevice, read));
    batch.clear();
    used = 0;
    return {};
  };
  ARTESIAN_TRY(idle, device.record(Queue::Compute));
  ARTESIAN_TRY_VOID(device.wait(Queue::ToDevice, idle));
  for (const Piece& row : rows) {
    for (std::uint64_t done = 0; done < row.count;) {
      const std::uint64_t count = std::min(row.count - done, (scratch.size() - used) / 4);
      std::byte* place = scratch.data() + used;
      ARTESIAN_TRY_VOID(device.copy_to_device(place, row.data + done * 4, count * 4));
      batch.push_back({row.first + done, count, place, row.fresh});
      used += count * 4;
      done += count;
      if (scratch.size() - used < 4) ARTESIAN_TRY_VOID(flush());
    }
  }
  ARTESIAN_TRY_VOID(flush());
  ARTESIAN_TRY(copied, device.record(Queue::ToDevice));
  return device.finish(copied);
}

Result<void> Gradients::sum_unit_on_device(std::uint32_t unit) noexcept {
  tiering::Device& device = state_.device();
  const DType dtype = state_.placement().grad_dtype;
  const std::uint64_t leaf_bytes = norm_leaf * dtype_size(dtype);
  const std::byte* memory = state_.store().memory(state_.grad(unit));
  const std::span<std::byte> scratch = state_.grad_scratch();
  const std::size_t leaves_max = scratch.size() / sizeof(double);
  const std::span<double> sums = leaf_sums_.of(unit);
  ARTESIAN_CHECK(leaves_max != 0 && state_.placement().units[unit].grad == tiering::Tier::Device);
  for (std::size_t first = 0; first < sums.size(); first += leaves_max) {
    const auto part = sums.subspan(first, std::min(leaves_max, sums.size() - first));
    ARTESIAN_TRY_VOID(device.sum_squares(Queue::Compute, memory + first * leaf_bytes, dtype,
                                         part.size() * norm_leaf,
                                         reinterpret_cast<double*>(scratch.data())));
    ARTESIAN_TRY(summed, device.record(Queue::Compute));
    ARTESIAN_TRY_VOID(state_.reader().read_into(reinterpret_cast<std::byte*>(part.data()),
                                                {scratch.data(), part.size_bytes()}, summed));
  }
  return {};
}

}  // namespace artesian::zero3
