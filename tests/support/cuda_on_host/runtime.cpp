// The functions of cuda_runtime_api.h that the CUDA backend and its tests call.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/units.h"
#include "tests/support/cuda_on_host/device_code.h"
#include "tests/support/cuda_on_host/machine.h"

/// A place in a stream, which an event has recorded.
struct Mark {
  cudaStream_t stream;
  bool passed = false;
};

struct Operation {  // work, a wait for `after`, or a mark
  std::function<void()> work;
  std::shared_ptr<Mark> after;
  std::shared_ptr<Mark> mark;
};

struct CUstream_st {
  int device;
  bool destroyed = false;
  std::deque<Operation> pending;
};

struct CUevent_st {
  int device;
  std::shared_ptr<Mark> recorded;
};

namespace artesian::test_support {
namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t alignment = 256;  // of cudaMalloc

struct Range {
  std::uint64_t bytes = 0;
  int device = 0;
};
using Ranges = std::map<const std::byte*, Range>;  // by first byte

struct Runtime {
  CudaOnHost machine;
  std::map<int, cudaStream_t> null_streams;           // by device
  std::vector<std::unique_ptr<CUstream_st>> streams;  // all that ever were
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  Ranges allocations;
  Ranges registrations;
  std::map<int, cudaError_t> failures;  // permanent, by device
  int device = 0;                       // the current one
  cudaError_t last_error = cudaSuccess;
  int opened = 0;
};

Runtime make_runtime() {
  Runtime made;
  using Order = CudaOnHost::Order;
  const char* order = std::getenv("ARTESIAN_CUDA_ON_HOST");
  const std::string word = order == nullptr ? "late" : order;
  made.machine.order = word == "early"    ? Order::Early
                       : word == "random" ? Order::Random
                                          : Order::Late;
  const char* seed = std::getenv("ARTESIAN_SEED");
  if (seed != nullptr) made.machine.random.seed(std::strtoull(seed, nullptr, 10));
  return made;
}

Runtime& runtime() {
  static Runtime state = make_runtime();
  return state;
}

[[noreturn]] void wrong(const char* call, const char* what) {
  std::fprintf(stderr, "CUDA on the host: %s: %s\n", call, what);
  std::abort();
}

void protect(int access) {
  for (const auto& [begin, range] : runtime().allocations) {
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(begin) + range.bytes;
    if (::mprotect(reinterpret_cast<void*>(first), end - first, access) != 0) {
      wrong("mprotect", std::strerror(errno));
    }
  }
}

void run(const CUstream_st& stream, const Operation& operation) {
  cudaError_t& failure = runtime().failures[stream.device];
  std::int64_t& left = runtime().machine.operations_until_failure;
  if (operation.work && failure == cudaSuccess) {
    if (left-- == 0) {
      failure = cudaErrorIllegalAddress;
    } else {
      CudaOnHost::open_memory();
      operation.work();
      CudaOnHost::close_memory();
    }
  }
  if (operation.mark) operation.mark->passed = true;
}

/// Runs the next operation of a stream, or of the one that it waits for. False if nothing ran.
bool step(CUstream_st& stream) {
  if (stream.pending.empty() || runtime().machine.hangs) return false;
  const auto after = stream.pending.front().after;
  if (after && !after->passed) return step(*after->stream);
  const Operation operation = std::move(stream.pending.front());
  stream.pending.pop_front();
  run(stream, operation);
  return true;
}

bool runs_by_itself(const CUstream_st& stream) {
  return !stream.pending.empty() &&
         (!stream.pending.front().after || stream.pending.front().after->passed);
}

void run_some() {
  Runtime& state = runtime();
  if (state.machine.order == CudaOnHost::Order::Late || state.machine.hangs) return;
  const bool all = state.machine.order == CudaOnHost::Order::Early;
  for (auto count = all ? ~std::uint64_t{0} : state.machine.random() % 4; count != 0; --count) {
    std::vector<CUstream_st*> able;
    for (const auto& stream : state.streams) {
      if (runs_by_itself(*stream)) able.push_back(stream.get());
    }
    if (able.empty()) return;
    step(*able[state.machine.random() % able.size()]);
  }
}

/// A call: fails if it is told to or if the device has failed. Otherwise it does `body` and lets
/// the device run some operations.
template <typename Body>
cudaError_t call(const char* name, Body body) {
  Runtime& state = runtime();
  cudaError_t status = state.failures[state.device];
  if (status == cudaSuccess) {
    if (state.machine.failing_call == name) {
      state.machine.failing_call.clear();
      status = state.machine.failing_with;
    } else {
      status = body(state);
      run_some();
    }
  }
  if (status != cudaSuccess) state.last_error = status;
  return status;
}

CUstream_st* make_stream(int device) {
  runtime().streams.push_back(std::make_unique<CUstream_st>(CUstream_st{device, false, {}}));
  return runtime().streams.back().get();
}

CUstream_st& stream_of(cudaStream_t stream) {
  Runtime& state = runtime();
  if (stream != nullptr) return *stream;
  cudaStream_t& own = state.null_streams[state.device];
  if (own == nullptr) own = make_stream(state.device);
  return *own;
}

cudaError_t enqueue(cudaStream_t handle, Operation operation) {
  CUstream_st& stream = stream_of(handle);
  if (stream.destroyed || stream.device != runtime().device) return cudaErrorInvalidResourceHandle;
  stream.pending.push_back(std::move(operation));
  return cudaSuccess;
}

void wait_for_all(const char* name) {
  for (const auto& stream : runtime().streams) {
    if (!stream->pending.empty() && runtime().machine.hangs) wrong(name, "waits for ever");
  }
}

Ranges::iterator find(Ranges& ranges, const void* at, std::uint64_t bytes) {
  const auto* first = static_cast<const std::byte*>(at);
  auto found = ranges.upper_bound(first + bytes - 1);
  if (found == ranges.begin()) return ranges.end();
  --found;
  return found->first + found->second.bytes > first ? found : ranges.end();  // overlaps
}

bool on_device(const void* at, std::uint64_t bytes) {
  Ranges& all = runtime().allocations;
  const auto found = find(all, at, bytes);
  const auto* first = static_cast<const std::byte*>(at);
  return found != all.end() && first >= found->first &&
         first + bytes <= found->first + found->second.bytes;
}

/// True also if no part of it is registered.
bool registered_as_one(const void* host, std::uint64_t bytes) {
  Ranges& all = runtime().registrations;
  const auto found = find(all, host, bytes);
  const auto* first = static_cast<const std::byte*>(host);
  return found == all.end() ||
         (first >= found->first && first + bytes <= found->first + found->second.bytes);
}

cudaError_t enqueue_copy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                         cudaStream_t stream) {
  const bool up = kind == cudaMemcpyHostToDevice;
  const bool within = kind == cudaMemcpyDeviceToDevice;
  if (!up && !within && kind != cudaMemcpyDeviceToHost) return cudaErrorInvalidMemcpyDirection;
  if (bytes == 0) return cudaSuccess;
  if (within) {
    if (!on_device(target, bytes) || !on_device(source, bytes)) return cudaErrorInvalidValue;
    return enqueue(stream, {[=] { std::memcpy(target, source, bytes); }, {}, {}});
  }
  Ranges& all = runtime().allocations;
  const void* host = up ? source : target;
  const bool right = on_device(up ? target : source, bytes) && find(all, host, bytes) == all.end();
  if (!right && !runtime().machine.host_tensors) return cudaErrorInvalidValue;
  if (!registered_as_one(host, bytes)) return cudaErrorInvalidValue;
  return enqueue(stream, {[=] { std::memcpy(target, source, bytes); }, {}, {}});
}

}  // namespace

CudaOnHost& cuda_on_host() {
  return runtime().machine;
}

void CudaOnHost::drain(cudaStream_t stream) {
  CUstream_st& own = stream_of(stream);
  while (!own.pending.empty()) {
    if (!step(own)) wrong("waiting for a stream", "waits for ever");
  }
}

void CudaOnHost::open_memory() {
  if (runtime().opened++ == 0) protect(PROT_READ | PROT_WRITE);
}

void CudaOnHost::close_memory() {
  if (--runtime().opened == 0) protect(PROT_NONE);
}

std::string CudaOnHost::left() {
  const Runtime& state = runtime();
  std::size_t streams = 0;
  for (const auto& stream : state.streams) streams += stream->destroyed ? 0 : 1;
  streams -= state.null_streams.size();
  const auto text = [](std::size_t count, const char* what) {
    return count == 0 ? std::string() : std::to_string(count) + " " + what + " ";
  };
  return text(streams, "streams") + text(state.events.size(), "events") +
         text(state.allocations.size(), "allocations") +
         text(state.registrations.size(), "registrations");
}

void CudaOnHost::reset() {
  runtime() = make_runtime();
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  return call("cudaLaunchKernelEx", [&](Runtime&) {
    const dim3 grid = config.gridDim;
    const dim3 block = config.blockDim;
    const bool fits = grid.x > 0 && grid.x < 1u << 31 && grid.y > 0 && grid.y < 1u << 16 &&
                      grid.z == 1 && block.x > 0 && block.x <= 1024 && block.y * block.z == 1;
    if (!fits) return cudaErrorInvalidConfiguration;
    return enqueue(config.stream, {[=] { run_grid(grid, block, thread); }, {}, {}});
  });
}

}  // namespace artesian::test_support

using artesian::round_up;
using namespace artesian::test_support;  // NOLINT: what follows is a C interface

cudaError_t cudaGetLastError() {
  const cudaError_t stays = runtime().failures[runtime().device];
  const cudaError_t last = std::exchange(runtime().last_error, cudaSuccess);
  return stays != cudaSuccess ? stays : last;
}

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    default: return "an error of CUDA";
  }
}

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "CUDA's words";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = cuda_on_host().driver_version;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](Runtime& state) {
    if (state.machine.driver_version < CUDART_VERSION / 1000 * 1000) {
      return cudaErrorInsufficientDriver;
    }
    *count = state.machine.devices;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& state) {
    if (device < 0 || device >= state.machine.devices) return cudaErrorInvalidDevice;
    state.device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return call("cudaDeviceGetAttribute", [&](Runtime& state) {
    if (attribute == cudaDevAttrComputeCapabilityMajor) {
      *value = state.machine.capability_major;
    } else if (attribute == cudaDevAttrHostNumaId) {
      *value = -1;
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* address, int length, int device) {
  return call("cudaDeviceGetPCIBusId", [&](Runtime&) {
    std::snprintf(address, static_cast<std::size_t>(length), "FFFF:%02X:1F.7", device);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Runtime& state) {
    *free = *total = state.machine.bytes_per_device;
    for (const auto& [begin, range] : state.allocations) {
      if (range.device == state.device) *free -= range.bytes;
    }
    return cudaSuccess;
  });
}

/// The last byte lies just below an inaccessible page.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  const cudaError_t asked = cudaMemGetInfo(&free, &total);
  if (asked != cudaSuccess) return asked;
  return call("cudaMalloc", [&](Runtime& state) {
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > free) return cudaErrorMemoryAllocation;
    const std::uint64_t taken = round_up(bytes, alignment);
    const std::uint64_t mapped = round_up(taken, page);
    void* pages = ::mmap(nullptr, mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return cudaErrorMemoryAllocation;
    auto* begin = static_cast<std::byte*>(pages) + (mapped - taken);
    state.allocations[begin] = {taken, state.device};
    *memory = begin;
    CudaOnHost::open_memory();
    std::memset(begin, 0xff, taken);  // a NaN in every dtype
    CudaOnHost::close_memory();
    return cudaSuccess;
  });
}

/// Its addresses are never used again, so enqueued work that still touches them fails.
cudaError_t cudaFree(void* memory) {
  return call("cudaFree", [&](Runtime& state) {
    if (memory == nullptr) return cudaSuccess;
    const auto found = state.allocations.find(static_cast<std::byte*>(memory));
    if (found == state.allocations.end()) return cudaErrorInvalidValue;
    wait_for_all("cudaFree");
    const auto first = reinterpret_cast<std::uintptr_t>(memory) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(memory) + found->second.bytes;
    ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
    ::mprotect(reinterpret_cast<void*>(first), end - first, PROT_NONE);
    state.allocations.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  return call("cudaHostRegister", [&](Runtime& state) {
    if (bytes == 0 || bytes > state.machine.registration_bytes_max) return cudaErrorInvalidValue;
    if (find(state.registrations, memory, bytes) != state.registrations.end()) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    std::uint64_t registered = bytes;
    for (const auto& [begin, range] : state.registrations) registered += range.bytes;
    if (registered > state.machine.registered_bytes_max) return cudaErrorMemoryAllocation;
    state.registrations[static_cast<std::byte*>(memory)] = {bytes, state.device};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return call("cudaHostUnregister", [&](Runtime& state) {
    wait_for_all("cudaHostUnregister");
    const bool known = state.registrations.erase(static_cast<std::byte*>(memory)) == 1;
    return known ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&](Runtime& state) {
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;  // by this runtime
    *stream = make_stream(state.device);
    return cudaSuccess;
  });
}

/// Work that is enqueued in it still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&](Runtime&) {
    return std::exchange(stream->destroyed, true) ? cudaErrorInvalidResourceHandle : cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreateWithFlags", [&](Runtime& state) {
    auto made = std::make_unique<CUevent_st>(CUevent_st{state.device, {}});
    *event = made.get();
    state.events[*event] = std::move(made);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Runtime& state) {
    return state.events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Runtime& state) {
    CUstream_st& own = stream_of(stream);
    if (state.events.count(event) == 0 || event->device != own.device) {
      return cudaErrorInvalidResourceHandle;
    }
    auto mark = std::make_shared<Mark>(Mark{&own});
    const cudaError_t status = enqueue(&own, {{}, {}, mark});
    if (status == cudaSuccess) event->recorded = std::move(mark);
    return status;
  });
}

/// The device runs a few operations meanwhile, or none.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Runtime& state) {
    if (state.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (!event->recorded || event->recorded->passed) return cudaSuccess;
    for (auto count = state.machine.random() % 8; count != 0 && !event->recorded->passed; --count) {
      step(*event->recorded->stream);
    }
    const cudaError_t failure = state.failures[state.device];
    if (failure != cudaSuccess) return failure;
    return event->recorded->passed ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& state) {
    if (state.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
    if (!event->recorded) return cudaSuccess;
    return enqueue(stream, {{}, event->recorded, {}});
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Runtime& state) {
    if (bytes == 0) return cudaSuccess;
    if (!on_device(target, bytes) && !state.machine.host_tensors) return cudaErrorInvalidValue;
    return enqueue(stream, {[=] { std::memset(target, value, bytes); }, {}, {}});
  });
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync",
              [&](Runtime&) { return enqueue_copy(target, source, bytes, kind, stream); });
}

cudaError_t cudaMemcpy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Runtime& state) {
    const cudaError_t status = enqueue_copy(target, source, bytes, kind, nullptr);
    if (status == cudaSuccess) CudaOnHost::drain(nullptr);
    return status != cudaSuccess ? status : state.failures[state.device];
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](Runtime& state) {
    for (std::size_t i = 0; i < state.streams.size(); ++i) {
      if (state.streams[i]->device == state.device) CudaOnHost::drain(state.streams[i].get());
    }
    return state.failures[state.device];
  });
}
