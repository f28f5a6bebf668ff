// Device memory is host memory, which takes pages when it is touched. Copies end at once.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/support/cuda_of_nothing/nothing.h"

namespace artesian::nothing {
namespace {

constexpr std::size_t page_bytes = std::size_t{2} << 20;

std::atomic<std::size_t> bytes_used{0};

/// Ranges of addresses that are a device's.
class Ranges {
 public:
  void add(const void* begin, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    ranges_[static_cast<const char*>(begin)] = bytes;
  }
  /// Returns the bytes of the range that begins there.
  std::size_t remove(const void* begin) {
    const std::scoped_lock lock(mutex_);
    const auto found = ranges_.find(static_cast<const char*>(begin));
    if (found == ranges_.end()) return 0;
    const std::size_t bytes = found->second;
    ranges_.erase(found);
    return bytes;
  }
  bool has(const void* address) {
    const std::scoped_lock lock(mutex_);
    auto after = ranges_.upper_bound(static_cast<const char*>(address));
    if (after == ranges_.begin()) return false;
    --after;
    return static_cast<const char*>(address) < after->first + after->second;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, std::size_t> ranges_;
};

Ranges& ranges() {
  static auto* const made = new Ranges;  // never destroyed: frees come until exit
  return *made;
}

void* map_pages(std::size_t bytes, int protection) {
  void* const address =
      ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

bool take(std::size_t bytes) {
  if (bytes_used.fetch_add(bytes) + bytes <= memory_bytes()) return true;
  bytes_used -= bytes;
  return false;
}

const char* direction(cudaMemcpyKind kind) {
  constexpr const char* names[] = {"host to host", "host to device", "device to host",
                                   "device to device", "by address"};
  return names[static_cast<int>(kind)];
}

cudaError_t copy(void* target, const void* source, std::size_t bytes, const char* how,
                 const void* stream) {
  std::memmove(target, source, bytes);
  note("copy", how, stream, bytes);
  return health();
}

}  // namespace

// Functions of the driver: reserved addresses, memory, and its mapping to the addresses.

namespace driver {

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                 unsigned long long) {
  void* const reserved = map_pages(bytes, PROT_NONE);
  if (reserved == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  ranges().add(reserved, bytes);
  *address = reinterpret_cast<CUdeviceptr>(reserved);
  return CUDA_SUCCESS;
}
CUresult free_addresses(CUdeviceptr address, std::size_t bytes) {
  void* const reserved = reinterpret_cast<void*>(address);
  ranges().remove(reserved);
  ::munmap(reserved, bytes);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                unsigned long long) {
  if (!take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  note("allocate", "cuMemCreate", nullptr, bytes);
  *handle = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  bytes_used -= handle;
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
             unsigned long long) {
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  ::mprotect(reinterpret_cast<void*>(address), bytes, PROT_NONE);
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  ::mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  *bytes = page_bytes;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
  return CUDA_SUCCESS;
}
CUresult context_state(CUdevice, unsigned* flags, int* active) {
  if (flags != nullptr) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult error_text(CUresult, const char** text) {
  *text = "error of nothing";
  return CUDA_SUCCESS;
}
CUresult anything_else() {
  return CUDA_SUCCESS;
}

}  // namespace driver

void* driver_function(std::string_view name) {
  static const std::map<std::string_view, void*> functions = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(driver::reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(driver::free_addresses)},
      {"cuMemCreate", reinterpret_cast<void*>(driver::create)},
      {"cuMemRelease", reinterpret_cast<void*>(driver::release)},
      {"cuMemMap", reinterpret_cast<void*>(driver::map)},
      {"cuMemUnmap", reinterpret_cast<void*>(driver::unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(driver::set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(driver::granularity)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(driver::attribute)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(driver::context_state)},
      {"cuGetErrorString", reinterpret_cast<void*>(driver::error_text)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? reinterpret_cast<void*>(driver::anything_else) : found->second;
}

}  // namespace artesian::nothing

using namespace artesian::nothing;

ARTESIAN_CUDA_NAME cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                 cudaDriverEntryPointQueryResult* result) {
  *function = driver_function(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = take(bytes) ? map_pages(bytes, PROT_READ | PROT_WRITE) : nullptr;
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  ranges().add(*address, bytes);
  note("allocate", "cudaMalloc", nullptr, bytes);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaFree(void* address) {
  const std::size_t bytes = address == nullptr ? 0 : ranges().remove(address);
  if (bytes == 0) return cudaSuccess;
  ::munmap(address, bytes);
  bytes_used -= bytes;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  constexpr std::size_t alignment = 4096;
  *address = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaHostRegister(void*, std::size_t, unsigned) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaHostUnregister(void*) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  *total = memory_bytes();
  *free_bytes = memory_bytes() - bytes_used;
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                        const void* address) {
  *attributes = cudaPointerAttributes{};
  const bool on_device = ranges().has(address);
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = const_cast<void*>(address);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemcpy(void* target, const void* source, std::size_t bytes,
                                          cudaMemcpyKind kind) {
  note("wait", "copy");
  return copy(target, source, bytes, direction(kind), nullptr);
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes,
                                               cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(target, source, bytes, direction(kind), stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int,
                                                   std::size_t bytes, cudaStream_t stream) {
  return copy(target, source, bytes, "device to other device", stream);
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t,
                                                  std::size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
  std::memset(address, value, bytes);
  return cudaSuccess;
}
ARTESIAN_CUDA_NAME cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes,
                                               cudaStream_t) {
  return cudaMemset(address, value, bytes);
}
