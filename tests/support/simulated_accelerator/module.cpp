// The Python module _simulated: registers the accelerator, and gives tests its counts and races.
#include <ATen/ops/from_blob.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "tests/support/simulated_accelerator/accelerator.h"
#include "tests/support/simulated_accelerator/simulated_device.h"
#include "tests/support/simulated_accelerator/simulated_group.h"
#include "tests/support/wait_sites.h"

namespace artesian::test_support {
namespace {

namespace py = pybind11;

/// For artesian._C.add_device_backend().
Result<std::unique_ptr<tiering::Device>> make_backend(c10::Device device, c10::Stream stream) {
  const std::size_t compute = queue_of(stream.id(), stream.device_index());
  return std::unique_ptr<tiering::Device>(
      std::make_unique<SimulatedDevice>(device.index(), compute));
}

/// The devices of several processes reach each other if SIMULATED_JOINED is set.
Result<std::unique_ptr<comm::DeviceGroup>> join_devices(tiering::Device& device,
                                                        comm::Group& group) {
  if (std::getenv("SIMULATED_JOINED") == nullptr) return std::unique_ptr<comm::DeviceGroup>();
  return std::unique_ptr<comm::DeviceGroup>(
      std::make_unique<SimulatedGroup>(static_cast<SimulatedDevice&>(device), group));
}

py::dict counts() {
  const LateQueues::Counts counted = accelerator().queues.counts();
  py::dict values;
  values["races"] = counted.races;
  values["ran"] = counted.ran;
  values["waits"] = counted.waits;
  values["pending_most"] = counted.pending_most;
  return values;
}

/// Memory as in the engine's device tier: not PyTorch's, and filled with NaNs.
at::Tensor foreign_memory(const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = sizeof(float);
  for (const std::int64_t size : shape) bytes *= size;
  const c10::Device device(simulated, 0);
  std::byte* const at =
      accelerator().memory.take(static_cast<std::size_t>(bytes + 511) / 512 * 512);
  return at::for_blob(at, shape)
      .options(at::TensorOptions().dtype(at::kFloat).device(device))
      .target_device(device)
      .make_tensor();
}

PYBIND11_MODULE(_simulated, m) {
  register_accelerator();
  m.def("counts", &counts);
  m.def("races", [] { return accelerator().queues.races(); });
  m.def("all_idle", [] { return accelerator().queues.all_idle(); });
  m.def("forget_counts", [] { accelerator().forget_counts(); });
  m.def("late", [] { return accelerator().counted(false); });
  m.def("waited", [] { return accelerator().counted(true); });
  m.def("set_order", [](const std::string& words) { accelerator().set_order(words); });
  m.def("device_count", [] { return accelerator().devices; });
  m.def("current_device", [] { return int{current_device()}; });
  m.def("set_device", [](int device) {
    TORCH_CHECK(device >= 0 && device < accelerator().devices, "there is no device sim:", device);
    current_device() = static_cast<c10::DeviceIndex>(device);
  });
  m.def("default_generator",
        [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
  m.def("foreign_memory", &foreign_memory);
  m.def("operations_between_devices", [] { return SimulatedGroup::operations; });
  m.def("wait_sites", [] { return WaitSites::instance().reached(); });
  m.def("forget_wait_sites", [] { WaitSites::instance().forget(); });
  m.def("drop_waits",
        [](std::set<std::string> sites) { WaitSites::instance().drop(std::move(sites)); });
  m.def("backend", [] {
    const auto capsule = [](auto* function) {
      return py::capsule(reinterpret_cast<void*>(function), "artesian");
    };
    return py::make_tuple(capsule(&make_backend), capsule(&join_devices));
  });
}

}  // namespace
}  // namespace artesian::test_support
