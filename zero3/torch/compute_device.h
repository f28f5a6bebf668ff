// ComputeDevice: where the model computes: the CPU, one GPU, or, for hooked models, any accelerator
// that LibTorch supports and that has a backend. It combines LibTorch's device (c10::Device) with
// the backend of the device tier (tiering/device/device.h), whose queue Compute is LibTorch's
// current stream.
//
// LibTorch's CUDA libraries take a gigabyte and a second to load, and CPU-only wheels lack them. So
// they are not linked, but loaded from the folder of libtorch_cpu.so when a GPU is requested.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "comm/device_group.h"
#include "comm/group.h"
#include "tiering/device/device.h"
#include "zero3/config/config.h"

namespace artesian::zero3 {

struct ComputeDevice {
  c10::Device torch = c10::kCPU;
  // Matrix products in fp16 and in bf16 are at least as fast as in fp32, and so the default.
  bool native_fp16 = false;
  bool native_bf16 = false;
  bool native(DType dtype) const noexcept {
    return dtype == DType::Float16 ? native_fp16 : dtype == DType::BFloat16 && native_bf16;
  }
  c10::StreamId stream = 0;                    // for a GPU, LibTorch's stream: the queue Compute
  std::unique_ptr<tiering::Device> owned;      // null if `backend` belongs to someone else
  tiering::Device* backend = nullptr;          // never null once opened
  std::unique_ptr<comm::DeviceGroup> group{};  // between the ranks' devices: join_devices()
};

/// Connects the ranks' devices if all ranks can, else leaves `device.group` null: GPUs by NCCL
/// (comm::connect_nccl), devices of another type by what their backend has for it. All ranks must
/// call it. Errors: the group's.
Result<void> join_devices(ComputeDevice& device, comm::Group& group);

/// Index of "cuda" (0) and "cuda:i"; nothing for "cpu". Errors: Invalid, for any other word.
Result<std::optional<int>> device_index(const std::string& name);

/// Checks that a model can compute there. For a GPU it loads LibTorch's CUDA part. Call it before
/// computing on the CPU: LibTorch then assumes that there is no CUDA, unless its CUDA part was
/// loaded before. Errors: Invalid (the word, an index that is not there), Unsupported (no driver or
/// GPU, or a build or LibTorch without CUDA), each with what to do.
Result<void> check_device(const std::string& name);

/// Opens "cpu", "cuda" or "cuda:i". For a GPU it initializes LibTorch's CUDA part, sets LibTorch to
/// deterministic kernels, in the whole process, and makes the GPU the current one of this thread.
/// Errors: as check_device, and Unsupported if LibTorch has no CUDA, or was used before its CUDA
/// part was loaded.
Result<ComputeDevice> open_compute_device(const std::string& name,
                                          Determinism determinism = Determinism::Required);

/// Makes the device tier's backend for a LibTorch device; the stream becomes its queue Compute.
using MakeBackend = Result<std::unique_ptr<tiering::Device>> (*)(c10::Device device,
                                                                 c10::Stream compute);
/// Connects the ranks' devices of one type; returns null on all ranks if one of them cannot. All
/// must outlive the result. Errors: the group's.
using JoinDevices = Result<std::unique_ptr<comm::DeviceGroup>> (*)(tiering::Device& own,
                                                                   comm::Group& group);
/// Makes open_accelerator() use this backend for devices of that type, and join_devices() that
/// function, unless it is null. CUDA's are registered at the start if they are built in.
void add_backend(c10::DeviceType type, MakeBackend make, JoinDevices join = nullptr);
bool has_backend(c10::DeviceType type);

/// Opens "cpu", or an accelerator by LibTorch's name, such as "cuda:0", which LibTorch must have
/// loaded. LibTorch's settings are not changed; the device becomes the current one of this thread.
/// Errors: Invalid (no such device); Unsupported (it has no backend); the backend's.
Result<ComputeDevice> open_accelerator(const std::string& name);

/// Checks the current stream. Errors: Invalid if it is not the one that was current when the GPU
/// was opened: computing would not be ordered with the device tier's copies. `call`: for the
/// message.
Result<void> check_stream(const ComputeDevice& device, const char* call);

/// Free bytes of a GPU's memory. Errors: as check_device; Io.
Result<std::uint64_t> free_device_memory(int index);
/// The same for any accelerator, by name; nothing for "cpu". Errors: Invalid (no such device); Io.
Result<std::optional<std::uint64_t>> free_device_memory(const std::string& name);

/// Bytes that LibTorch uses on the device now; on the CPU 0 without track_activations() (engine.h).
/// Errors: those that LibTorch throws.
Result<std::uint64_t> tensor_bytes_now(const ComputeDevice& device);

/// The most bytes that LibTorch has held in the GPU's memory at once; 0 for the CPU. Errors: those
/// that LibTorch throws.
Result<std::uint64_t> tensor_bytes_peak(const ComputeDevice& device);

}  // namespace artesian::zero3
