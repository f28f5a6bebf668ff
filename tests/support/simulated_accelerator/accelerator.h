// The simulated accelerator: what its parts share. It is PyTorch's device type PrivateUse1, named
// "sim". The host cannot touch its memory, and its streams run PyTorch's CPU kernels late
// (late_queues.h). So a missing order between copies and computing, which a GPU shows by chance,
// always shows here. Not tested: a GPU's bits, its speed, races within a kernel.
//
//   ARTESIAN_SIMULATED_ORDER    late, early, or random:SEED
//   ARTESIAN_SIMULATED_DEVICES  number of devices; default 1
//   ARTESIAN_SIMULATED_MEMORY   bytes of all devices together; default 1 GiB
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/simulated_accelerator/device_memory.h"
#include "tests/support/simulated_accelerator/late_queues.h"

namespace artesian::test_support {

constexpr auto simulated = c10::DeviceType::PrivateUse1;
constexpr std::size_t devices_most = 16;

/// The process's one accelerator; never destroyed.
struct Accelerator {
  Accelerator();
  void set_order(const std::string& words);
  void count(const std::string& name, bool waited);
  std::map<std::string, std::uint64_t> counted(bool waited);
  void forget_counts();

  const int devices;
  DeviceMemory memory;
  LateQueues queues;  // the first ones are the devices' default streams

 private:
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> late_;    // operators that were enqueued
  std::map<std::string, std::uint64_t> waited_;  // and those whose result the host waited for
};
Accelerator& accelerator();

/// The current device of the calling thread.
c10::DeviceIndex& current_device();
c10::StreamId& current_stream(c10::DeviceIndex device);
/// Returns a stream's queue. Each device's default stream is number 0; others have their queue's.
std::size_t queue_of(c10::StreamId stream, c10::DeviceIndex device);
inline std::size_t current_queue() {
  return queue_of(current_stream(current_device()), current_device());
}

/// PyTorch's allocator of device memory.
c10::DeviceAllocator& tensor_memory();
/// True if the host memory is page-locked.
bool is_pinned(const void* at);
at::HostAllocator& pinned_memory();

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);
/// Returns the seed for the generator's next operator. Each operator has a seed of its own, so that
/// late kernels draw the same numbers as early ones.
std::uint64_t next_seed(const at::Generator& generator);

/// Registers all of the above with PyTorch.
void register_accelerator();

}  // namespace artesian::test_support
