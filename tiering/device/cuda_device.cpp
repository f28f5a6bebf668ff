#include "tiering/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

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
constexpr int polls_before_pause = 200;  // most waits are for a copy that ends soon

constexpr int capability_major_min = 8;  // cmake/cuda.cmake: sm_80, and PTX for newer ones

Error no_device(const std::string& reason) {
  return make_error(ErrorCode::Unsupported,
                    "device: got cuda, allowed cpu here: no CUDA device answers (" + reason +
                        "); check nvidia-smi and CUDA_VISIBLE_DEVICES, or compute on the CPU");
}

/// CUDA has a single error for a missing driver and for one that is too old.
Error no_driver() {
  constexpr int needed = CUDART_VERSION / 1000;  // any driver of the same major version will do
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  const std::string found = version == 0 ? "there is no NVIDIA driver"
                                         : fmt::format("the NVIDIA driver is for CUDA {}.{}",
                                                       version / 1000, version % 1000 / 10);
  return make_error(ErrorCode::Unsupported,
                    fmt::format("device: got cuda, allowed cpu here: {}; install a driver for CUDA "
                                "{} or newer, or compute on the CPU",
                                found, needed));
}

Result<void> check_capability(int index) {
  int major = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  ARTESIAN_TRY_VOID(kernels::cuda::from_cuda(status, "asking for the compute capability"));
  if (major >= capability_major_min) return {};
  return make_error(ErrorCode::Unsupported,
                    fmt::format("device: got cuda:{}, of compute capability {}, allowed {}.0 or "
                                "newer (A100, RTX 30); name another one, or compute on the CPU",
                                index, major, capability_major_min));
}

}  // namespace

Result<void> CudaDevice::check(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());  // the caller reports the error
  if (status == cudaErrorInsufficientDriver) return no_driver();
  if (status != cudaSuccess) return no_device(cudaGetErrorString(status));
  if (count == 0) return no_device("the driver shows none");
  if (index >= 0 && index < count) return check_capability(index);
  return make_error(
      ErrorCode::Invalid,
      fmt::format(
          "device: got cuda:{}, allowed {} that CUDA_VISIBLE_DEVICES shows; name one of them",
          index,
          count == 1 ? "cuda:0, the only one" : fmt::format("cuda:0 to cuda:{}", count - 1)));
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
  std::unique_ptr<CudaDevice> device(new CudaDevice(index));
  ARTESIAN_TRY_VOID(device->select());
  device->queue_state(Queue::Compute).stream = compute;
  for (const Queue queue : {Queue::ToDevice, Queue::ToHost, Queue::Bus}) {
    // Without the default stream's implicit waits: fences make all order.
    ARTESIAN_TRY_VOID(device->done(
        cudaStreamCreateWithFlags(&device->queue_state(queue).stream, cudaStreamNonBlocking),
        "creating a stream"));
  }
  ARTESIAN_TRY_VOID(device->done(cudaMalloc(reinterpret_cast<void**>(&device->not_finite_), 4),
                                 "allocating 4 bytes"));
  ARTESIAN_TRY_VOID(
      device->zero(Queue::Compute, reinterpret_cast<std::byte*>(device->not_finite_), 4));
  return device;
}

std::string CudaDevice::address() const {
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), address.size(), index_) == cudaSuccess) {
    return address.data();
  }
  static_cast<void>(cudaGetLastError());  // cleared, so that no later call reports it
  return {};
}

std::optional<std::uint32_t> CudaDevice::numa_node() const {
  const std::string on_bus = address();
  return on_bus.empty() ? std::nullopt : pinned::node_of_pci_device(on_bus);
}

CudaDevice::~CudaDevice() {
  if (not_finite_ != nullptr && idle()) static_cast<void>(cudaFree(not_finite_));
  for (const Queue queue : {Queue::ToDevice, Queue::ToHost, Queue::Bus}) {
    if (stream(queue) != nullptr) static_cast<void>(cudaStreamDestroy(stream(queue)));
  }
  for (QueueState& state : queues_) {
    for (const Recorded& recorded : state.pending) {
      static_cast<void>(cudaEventDestroy(recorded.event));
    }
  }
  for (cudaEvent_t event : free_events_) static_cast<void>(cudaEventDestroy(event));
}

/// Makes the device this thread's current one, as LibTorch or a caller may have chosen another.
Result<void> CudaDevice::select() const {
  return done(cudaSetDevice(index_), "choosing the device");
}

/// Adds the device's name and possible causes.
Error CudaDevice::explained(Error error, cudaError_t status) const {
  error.message = name() + ": " + error.message;
  if (status == cudaErrorIllegalAddress) {
    error.message += "; it may be a parameter that was used outside its stage";
  }
  return error;
}

/// The result of a call. The error is returned to the caller, and cleared as the thread's last
/// error.
Result<void> CudaDevice::done(cudaError_t status, const char* doing) const {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return explained(kernels::cuda::from_cuda(status, doing).error(), status);
}

/// As done(), for a kernel launch.
Result<void> CudaDevice::launched(Result<void> outcome) const {
  if (outcome.has_value()) return outcome;
  return explained(std::move(outcome).error(), cudaGetLastError());
}

/// Waits until no enqueued work uses memory any more, but not a second time for a device that does
/// not answer. False if some work may still use memory, or if the device has failed: memory is then
/// not freed.
bool CudaDevice::idle() noexcept {
  const double seconds = wait_seconds();
  if (silent_) set_wait_seconds(0.0);
  const auto passed = finish_all();
  set_wait_seconds(seconds);
  return passed.has_value();
}

Error CudaDevice::out_of_memory(std::uint64_t bytes, std::uint64_t free,
                                std::uint64_t total) const {
  return make_error(
      ErrorCode::Exhausted,
      fmt::format("artesian.device_memory: {} bytes ({}) asked for, {} bytes ({}) "
                  "free of {} on {}; lower it, or free the GPU's memory",
                  bytes, format_size(bytes), free, format_size(free), format_size(total), name()));
}

Result<std::unique_ptr<pinned::Pool>> CudaDevice::create_arena(std::uint64_t bytes) {
  ARTESIAN_TRY_VOID(select());
  std::size_t free = 0;
  std::size_t total = 0;
  ARTESIAN_TRY_VOID(done(cudaMemGetInfo(&free, &total), "asking for its memory"));
  if (bytes > total) return out_of_memory(bytes, free, total);
  ARTESIAN_CHECK(bytes != 0);
  const std::uint64_t size = round_up(bytes, 4096);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // not a failure of the device, so later calls may work
    return out_of_memory(size, free, total);
  }
  ARTESIAN_TRY_VOID(done(status, "allocating the device tier"));
  ARTESIAN_CHECK(memory != nullptr, size);
  return pinned::Pool::over({static_cast<std::byte*>(memory), static_cast<std::size_t>(size)},
                            "device memory", [this, memory] {
                              if (idle()) static_cast<void>(cudaFree(memory));
                            });
}

/// Page-locks the parts that are not in any piece yet.
Result<void> CudaDevice::register_piece(std::span<std::byte> piece) {
  const auto after = std::upper_bound(
      registered_.begin(), registered_.end(), piece,
      [](const auto& one, const auto& other) { return one.data() < other.data(); });
  ARTESIAN_CHECK(after == registered_.end() || piece.data() + piece.size() <= after->data());
  if (after != registered_.begin()) {
    const std::byte* before = std::prev(after)->data() + std::prev(after)->size();
    if (piece.data() < before) {
      ARTESIAN_CHECK(piece.data() + piece.size() <= before, piece.data(), piece.size());
      return {};
    }
  }
  ARTESIAN_TRY_VOID(done(cudaHostRegister(piece.data(), piece.size(), cudaHostRegisterPortable),
                         "page-locking host memory"));
  registered_.insert(after, piece);
  return {};
}

Result<void> CudaDevice::register_host(std::span<std::byte> range) {
  ARTESIAN_TRY_VOID(select());
  for (std::uint64_t begin = 0; begin < range.size();) {
    const std::uint64_t most =
        std::min<std::uint64_t>(registered_piece_bytes, range.size() - begin);
    const std::uint64_t size = bytes_in_one_piece(range.data() + begin, most);
    ARTESIAN_CHECK(size != 0 && size <= most, size, most);
    auto outcome = register_piece(range.subspan(begin, size));
    if (!outcome.has_value()) {
      Error error = std::move(outcome).error();
      error.message +=
          "; " + format_size(bytes_registered(range)) + " of " + format_size(range.size()) + " are";
      return error;
    }
    begin += size;
  }
  return {};
}

/// Counts the bytes of the range that are page-locked.
std::uint64_t CudaDevice::bytes_registered(std::span<const std::byte> range) const noexcept {
  std::uint64_t bytes = 0;
  const std::byte* range_end = range.data() + range.size();
  for (const std::span<std::byte> piece : registered_) {
    const std::byte* begin = std::max<const std::byte*>(piece.data(), range.data());
    const std::byte* end = std::min<const std::byte*>(piece.data() + piece.size(), range_end);
    if (begin < end) bytes += static_cast<std::uint64_t>(end - begin);
  }
  ARTESIAN_CHECK(bytes <= range.size(), bytes, range.size());
  return bytes;
}

void CudaDevice::unregister_host(std::span<std::byte> range) noexcept {
  if (!idle()) return;
  std::erase_if(registered_, [&](std::span<std::byte> piece) {
    const bool within = piece.data() >= range.data() && piece.data() < range.data() + range.size();
    if (!within) return false;
    ARTESIAN_CHECK(piece.data() + piece.size() <= range.data() + range.size(), piece.size());
    static_cast<void>(cudaHostUnregister(piece.data()));
    return true;
  });
  static_cast<void>(cudaGetLastError());
}

/// Counts the bytes from `host` on that belong to one page-locked piece, or to none.
std::uint64_t CudaDevice::bytes_in_one_piece(const std::byte* host,
                                             std::uint64_t bytes) const noexcept {
  const auto next = std::upper_bound(
      registered_.begin(), registered_.end(), host,
      [](const std::byte* at, std::span<const std::byte> piece) { return at < piece.data(); });
  const std::byte* end = host + bytes;
  if (next != registered_.end()) end = std::min<const std::byte*>(end, next->data());
  if (next != registered_.begin()) {
    const std::byte* own_end = std::prev(next)->data() + std::prev(next)->size();
    if (own_end > host) end = std::min(end, own_end);
  }
  return static_cast<std::uint64_t>(end - host);
}

Result<void> CudaDevice::enqueue_copy(Queue queue, cudaMemcpyKind kind, std::byte* target,
                                      const std::byte* source, std::uint64_t bytes) {
  ARTESIAN_TRY_VOID(select());
  const bool up = kind == cudaMemcpyHostToDevice;
  ARTESIAN_CHECK(queue == (up ? Queue::ToDevice : Queue::ToHost), static_cast<int>(queue));
  check_copy(target, source, bytes);
  while (bytes != 0) {
    const std::uint64_t size = bytes_in_one_piece(up ? source : target, bytes);
    ARTESIAN_CHECK(size != 0 && size <= bytes, size, bytes);
    ARTESIAN_TRY_VOID(done(cudaMemcpyAsync(target, source, size, kind, stream(queue)),
                           up ? "copying to the device" : "copying to the host"));
    target += size;
    source += size;
    bytes -= size;
  }
  return {};
}

Result<void> CudaDevice::copy_to_device(std::byte* target, const std::byte* source,
                                        std::uint64_t bytes) {
  ARTESIAN_TRY_VOID(enqueue_copy(Queue::ToDevice, cudaMemcpyHostToDevice, target, source, bytes));
  bytes_to_device_ += bytes;
  return {};
}

Result<void> CudaDevice::copy_to_host(std::byte* target, const std::byte* source,
                                      std::uint64_t bytes) {
  ARTESIAN_TRY_VOID(enqueue_copy(Queue::ToHost, cudaMemcpyDeviceToHost, target, source, bytes));
  bytes_to_host_ += bytes;
  return {};
}

Result<void> CudaDevice::copy_within(Queue queue, std::byte* target, const std::byte* source,
                                     std::uint64_t bytes) {
  check_copy(target, source, bytes);
  ARTESIAN_TRY_VOID(select());
  return done(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream(queue)),
              "copying within device memory");
}

Result<void> CudaDevice::zero(Queue queue, std::byte* target, std::uint64_t bytes) {
  ARTESIAN_CHECK(target != nullptr, bytes);
  ARTESIAN_TRY_VOID(select());
  return done(cudaMemsetAsync(target, 0, bytes, stream(queue)), "clearing device memory");
}

Result<void> CudaDevice::expand(Queue queue, const std::byte* source, DType source_dtype,
                                float* target, std::uint64_t count) {
  check_expand(source, source_dtype, target);
  ARTESIAN_TRY_VOID(select());
  return launched(kernels::cuda::expand(source, source_dtype, target, count, stream(queue)));
}

Result<void> CudaDevice::accumulate_gradients(Queue queue,
                                              std::span<const kernels::GradientPiece> pieces,
                                              const kernels::GradientDtypes& dtypes) {
  check_gradients(pieces, dtypes);
  ARTESIAN_TRY_VOID(select());
  return launched(kernels::cuda::accumulate_gradients(pieces, dtypes, not_finite_, stream(queue)));
}

Result<void> CudaDevice::sum_squares(Queue queue, const std::byte* data, DType dtype,
                                     std::uint64_t count, double* leaf_sums) {
  check_squares(data, dtype, leaf_sums);
  ARTESIAN_TRY_VOID(select());
  return launched(kernels::cuda::sum_squares(data, dtype, count, leaf_sums, stream(queue)));
}

Result<void> CudaDevice::update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                                      const kernels::UpdateStep& step) {
  check_update(pieces, step);
  ARTESIAN_TRY_VOID(select());
  return launched(kernels::cuda::update_steps(pieces, step, stream(queue)));
}

Result<cudaEvent_t> CudaDevice::take_event() {
  if (!free_events_.empty()) {
    cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    ARTESIAN_CHECK(event != nullptr);
    return event;
  }
  cudaEvent_t event = nullptr;
  ARTESIAN_TRY_VOID(
      done(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
  return event;
}

/// Recycles events that have passed. False once one has failed.
bool CudaDevice::settle(QueueState& state) noexcept {
  while (failure_ == cudaSuccess && !state.pending.empty()) {
    cudaError_t status = cudaSetDevice(index_);
    if (status == cudaSuccess) status = cudaEventQuery(state.pending.front().event);
    if (status == cudaErrorNotReady) {
      // Otherwise "not ready" would be reported by the next launch.
      static_cast<void>(cudaGetLastError());
      break;
    }
    if (status != cudaSuccess) {
      failure_ = status;
      break;
    }
    ARTESIAN_CHECK(state.pending.front().sequence > state.passed, state.passed);
    state.passed = state.pending.front().sequence;
    free_events_.push_back(state.pending.front().event);
    state.pending.pop_front();
  }
  return failure_ == cudaSuccess;
}

Result<DeviceFence> CudaDevice::record(Queue queue) {
  ARTESIAN_TRY_VOID(select());
  QueueState& own = queue_state(queue);
  settle(own);
  ARTESIAN_TRY(event, take_event());
  const auto recorded = done(cudaEventRecord(event, own.stream), "recording an event");
  if (!recorded.has_value()) {
    free_events_.push_back(event);
    return recorded.error();
  }
  ARTESIAN_CHECK(own.passed <= own.recorded, own.passed, own.recorded);
  ARTESIAN_CHECK(own.pending.empty() || own.pending.back().sequence == own.recorded, own.recorded);
  own.pending.push_back({++own.recorded, event, monotonic_ns()});
  return DeviceFence{queue, own.recorded};
}

/// The event of a fence, or null if it has passed.
const CudaDevice::Recorded* CudaDevice::find(DeviceFence fence) noexcept {
  QueueState& own = queue_state(fence.queue);
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
  ARTESIAN_TRY_VOID(select());
  return done(cudaStreamWaitEvent(stream(queue), recorded->event, 0), "waiting in a stream");
}

bool CudaDevice::ready(DeviceFence fence) noexcept {
  QueueState& own = queue_state(fence.queue);
  ARTESIAN_CHECK(fence.sequence <= own.recorded, fence.sequence, own.recorded);
  if (fence.sequence <= own.passed) return true;
  return !settle(own) || fence.sequence <= own.passed;
}

/// Describes, for each queue, how many fences are pending and the age of the first.
std::string CudaDevice::describe_pending() {
  constexpr std::array<const char*, queue_count> names{"Compute", "ToDevice", "ToHost", "Bus"};
  const std::uint64_t now_ns = monotonic_ns();
  std::string text;
  for (std::size_t index = 0; index < queue_count; ++index) {
    QueueState& state = queues_[index];
    settle(state);
    if (state.pending.empty()) continue;
    char line[96];
    const double age = static_cast<double>(now_ns - state.pending.front().recorded_ns) * 1e-9;
    std::snprintf(line, sizeof line, "%s%s: %zu fences, the first for %.3f s",
                  text.empty() ? "" : "; ", names[index], state.pending.size(), age);
    text += line;
  }
  return text.empty() ? "nothing" : text;
}

Result<void> CudaDevice::finish(DeviceFence fence) noexcept {
  const Deadline deadline = Deadline::after_seconds(wait_seconds());
  for (int polls = 0; !ready(fence); ++polls) {
    if (monotonic_ns() > deadline.at_ns) {
      silent_ = true;
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%g", wait_seconds());
      return make_error(ErrorCode::Timeout, name() + ": no answer from the device within " +
                                                seconds + " s; not passed: " + describe_pending());
    }
    work_meanwhile();
    if (polls < polls_before_pause) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(poll_pause);
    }
  }
  silent_ = false;
  return done(failure_, "waiting for what was enqueued");
}

}  // namespace artesian::tiering
