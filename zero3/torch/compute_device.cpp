#include "zero3/torch/compute_device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <charconv>
#include <fstream>
#include <map>
#include <mutex>

#include "base/check.h"
#include "comm/nccl_group.h"
#include "tiering/device/host_device.h"
#include "zero3/torch/activation_memory.h"
#include "zero3/torch/from_torch.h"

#ifdef ARTESIAN_HAVE_CUDA
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>

#include "base/log.h"
#include "tiering/device/cuda_device.h"
#endif

namespace artesian::zero3 {

Result<std::optional<int>> device_index(const std::string& name) {
  if (name == "cpu") return std::optional<int>();
  if (name == "cuda") return std::optional<int>(0);
  constexpr std::string_view prefix = "cuda:";
  int index = 0;
  const char* end = name.data() + name.size();
  if (name.starts_with(prefix)) {
    const auto [stop, failure] = std::from_chars(name.data() + prefix.size(), end, index);
    if (failure == std::errc{} && stop == end && index >= 0) return std::optional<int>(index);
  }
  return make_error(ErrorCode::Invalid,
                    "device: got \"" + name + "\", allowed cpu, cuda or cuda:i; write one of them");
}

namespace {

/// True on processors with AMX, where bf16 takes a quarter of fp32's time, and on AMD processors
/// with AVX512_BF16, where it takes half. Intel processors with only AVX512_BF16 gained nothing
/// when measured. Decided by the processor type rather than by timing, so that all runs on a
/// machine have the same bits.
bool multiplies_bf16() {
  if (at::cpu::init_amx()) return true;
#ifdef __x86_64__
  return __builtin_cpu_is("amd") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

ComputeDevice cpu() {
  ComputeDevice device{.native_bf16 = multiplies_bf16(),
                       .owned = std::make_unique<tiering::HostDevice>()};
  device.backend = device.owned.get();  // separate for each engine, so that each has its own thread
  return device;
}

/// Opens a device that LibTorch supports, on its current stream, and makes it this thread's current
/// device.
Result<ComputeDevice> open_with(c10::Device device, MakeBackend make) {
  at::globalContext().lazyInitDevice(device.type());  // without it there are no statistics
  at::accelerator::setDeviceIndex(device.index());
  const c10::Stream stream = at::accelerator::getCurrentStream(device.index());
  ARTESIAN_TRY(backend, make(device, stream));
  ComputeDevice opened{.torch = device,
                       .native_fp16 = true,
                       .native_bf16 = true,
                       .stream = stream.id(),
                       .owned = std::move(backend)};
  opened.backend = opened.owned.get();
  return opened;
}

/// Factories of backends, by type of device.
struct Backends {
  static Backends& instance() {
    static Backends backends;
    return backends;
  }
  std::mutex mutex;
  struct Backend {
    MakeBackend make = nullptr;
    JoinDevices join = nullptr;
  };
  std::map<c10::DeviceType, Backend> by_type;
};

}  // namespace

#ifdef ARTESIAN_HAVE_CUDA
namespace {

/// Loads LibTorch's CUDA part, unless the program has loaded it. This asks LibTorch's registry,
/// because Context::hasCUDA() would cache the answer "no".
Result<void> load_cuda_of_torch() {
  if (at::CUDAHooksRegistry()->Has("CUDAHooks")) return {};
  Dl_info torch{};
  if (::dladdr(reinterpret_cast<void*>(&c10::alloc_cpu), &torch) == 0) {
    return make_error(ErrorCode::Unsupported, "device: cannot tell where LibTorch is");
  }
  const std::string c10_path = torch.dli_fname;
  const std::string folder = c10_path.substr(0, c10_path.rfind('/') + 1);
  if (::dlopen((folder + "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* reason = ::dlerror();  // NOLINT(concurrency-mt-unsafe): one thread opens devices
  return make_error(
      ErrorCode::Unsupported,
      "device: got cuda, allowed cpu: this LibTorch has no CUDA: " + std::string(reason) +
          "; install the torch package for CUDA " + std::to_string(CUDART_VERSION / 1000));
}

/// Selects kernels that give the same bits in every run, for any placement. With `warn_only`
/// LibTorch only prefers them: flash attention's backward then uses atomic additions, although a
/// deterministic kernel exists.
void choose_deterministic_kernels(Determinism determinism) {
  at::Context& context = at::globalContext();
  const bool warn_only = determinism == Determinism::Preferred;
  if (warn_only) {
    log(LogLevel::Info,
        "artesian.determinism: preferred: operations on the GPU that have no deterministic kernel, "
        "and the backward of flash attention, may give other bits in each run");
  }
  context.setDeterministicAlgorithms(true, warn_only);
  context.setDeterministicFillUninitializedMemory(false);  // no uninitialised memory is read
  context.setBenchmarkCuDNN(false);
  context.setSDPUseMemEfficient(!warn_only);  // otherwise backward adds in an unspecified order
  context.setSDPUseCuDNN(false);
}

/// Sets variables that CUDA's libraries read when they are loaded or first used; values set by the
/// user take precedence.
void set_environment() {
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread opens devices
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8",
           /*replace=*/0);  // otherwise products differ between runs
  // Beside the device tier, which is one allocation, buffers of 0.4 to 12 GB are allocated and
  // freed: segments of fixed size would leave holes that no other buffer fits into.
  if (::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr) {
    ::setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*replace=*/0);
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace

Result<void> check_device(const std::string& name) {
  ARTESIAN_TRY(index, device_index(name));
  if (!index.has_value()) return {};
  ARTESIAN_TRY_VOID(tiering::CudaDevice::check(*index));
  set_environment();
  return load_cuda_of_torch();
}

Result<std::uint64_t> free_device_memory(int index) {
  return tiering::CudaDevice::free_memory(index);
}

namespace {

Result<std::unique_ptr<comm::DeviceGroup>> join_gpus(ComputeDevice& device, comm::Group& group) {
  comm::NcclDevice own;
  if (auto* const cuda = dynamic_cast<tiering::CudaDevice*>(device.backend); cuda != nullptr) {
    std::string machine;  // the ranks of one machine may be in several containers
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), machine);
    own = {.name = machine + " " + cuda->address(), .stream = cuda->bus()};
  }
  return comm::connect_nccl(group, own, comm::loaded_nccl());
}

Result<std::unique_ptr<tiering::Device>> make_cuda_backend(c10::Device device,
                                                           c10::Stream compute) {
  ARTESIAN_TRY(made, tiering::CudaDevice::open(device.index(),
                                               static_cast<cudaStream_t>(compute.native_handle())));
  return std::unique_ptr<tiering::Device>(std::move(made));
}

/// The built-in backend for a type; null if there is none.
MakeBackend built_in_backend(c10::DeviceType type) {
  return type == c10::kCUDA ? &make_cuda_backend : nullptr;
}

}  // namespace

Result<ComputeDevice> open_compute_device(const std::string& name, Determinism determinism) {
  ARTESIAN_TRY(index, device_index(name));
  if (!index.has_value()) return cpu();
  ARTESIAN_TRY_VOID(check_device(name));
  return from_torch([&]() -> Result<ComputeDevice> {
    if (!at::globalContext().hasCUDA()) {  // LibTorch was asked before, and cached the answer
      return make_error(ErrorCode::Unsupported,
                        "device: got " + name +
                            ", allowed cpu: LibTorch was used before its CUDA part was loaded; "
                            "create the engine first, call check_device() first, or link "
                            "libtorch_cuda.so");
    }
    choose_deterministic_kernels(determinism);
    return open_with({c10::kCUDA, static_cast<c10::DeviceIndex>(*index)}, make_cuda_backend);
  });
}

#else

namespace {

Error built_without() {
  return make_error(ErrorCode::Unsupported,
                    "device: got cuda, allowed cpu: this build has no CUDA; build with a CUDA "
                    "toolkit, or leave it out to compute on the CPU");
}

}  // namespace

namespace {

MakeBackend built_in_backend(c10::DeviceType) {
  return nullptr;
}

Result<std::unique_ptr<comm::DeviceGroup>> join_gpus(ComputeDevice&, comm::Group& group) {
  return comm::connect_nccl(group, {}, built_without());
}

}  // namespace

Result<void> check_device(const std::string& name) {
  ARTESIAN_TRY(index, device_index(name));
  return index.has_value() ? built_without() : Result<void>();
}

Result<std::uint64_t> free_device_memory(int) {
  return built_without();
}

Result<ComputeDevice> open_compute_device(const std::string& name, Determinism) {
  ARTESIAN_TRY(index, device_index(name));
  if (index.has_value()) return built_without();
  return cpu();
}

#endif

namespace {

Backends::Backend backend_of(c10::DeviceType type) {
  Backends& backends = Backends::instance();
  const std::lock_guard lock(backends.mutex);
  const auto found = backends.by_type.find(type);
  return found != backends.by_type.end() ? found->second
                                         : Backends::Backend{.make = built_in_backend(type)};
}

/// A device that LibTorch supports, with its index.
Result<c10::Device> existing_device(const std::string& name) {
  const auto parsed = from_torch([&]() -> Result<c10::Device> { return c10::Device(name); });
  if (!parsed.has_value()) {
    return make_error(ErrorCode::Invalid, "device: got \"" + name +
                                              "\", allowed cpu, or an accelerator by PyTorch's "
                                              "name, for instance cuda:0");
  }
  if (parsed->is_cpu()) return *parsed;
  return from_torch([&]() -> Result<c10::Device> {
    const int count =
        at::getAccelerator() == parsed->type() ? int{at::accelerator::deviceCount()} : 0;
    if (count == 0) {
      return make_error(ErrorCode::Unsupported,
                        "device: got " + name + ", allowed cpu: PyTorch sees no such device");
    }
    const c10::DeviceIndex index =
        parsed->has_index() ? parsed->index() : at::accelerator::getDeviceIndex();
    if (index < count) return c10::Device(parsed->type(), index);
    return make_error(ErrorCode::Invalid, "device: got " + name + ", allowed an index of 0 to " +
                                              std::to_string(count - 1));
  });
}

}  // namespace

void add_backend(c10::DeviceType type, MakeBackend make, JoinDevices join) {
  Backends& backends = Backends::instance();
  const std::lock_guard lock(backends.mutex);
  backends.by_type[type] = {make, join};
}

Result<void> join_devices(ComputeDevice& device, comm::Group& group) {
  const JoinDevices join = backend_of(device.torch.type()).join;
  const std::string own = join != nullptr ? c10::DeviceTypeName(device.torch.type()) : "";
  ARTESIAN_TRY(types, group.exchange_texts(own, {"types of the ranks' devices"}));
  const bool all =
      std::all_of(types.begin(), types.end(), [&](const std::string& type) { return type == own; });
  ARTESIAN_TRY(joined,
               all && join != nullptr ? join(*device.backend, group) : join_gpus(device, group));
  device.group = std::move(joined);
  return {};
}

bool has_backend(c10::DeviceType type) {
  return backend_of(type).make != nullptr;
}

Result<ComputeDevice> open_accelerator(const std::string& name) {
  ARTESIAN_TRY(device, existing_device(name));
  if (device.is_cpu()) return cpu();
  const MakeBackend make = backend_of(device.type()).make;
  if (make == nullptr) {
    return make_error(ErrorCode::Unsupported,
                      "device: got " + name + ", allowed cpu: this build has no backend for it");
  }
  return from_torch([&] { return open_with(device, make); });
}

Result<std::optional<std::uint64_t>> free_device_memory(const std::string& name) {
  using Bytes = std::optional<std::uint64_t>;
  if (name.starts_with("cuda")) {  // may be called before LibTorch's CUDA part is loaded
    ARTESIAN_TRY(index, device_index(name));
    ARTESIAN_TRY(free, free_device_memory(*index));
    return Bytes(free);
  }
  ARTESIAN_TRY(device, existing_device(name));
  if (device.is_cpu()) return Bytes();
  return from_torch([&]() -> Result<Bytes> {
    return Bytes(at::accelerator::getMemoryInfo(device.index()).first);
  });
}

Result<void> check_stream(const ComputeDevice& device, const char* call) {
  if (device.torch.is_cpu()) return {};
  return from_torch([&]() -> Result<void> {
    if (at::accelerator::getCurrentStream(device.torch.index()).id() == device.stream) return {};
    return make_error(ErrorCode::Invalid,
                      std::string(call) +
                          "(): got another LibTorch stream, allowed the one that was current when "
                          "the engine was created; make that one current, or create the engine "
                          "under this one");
  });
}

namespace {

Result<c10::CachingAllocator::Stat> tensor_bytes(const ComputeDevice& device) {
  return from_torch([&]() -> Result<c10::CachingAllocator::Stat> {
    constexpr std::size_t all = 0;  // StatType::AGGREGATE
    return at::accelerator::getDeviceStats(device.torch.index()).allocated_bytes[all];
  });
}

}  // namespace

Result<std::uint64_t> tensor_bytes_now(const ComputeDevice& device) {
  if (device.torch.is_cpu()) return activations_now();
  ARTESIAN_TRY(bytes, tensor_bytes(device));
  return static_cast<std::uint64_t>(bytes.current);
}

Result<std::uint64_t> tensor_bytes_peak(const ComputeDevice& device) {
  if (device.torch.is_cpu()) return std::uint64_t{0};
  ARTESIAN_TRY(bytes, tensor_bytes(device));
  return static_cast<std::uint64_t>(bytes.peak);
}

}  // namespace artesian::zero3
