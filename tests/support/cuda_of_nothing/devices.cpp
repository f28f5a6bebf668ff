// Devices, streams, events and errors. Streams and events are numbers: nothing is ever under way.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "tests/support/cuda_of_nothing/nothing.h"

namespace artesian::nothing {
namespace {

constexpr int version = 13000;

/// Entries of CUDA_VISIBLE_DEVICES up to the first that is no device, as the driver counts.
int count_devices() {
  const char* given = std::getenv("ARTESIAN_CUDA_OF_NOTHING");
  const int installed = given == nullptr ? 1 : std::atoi(given);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return installed;
  int count = 0;
  for (std::string rest = visible; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string name = rest.substr(0, comma);
    char* end = nullptr;
    const long index = std::strtol(name.c_str(), &end, 10);
    if (name.empty() || *end != '\0' || index < 0 || index >= installed) break;
    ++count;
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return count;
}

std::FILE* log_file() {
  static std::FILE* const file = [] {
    const char* path = std::getenv("ARTESIAN_CUDA_OF_NOTHING_LOG");
    return path == nullptr ? nullptr : std::fopen(path, "ae");
  }();
  return file;
}

template <typename Handle>
cudaError_t new_handle(Handle* handle) {
  static std::atomic<std::size_t> last{0x1000};
  *handle = reinterpret_cast<Handle>(last += 16);
  return cudaSuccess;
}

}  // namespace

std::size_t number_in(const char* variable, std::size_t absent) {
  const char* given = std::getenv(variable);
  return given == nullptr ? absent : static_cast<std::size_t>(std::atoll(given));
}

std::size_t memory_bytes() {
  static const std::size_t bytes =
      number_in("ARTESIAN_CUDA_OF_NOTHING_MEMORY", std::size_t{80} << 30);
  return bytes;
}

cudaError_t health(bool launches) {
  static const std::size_t failing = number_in("ARTESIAN_CUDA_OF_NOTHING_FAILS", ~std::size_t{0});
  static std::atomic<std::size_t> launched{0};
  if (launches) ++launched;
  return launched >= failing ? cudaErrorLaunchFailure : cudaSuccess;
}

int visible_devices() {
  static const int count = count_devices();
  return count;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

void note(const char* kind, std::string_view what, const void* stream, std::size_t bytes) {
  std::FILE* const file = log_file();
  if (file == nullptr) return;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  std::fprintf(file, "%s|%d|%d|%p|%zu|%.*s\n", kind, ::gettid(), current_device(), stream, bytes,
               static_cast<int>(what.size()), what.data());
  std::fflush(file);
}

}  // namespace artesian::nothing

using namespace artesian::nothing;

ARTESIAN_CUDA_NAME cudaError_t cudaGetDeviceCount(int* count) {
  *count = visible_devices();
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return visible_devices() == 0 ? cudaErrorNoDevice : cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= visible_devices()) return cudaErrorInvalidDevice;
  current_device() = device;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDriverGetVersion(int* number) {
  *number = version;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaRuntimeGetVersion(int* number) {
  *number = version;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
/// An H100's.
ARTESIAN_CUDA_NAME cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp{};
  std::strcpy(properties->name, "GPU of nothing");
  properties->major = 9;
  properties->totalGlobalMem = memory_bytes();
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  std::fill_n(properties->maxThreadsDim, 2, 1024);
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  std::fill_n(properties->maxGridSize + 1, 2, 65535);
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->l2CacheSize = 50 << 20;
  properties->unifiedAddressing = properties->concurrentKernels = 1;
  properties->asyncEngineCount = 3;
  properties->textureAlignment = 512;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  std::snprintf(name, static_cast<std::size_t>(length), "0000:%02X:00.0", 0x4A + device);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaDeviceSynchronize() {
  note("wait", "device");
  return health();
}

// Streams and events

ARTESIAN_CUDA_NAME cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return new_handle(stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return new_handle(stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return new_handle(stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamQuery(cudaStream_t) {
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  note("wait", "stream", stream);
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) {
  note("order", "stream after event", stream);
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                                     cudaStreamCallback_t callback, void* data,
                                                     unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                                     cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaStreamGetCaptureInfo(cudaStream_t,
                                                        cudaStreamCaptureStatus* status,
                                                        unsigned long long* id, cudaGraph_t*,
                                                        const cudaGraphNode_t**,
                                                        const cudaGraphEdgeData**, std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return new_handle(event);
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return new_handle(event);
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventQuery(cudaEvent_t) {
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  note("record", "event", stream);
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                        unsigned) {
  return cudaEventRecord(event, stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventSynchronize(cudaEvent_t) {
  note("wait", "event");
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

// Errors

ARTESIAN_CUDA_NAME cudaError_t cudaGetLastError() {
  return health();
}
ARTESIAN_CUDA_NAME cudaError_t cudaPeekAtLastError() {
  return health();
}
ARTESIAN_CUDA_NAME const char* cudaGetErrorName(cudaError_t) {
  return "error of nothing";
}
ARTESIAN_CUDA_NAME const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return "unspecified launch failure";
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "error of nothing";
}
