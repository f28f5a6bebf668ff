#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <utility>

#include "comm/group.h"
#include "comm/launch.h"
#include "python/src/bind.h"
#include "python/src/errors.h"
#include "zero3/torch/torch_group.h"

namespace artesian::python {
namespace {

/// The ranks of a PyTorch process group, which must have a backend for CPU memory and must not be
/// used by anything else.
std::shared_ptr<comm::Group> make_group(const py::object& process_group, std::uint32_t local_rank,
                                        std::uint32_t local_ranks, double deadline_seconds) {
  auto* const given = process_group.cast<c10d::ProcessGroup*>();
  const auto group = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(given);
  return without_gil([&]() -> Result<std::shared_ptr<comm::Group>> {
    ARTESIAN_TRY(made, zero3::make_torch_group(
                           group->getBackend(c10::DeviceType::CPU), group->getStore(),
                           {.place = {.rank = static_cast<std::uint32_t>(group->getRank()),
                                      .ranks = static_cast<std::uint32_t>(group->getSize()),
                                      .local_rank = local_rank,
                                      .local_ranks = local_ranks},
                            .deadline_seconds = deadline_seconds}));
    return std::shared_ptr<comm::Group>(std::move(made));
  });
}

/// The launcher's values: rank, ranks, local_rank, local_ranks, address, port.
py::tuple this_launch() {
  const comm::Launch launch = value_or_raise(comm::this_launch());
  return py::make_tuple(launch.place.rank, launch.place.ranks, launch.place.local_rank,
                        launch.place.local_ranks, launch.address, launch.port);
}

}  // namespace

void bind_group(py::module_& module) {
  py::class_<comm::Group, std::shared_ptr<comm::Group>>(module, "Group")
      .def(py::init(&make_group), py::arg("process_group"), py::kw_only(), py::arg("local_rank"),
           py::arg("local_ranks"), py::arg("deadline_seconds"))
      .def(
          "exchange_texts",
          [](comm::Group& group, const std::string& mine, const std::string& what) {
            return without_gil([&] { return group.exchange_texts(mine, {.kind = what.c_str()}); });
          },
          py::arg("mine"), py::arg("what"));
  module.def("this_launch", &this_launch);
}

}  // namespace artesian::python
