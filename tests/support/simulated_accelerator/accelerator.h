// The simulated accelerator: what its parts share. It is PyTorch's device type PrivateUse1, named
// "sim": memory that the host cannot touch, and streams whose kernels, PyTorch's own for the CPU,
// run late (late_queues.h). So the order between copies and computing, which a GPU would punish by
// chance, is tested without one. Not shown: a GPU's bits, its speed, races within a kernel.
//
//   ARTESIAN_SIMULATED_ORDER    late, early, or random:SEED
//   ARTESIAN_SIMULATED_DEVICES  how many there are; 1
//   ARTESIAN_SIMULATED_MEMORY   bytes of all together; 1 GiB
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

/// All of it, of the process; never destroyed.
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

/// Of this thread.
c10::DeviceIndex& current_device();
c10::StreamId& current_stream(c10::DeviceIndex device);
/// The default stream has the number 0 on each device, another one that of its queue.
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
/// The seed of what the generator's next operator draws: a place of its own, so that late kernels
/// draw what early ones do.
std::uint64_t next_seed(const at::Generator& generator);

/// Gives PyTorch all of the above.
void register_accelerator();

}  // namespace artesian::test_support
