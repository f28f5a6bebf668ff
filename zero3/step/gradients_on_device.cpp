// The part of Gradients for accumulators in a separate device's memory: kernels in the queue
// Compute, after the backward that computes the gradients; those of several ranks in Bus, where
// they arrive. Sums of squares are copied to the host, and rows summed by the host are copied to
// the device, both through a small scratch range.
#include <algorithm>
#include <utility>

#include "kernels/gradient.h"
#include "zero3/step/gradients.h"

namespace artesian::zero3 {

using kernels::norm_leaf;
using tiering::Queue;

/// Once, as padding must be zero.
Result<void> Gradients::clear_on_device(std::uint32_t unit, Queue queue) noexcept {
  ARTESIAN_CHECK(on_device(unit), unit);
  if (cleared_[unit]) return {};
  cleared_[unit] = true;
  const Placement& plan = state_.placement();
  return state_.device().zero(queue, state_.store().memory(state_.grad(unit)),
                              plan.grad_bytes(unit));
}

/// Makes Compute wait for what was added in Bus.
Result<void> Gradients::follow_bus() noexcept {
  return state_.device().wait(Queue::Compute, std::exchange(added_, {}));
}

/// Adds pieces of `dtype` that are in device memory.
Result<void> Gradients::accumulate_there(std::uint32_t unit, const std::vector<Piece>& pieces,
                                         DType dtype, Queue queue) noexcept {
  const Placement& plan = state_.placement();
  std::byte* const memory = state_.store().memory(state_.grad(unit));
  std::vector<kernels::GradientPiece> list;
  list.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    list.push_back({.acc = memory + piece.first * dtype_size(plan.grad_dtype),
                    .grad = piece.data,
                    .count = piece.count,
                    .how = piece.fresh ? kernels::Accumulate::Set : kernels::Accumulate::Add});
  }
  return state_.device().accumulate_gradients(
      queue, list,
      {.acc = plan.grad_dtype,
       .grad = dtype,
       .rounded = dtype == DType::Float32 ? plan.param_dtype : dtype});
}

/// The host source must stay valid until this returns; it waits for its copies.
Result<void> Gradients::add_on_device(std::uint32_t unit, const std::vector<Piece>& pieces,
                                      const GradientSource& source) noexcept {
  ARTESIAN_TRY_VOID(clear_on_device(unit, source.queue));
  if (source.on_device) return accumulate_there(unit, pieces, source.dtype, source.queue);
  ARTESIAN_CHECK(source.dtype == DType::Float32);
  return add_rows_on_device(unit, pieces);
}

/// Copies as many rows at a time as fit in the scratch range, or one row in parts. Adjacent rows
/// are one copy, and one call adds them all. Whoever uses the range leaves it free for copies.
Result<void> Gradients::add_rows_on_device(std::uint32_t unit,
                                           const std::vector<Piece>& rows) noexcept {
  tiering::Device& device = state_.device();
  const std::span<std::byte> scratch = state_.grad_scratch();
  ARTESIAN_CHECK(scratch.size() >= sizeof(float), scratch.size());
  std::vector<Piece> batch;  // pieces whose data is in the scratch range
  std::uint64_t used = 0;
  const std::byte* from = nullptr;  // what is copied next, to the end of what is used
  std::uint64_t bytes = 0;
  const auto copy = [&]() -> Result<void> {
    std::byte* const place = scratch.data() + used - bytes;
    const std::byte* const source = std::exchange(from, nullptr);
    const std::uint64_t length = std::exchange(bytes, 0);
    return length == 0 ? Result<void>() : device.copy_to_device(place, source, length);
  };
  const auto flush = [&]() -> Result<void> {
    ARTESIAN_TRY_VOID(copy());
    ARTESIAN_TRY(copied, device.record(Queue::ToDevice));
    ARTESIAN_TRY_VOID(device.wait(Queue::Compute, copied));
    ARTESIAN_TRY_VOID(accumulate_there(unit, batch, DType::Float32, Queue::Compute));
    ARTESIAN_TRY(read, device.record(Queue::Compute));
    ARTESIAN_TRY_VOID(device.wait(Queue::ToDevice, read));
    batch.clear();
    used = 0;
    return {};
  };
  for (const Piece& row : rows) {
    for (std::uint64_t done = 0; done < row.count;) {
      const std::uint64_t count = std::min(row.count - done, (scratch.size() - used) / 4);
      const std::byte* const data = row.data + done * 4;
      if (from == nullptr || data != from + bytes) {
        ARTESIAN_TRY_VOID(copy());
        from = data;
      }
      batch.push_back({row.first + done, count, scratch.data() + used, row.fresh});
      used += count * 4;
      bytes += count * 4;
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
  const std::uint64_t share = state_.layout().units[unit].share;
  const std::span<double> sums =
      leaf_sums_.of(unit).subspan(static_cast<std::size_t>(state_.share_begin(unit) / norm_leaf),
                                  static_cast<std::size_t>(share / norm_leaf));
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
