#include "tests/support/simulated_accelerator/simulated_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/units.h"
#include "tests/support/wait_sites.h"

namespace artesian::test_support {
namespace {

constexpr std::array own_queues{tiering::Queue::ToDevice, tiering::Queue::ToHost,
                                tiering::Queue::Bus};  // Compute is PyTorch's

/// Queues of destroyed devices, which later ones reuse: PyTorch's streams cannot be removed.
std::vector<std::size_t>& spare_queues() {
  static auto* const queues = new std::vector<std::size_t>();
  return *queues;
}

LateQueues& queues() {
  return accelerator().queues;
}

template <typename T>
T* seen(T* at) {
  return accelerator().memory.for_kernels(at);
}

/// True if the call is to be left out.
bool drops(const char* call, const void* caller) {
  return WaitSites::instance().drops(call, caller);
}

}  // namespace

SimulatedDevice::SimulatedDevice(c10::DeviceIndex index, std::size_t compute) : index_(index) {
  queues_[static_cast<std::size_t>(Queue::Compute)] = compute;
  for (const Queue queue : own_queues) {
    auto& own = queues_[static_cast<std::size_t>(queue)];
    if (spare_queues().empty()) {
      own = queues().add_queue();
    } else {
      own = spare_queues().back();
      spare_queues().pop_back();
    }
  }
}

SimulatedDevice::~SimulatedDevice() {
  ARTESIAN_CHECK(!has_arena_, name());  // else the arena was not released
  for (const Queue queue : own_queues) {
    queues().finish(queues().record(number(queue)));
    spare_queues().push_back(number(queue));
  }
}

Result<std::unique_ptr<pinned::Pool>> SimulatedDevice::create_arena(std::uint64_t bytes) {
  const std::uint64_t size = round_up(bytes, 4096);
  std::byte* const at = accelerator().memory.take(size);
  if (at == nullptr) {
    return make_error(ErrorCode::Exhausted, "artesian.device_memory: " + format_size(size) +
                                                " asked, " +
                                                format_size(accelerator().memory.bytes_free()) +
                                                " free on " + name() + "; lower it");
  }
  has_arena_ = true;
  return pinned::Pool::over({at, static_cast<std::size_t>(size)}, "device memory",
                            [this, at, size] {
                              queues().finish_all();
                              accelerator().memory.give(at, size);
                              has_arena_ = false;
                            });
}

Result<void> SimulatedDevice::enqueue(Queue queue, const char* what, std::vector<Range> ranges,
                                      LateQueues::Work work) {
  queues().enqueue(number(queue), what, std::move(ranges), std::move(work));
  return {};
}

Result<void> SimulatedDevice::copy_to_device(std::byte* target, const std::byte* source,
                                             std::uint64_t bytes) {
  check_copy(target, source, bytes);
  bytes_to_device_ += bytes;
  return enqueue(Queue::ToDevice, "a copy of the tier's to the device",
                 {range_at(target, bytes, true), range_at(source, bytes, false)},
                 [=] { std::memcpy(seen(target), seen(source), bytes); });
}

Result<void> SimulatedDevice::copy_to_host(std::byte* target, const std::byte* source,
                                           std::uint64_t bytes) {
  check_copy(target, source, bytes);
  bytes_to_host_ += bytes;
  const Range written = range_at(target, bytes, true);
  if (!queues().is_used(written)) std::memset(target, 0xff, bytes);  // shows if it is read too soon
  return enqueue(Queue::ToHost, "a copy of the tier's to the host",
                 {written, range_at(source, bytes, false)},
                 [=] { std::memcpy(seen(target), seen(source), bytes); });
}

Result<void> SimulatedDevice::copy_within(Queue queue, std::byte* target, const std::byte* source,
                                          std::uint64_t bytes) {
  check_copy(target, source, bytes);
  return enqueue(queue, "a copy within the tier",
                 {range_at(target, bytes, true), range_at(source, bytes, false)},
                 [=] { std::memcpy(seen(target), seen(source), bytes); });
}

Result<void> SimulatedDevice::zero(Queue queue, std::byte* target, std::uint64_t bytes) {
  return enqueue(queue, "zero", {range_at(target, bytes, true)},
                 [=] { std::memset(seen(target), 0, bytes); });
}

Result<void> SimulatedDevice::expand(Queue queue, const std::byte* source, DType source_dtype,
                                     float* target, std::uint64_t count) {
  return enqueue(
      queue, "expand",
      {range_at(target, count * 4, true),
       range_at(source, count * dtype_size(source_dtype), false)},
      [=, host = kernels_] {
        static_cast<void>(host->expand(queue, seen(source), source_dtype, seen(target), count));
      });
}

Result<void> SimulatedDevice::accumulate_gradients(Queue queue,
                                                   std::span<const kernels::GradientPiece> pieces,
                                                   const kernels::GradientDtypes& dtypes) {
  std::vector<Range> ranges;
  std::vector<kernels::GradientPiece> copied(pieces.begin(), pieces.end());
  for (kernels::GradientPiece& piece : copied) {
    ranges.push_back(range_at(piece.acc, piece.count * dtype_size(dtypes.acc), true));
    ranges.push_back(range_at(piece.grad, piece.count * dtype_size(dtypes.grad), false));
    piece.acc = seen(static_cast<std::byte*>(piece.acc));
    piece.grad = seen(static_cast<const std::byte*>(piece.grad));
  }
  return enqueue(queue, "accumulate_gradients", std::move(ranges), [=, host = kernels_] {
    static_cast<void>(host->accumulate_gradients(queue, copied, dtypes));
  });
}

Result<void> SimulatedDevice::sum_squares(Queue queue, const std::byte* data, DType dtype,
                                          std::uint64_t count, double* leaf_sums) {
  const std::uint64_t leaves = (count + kernels::norm_leaf - 1) / kernels::norm_leaf;
  return enqueue(
      queue, "sum_squares",
      {range_at(leaf_sums, leaves * sizeof(double), true),
       range_at(data, count * dtype_size(dtype), false)},
      [=, host = kernels_] {
        static_cast<void>(host->sum_squares(queue, seen(data), dtype, count, seen(leaf_sums)));
      });
}

Result<void> SimulatedDevice::update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                                           const kernels::UpdateStep& step) {
  std::vector<Range> ranges;
  std::vector<kernels::AdamPiece> copied(pieces.begin(), pieces.end());
  for (auto& [arrays, count] : copied) {
    const auto take = [&, many = count](auto*& at, std::uint64_t size, bool written) {
      if (at == nullptr) return;
      ranges.push_back(range_at(at, many * size, written));
      at = seen(at);
    };
    take(arrays.exp_avg, 4, true);
    take(arrays.exp_avg_sq, 4, true);
    take(arrays.param, 4, true);
    take(arrays.master_low, 2, true);
    take(arrays.param_out, dtype_size(arrays.param_out_dtype), true);
    take(arrays.grad, dtype_size(arrays.grad_dtype), false);
  }
  return enqueue(queue, "update_steps", std::move(ranges), [=, host = kernels_] {
    static_cast<void>(host->update_steps(queue, copied, step));
  });
}

Result<tiering::DeviceFence> SimulatedDevice::record(Queue queue) {
  if (drops("record", __builtin_return_address(0))) {  // returns the fence before
    const std::lock_guard lock(mutex_);
    const Marks& marks = marks_[static_cast<std::size_t>(queue)];
    return DeviceFence{queue, marks.empty() ? 0 : marks.rbegin()->first};
  }
  LateQueues::Mark mark = queues().record(number(queue));
  const DeviceFence fence{queue, mark.sequence};
  constexpr std::size_t kept = 4096;
  const std::lock_guard lock(mutex_);
  Marks& marks = marks_[static_cast<std::size_t>(queue)];
  marks[fence.sequence] = std::move(mark);
  while (marks.size() > kept) marks.erase(marks.begin());
  return fence;
}

LateQueues::Mark SimulatedDevice::mark_of(DeviceFence fence) {
  const std::lock_guard lock(mutex_);
  const Marks& marks = marks_[static_cast<std::size_t>(fence.queue)];
  const auto found = marks.find(fence.sequence);
  if (found != marks.end()) return found->second;
  return {.queue = number(fence.queue), .sequence = fence.sequence};  // passed long ago
}

Result<void> SimulatedDevice::wait(Queue queue, DeviceFence fence) {
  const void* const caller = __builtin_return_address(0);
  if (drops("wait", joining_ ? WaitSites::callers_caller() : caller)) return {};
  if (fence.sequence != 0) queues().wait(number(queue), mark_of(fence));
  return {};
}

bool SimulatedDevice::ready(DeviceFence fence) noexcept {
  return fence.sequence == 0 || queues().passed(mark_of(fence));
}

Result<void> SimulatedDevice::finish(DeviceFence fence) noexcept {
  if (drops("finish", __builtin_return_address(0))) return {};
  if (fence.sequence == 0) return {};
  const LateQueues::Mark mark = mark_of(fence);
  if (!queues().passed(mark)) work_meanwhile();
  queues().finish(mark);
  return {};
}

}  // namespace artesian::test_support
