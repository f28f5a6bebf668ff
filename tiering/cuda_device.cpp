#include "tiering/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "kernels/cuda.h"
#include "kernels/cuda_error.h"

namespace artesian::tiering {
namespace {

constexpr auto poll_pause = std::chrono::microseconds(20);
constexpr int polls_before_pause = 200;  // most waits are for a copy that is about to end

Error no_device(const std::string& reason) {
  return make_error(ErrorCode::Unsupported,
                    "device: got cuda, allowed cpu here: no CUDA device answers (" + reason +
                        "); check nvidia-smi and CUDA_VISIBLE_DEVICES, or compute on the CPU");
}

}  // namespace

Result<void> CudaDevice::check(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return no_device(cudaGetErrorString(status));
  if (count == 0) return no_device("the driver shows none");
  if (index >= 0 && index < count) return {};
  const std::string last = std::to_string(count - 1);
  return make_error(ErrorCode::Invalid,
                    "device: got cuda:" + std::to_string(index) + ", allowed " +
                        (count == 1 ? "cuda:0, the only one" : "cuda:0 to cuda:" + last) +
                        " that CUDA_VISIBLE_DEVICES shows; name one of them");
}

Result<std::uint64_t> CudaDevice::free_memory(int index) {
  ARTESIAN_TRY_VOID(check(index));
  ARTESIAN_TRY_CUDA(cudaSetDevice(index));
  std::size_t free = 0;
  std::size_t total = 0;
  ARTESIAN_TRY_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<std::uint64_t>(free);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int index, cudaStream_t compute) {
  ARTESIAN_TRY_VOID(check(index));
  ARTESIAN_TRY_CUDA(cudaSetDevice(index));
  std::unique_ptr<CudaDevice> device(new CudaDevice(index));
  device->lane(Queue::Compute).stream = compute;
  for (const Queue queue : {Queue::ToDevice, Queue::ToHost}) {
    // Without the default stream's implicit waits: all order is by fences.
    ARTESIAN_TRY_CUDA(
        cudaStreamCreateWithFlags(&device->lane(queue).stream, cudaStreamNonBlocking));
  }
  ARTESIAN_TRY_CUDA(cudaMalloc(reinterpret_cast<void**>(&device->not_finite_), 4));
  ARTESIAN_TRY_CUDA(cudaMemsetAsync(device->not_finite_, 0, 4, compute));
  return device;
}

std::optional<std::uint32_t> CudaDevice::numa_node() const {
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), address.size(), index_) == cudaSuccess) {
    return pinned::node_of_pci_device(address.data());
  }
  static_cast<void>(cudaGetLastError());  // it is nobody else's error
  return std::nullopt;
}

CudaDevice::~CudaDevice() {
  select();
  for (const Queue queue : {Queue::ToDevice, Queue::ToHost}) {
    if (stream(queue) != nullptr) static_cast<void>(cudaStreamDestroy(stream(queue)));
  }
  for (Lane& lane : lanes_) {
    for (const Recorded& recorded : lane.pending) {
      static_cast<void>(cudaEventDestroy(recorded.event));
    }
  }
  for (cudaEvent_t event : free_events_) static_cast<void>(cudaEventDestroy(event));
  static_cast<void>(cudaFree(not_finite_));
}

/// The device is this thread's, and LibTorch or a caller may have chosen another one. Failures show
/// in the call that follows.
void CudaDevice::select() const noexcept {
  static_cast<void>(cudaSetDevice(index_));
}

Result<std::unique_ptr<pinned::Pool>> CudaDevice::create_arena(std::uint64_t bytes) {
  select();
  const std::uint64_t size = round_up(bytes, 4096);
  std::size_t free = 0;
  std::size_t total = 0;
  ARTESIAN_TRY_CUDA(cudaMemGetInfo(&free, &total));
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not a failure of the device: later calls may work
    return make_error(ErrorCode::Exhausted,
                      "artesian.device_memory: " + std::to_string(size) + " bytes (" +
                          format_size(size) + ") asked for, " + std::to_string(free) + " bytes (" +
                          format_size(free) + ") free of " + format_size(total) + " on " + name() +
                          "; lower it, or free the GPU's memory");
  }
  ARTESIAN_TRY_VOID(kernels::cuda::from_cuda(status, "cudaMalloc"));
  const int index = index_;
  return pinned::Pool::over({static_cast<std::byte*>(memory), static_cast<std::size_t>(size)},
                            "device memory", [memory, index] {
                              static_cast<void>(cudaSetDevice(index));
                              static_cast<void>(cudaFree(memory));
                            });
}

Result<void> CudaDevice::register_host(std::span<std::byte> range) {
  select();
  const cudaError_t status = cudaHostRegister(range.data(), range.size(), cudaHostRegisterPortable);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return kernels::cuda::from_cuda(status, "cudaHostRegister");
}

void CudaDevice::unregister_host(std::span<std::byte> range) noexcept {
  select();
  static_cast<void>(cudaHostUnregister(range.data()));
}

Result<void> CudaDevice::copy_to_device(std::byte* target, const std::byte* source,
                                        std::uint64_t bytes) {
  select();
  ARTESIAN_TRY_CUDA(
      cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream(Queue::ToDevice)));
  bytes_to_device_ += bytes;
  return {};
}

Result<void> CudaDevice::copy_to_host(std::byte* target, const std::byte* source,
                                      std::uint64_t bytes) {
  select();
  ARTESIAN_TRY_CUDA(
      cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream(Queue::ToHost)));
  bytes_to_host_ += bytes;
  return {};
}

Result<void> CudaDevice::zero(Queue queue, std::byte* target, std::uint64_t bytes) {
  select();
  ARTESIAN_TRY_CUDA(cudaMemsetAsync(target, 0, bytes, stream(queue)));
  return {};
}

Result<void> CudaDevice::expand(Queue queue, const std::byte* source, DType source_dtype,
                                float* target, std::uint64_t count) {
  select();
  return kernels::cuda::expand(source, source_dtype, target, count, stream(queue));
}

Result<void> CudaDevice::accumulate_gradient(Queue queue, std::byte* acc, DType acc_dtype,
                                             const float* grad, DType grad_dtype,
                                             std::uint64_t count, kernels::Accumulate how) {
  select();
  return kernels::cuda::accumulate_gradient(acc, acc_dtype, grad, grad_dtype, count, how,
                                            not_finite_, stream(queue));
}

Result<void> CudaDevice::sum_squares(Queue queue, const std::byte* data, DType dtype,
                                     std::uint64_t count, double* partial_sums) {
  select();
  return kernels::cuda::sum_squares(data, dtype, count, partial_sums, stream(queue));
}

Result<void> CudaDevice::adam_step(Queue queue, const kernels::AdamArrays& arrays,
                                   std::uint64_t count, const kernels::AdamStep& step) {
  select();
  return kernels::cuda::adam_step(arrays, count, step, stream(queue));
}

Result<cudaEvent_t> CudaDevice::take_event() {
  if (!free_events_.empty()) {
    cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  ARTESIAN_TRY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

/// Takes back the events that have passed. False once one has failed.
bool CudaDevice::settle(Lane& lane) noexcept {
  while (failure_ == cudaSuccess && !lane.pending.empty()) {
    const cudaError_t status = cudaEventQuery(lane.pending.front().event);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // "not ready" would be the next launch's error
      break;
    }
    if (status != cudaSuccess) {
      failure_ = status;
      break;
    }
    lane.passed = lane.pending.front().sequence;
    free_events_.push_back(lane.pending.front().event);
    lane.pending.pop_front();
  }
  return failure_ == cudaSuccess;
}

Result<DeviceFence> CudaDevice::record(Queue queue) {
  select();
  Lane& own = lane(queue);
  settle(own);
  ARTESIAN_TRY(event, take_event());
  const cudaError_t status = cudaEventRecord(event, own.stream);
  if (status != cudaSuccess) {
    free_events_.push_back(event);
    return std::move(kernels::cuda::from_cuda(status, "cudaEventRecord")).error();
  }
  own.pending.push_back({++own.recorded, event});
  return DeviceFence{queue, own.recorded};
}

/// The event of a fence, or null if it has passed.
const CudaDevice::Recorded* CudaDevice::find(DeviceFence fence) noexcept {
  Lane& own = lane(fence.queue);
  ARTESIAN_CHECK(fence.sequence <= own.recorded, fence.sequence, own.recorded);
  if (fence.sequence <= own.passed) return nullptr;
  const auto found = std::lower_bound(own.pending.begin(), own.pending.end(), fence.sequence,
                                      [](const Recorded& recorded, std::uint64_t sequence) {
                                        return recorded.sequence < sequence;
                                      });
  ARTESIAN_CHECK(found != own.pending.end() && found->sequence == fence.sequence, fence.sequence);
  return &*found;
}

Result<void> CudaDevice::wait(Queue queue, DeviceFence fence) {
  if (fence.queue == queue) return {};
  const Recorded* recorded = find(fence);
  if (recorded == nullptr) return {};
  select();
  ARTESIAN_TRY_CUDA(cudaStreamWaitEvent(stream(queue), recorded->event, 0));
  return {};
}

bool CudaDevice::ready(DeviceFence fence) noexcept {
  Lane& own = lane(fence.queue);
  if (fence.sequence <= own.passed) return true;
  select();
  return !settle(own) || fence.sequence <= own.passed;
}

Result<void> CudaDevice::give_up(const std::string& doing, cudaError_t status) const {
  auto failed = kernels::cuda::from_cuda(status, doing.c_str());
  failed.error().message = name() + ": " + failed.error().message +
                           "; an illegal memory access may be a parameter that was used outside "
                           "its stage";
  return failed;
}

Result<void> CudaDevice::finish(DeviceFence fence) noexcept {
  const Deadline deadline = Deadline::after_seconds(wait_seconds());
  for (int polls = 0; !ready(fence); ++polls) {
    if (system_clock().now_ns() > deadline.at_ns) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%g", wait_seconds());
      return make_error(ErrorCode::Timeout,
                        name() + ": no answer from the device within " + seconds + " s");
    }
    if (polls < polls_before_pause) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(poll_pause);
    }
  }
  return failure_ == cudaSuccess ? Result<void>() : give_up("waiting for " + name(), failure_);
}

}  // namespace artesian::tiering
