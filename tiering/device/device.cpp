#include "tiering/device/device.h"

#include <array>

namespace artesian::tiering {
namespace {

constexpr std::array joined{Queue::Compute, Queue::ToDevice, Queue::ToHost};

/// True if the memory is aligned to elements of this size; otherwise kernels on a GPU fault.
bool is_aligned(const void* memory, std::uint64_t size) noexcept {
  return memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % size == 0;
}

}  // namespace

void Device::check_copy(const std::byte* target, const std::byte* source,
                        std::uint64_t bytes) noexcept {
  if (bytes == 0) return;
  ARTESIAN_CHECK(target != nullptr && source != nullptr, target, source, bytes);
  const auto to = reinterpret_cast<std::uintptr_t>(target);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  ARTESIAN_CHECK(to + bytes <= from || from + bytes <= to, target, source, bytes);
}

void Device::check_expand(const std::byte* source, DType source_dtype,
                          const float* target) noexcept {
  ARTESIAN_CHECK(is_aligned(source, dtype_size(source_dtype)), source);
  ARTESIAN_CHECK(is_aligned(target, sizeof(float)), target);
}

void Device::check_gradients(std::span<const kernels::GradientPiece> pieces,
                             const kernels::GradientDtypes& dtypes) noexcept {
  ARTESIAN_CHECK(dtypes.grad == DType::Float32 || dtypes.grad == dtypes.rounded);
  for (const kernels::GradientPiece& piece : pieces) {
    ARTESIAN_CHECK(is_aligned(piece.acc, dtype_size(dtypes.acc)), piece.acc);
    ARTESIAN_CHECK(is_aligned(piece.grad, dtype_size(dtypes.grad)), piece.grad);
  }
}

void Device::check_squares(const std::byte* data, DType dtype, const double* leaf_sums) noexcept {
  ARTESIAN_CHECK(is_aligned(data, dtype_size(dtype)), data);
  ARTESIAN_CHECK(is_aligned(leaf_sums, sizeof(double)), leaf_sums);
}

void Device::check_update(std::span<const kernels::AdamPiece> pieces,
                          const kernels::UpdateStep& step) noexcept {
  for (const kernels::AdamPiece& piece : pieces) {
    const kernels::AdamArrays& arrays = piece.arrays;
    const kernels::AdamArrays& first = pieces.front().arrays;
    const bool split = arrays.master_low != nullptr;
    ARTESIAN_CHECK(split == (first.master_low != nullptr), split);
    ARTESIAN_CHECK(arrays.grad_dtype == first.grad_dtype);
    ARTESIAN_CHECK(arrays.param_out_dtype == first.param_out_dtype);
    ARTESIAN_CHECK(split || is_aligned(arrays.param, sizeof(float)), arrays.param);
    ARTESIAN_CHECK(!split || is_aligned(arrays.master_low, 2), arrays.master_low);
    ARTESIAN_CHECK(!split || arrays.param_out_dtype == DType::BFloat16);
    ARTESIAN_CHECK((arrays.exp_avg == nullptr) == (first.exp_avg == nullptr), arrays.exp_avg);
    ARTESIAN_CHECK((arrays.exp_avg_sq != nullptr) == kernels::has_squares(step.rule));
    for (const float* moment : {arrays.exp_avg, arrays.exp_avg_sq}) {
      ARTESIAN_CHECK(moment == nullptr || is_aligned(moment, sizeof(float)), moment);
    }
    ARTESIAN_CHECK(is_aligned(arrays.grad, dtype_size(arrays.grad_dtype)), arrays.grad);
    const bool out = is_aligned(arrays.param_out, dtype_size(arrays.param_out_dtype));
    ARTESIAN_CHECK(out || (arrays.param_out == nullptr && !split), arrays.param_out);
  }
}

void Device::work_meanwhile() noexcept {
  if (!meanwhile_ || works_meanwhile_) return;
  works_meanwhile_ = true;
  meanwhile_();
  works_meanwhile_ = false;
}

Result<void> Device::join_queues() {
  ARTESIAN_CHECK(!joining_);
  std::array<DeviceFence, joined.size()> ends;
  for (std::size_t index = 0; index < joined.size(); ++index) {
    ARTESIAN_TRY(end, record(joined[index]));
    ARTESIAN_CHECK(end.queue == joined[index], index);
    ends[index] = end;
  }
  Result<void> outcome;
  joining_ = true;
  for (const Queue queue : joined) {
    for (const DeviceFence& end : ends) {
      if (outcome.has_value() && end.queue != queue) outcome = wait(queue, end);
    }
  }
  joining_ = false;
  return outcome;
}

Result<void> Device::finish_all() noexcept {
  for (const Queue queue : {Queue::Bus, Queue::Compute, Queue::ToDevice, Queue::ToHost}) {
    ARTESIAN_TRY(end, record(queue));
    ARTESIAN_TRY_VOID(finish(end));
  }
  return {};
}

}  // namespace artesian::tiering
