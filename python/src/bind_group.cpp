#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/group.h"
#include "comm/launch.h"
#include "python/src/bind.h"
#include "python/src/errors.h"
#include "zero3/torch/divided_weights.h"
#include "zero3/torch/storage_refusal.h"
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

using Pieces = std::vector<std::optional<at::Tensor>>;

/// comm::Group::all_to_all of contiguous tensors on the CPU, one for each rank; None: nothing.
void all_to_all(comm::Group& group, const Pieces& sent, const Pieces& received,
                const std::string& what) {
  const auto bytes_of = [](const Pieces& pieces) {
    std::vector<std::span<std::byte>> bytes;
    for (const auto& piece : pieces) {
      if (!piece.has_value() || piece->numel() == 0) {
        bytes.emplace_back();
        continue;
      }
      ARTESIAN_CHECK(piece->is_contiguous() && piece->is_cpu());
      bytes.emplace_back(static_cast<std::byte*>(piece->data_ptr()), piece->nbytes());
    }
    return bytes;
  };
  const auto out = bytes_of(sent);
  const auto in = bytes_of(received);
  const std::vector<std::span<const std::byte>> constant(out.begin(), out.end());
  without_gil([&] { return group.all_to_all(constant, in, {.kind = what.c_str()}); });
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
          py::arg("mine"), py::arg("what"))
      .def("all_to_all", &all_to_all, py::arg("sent"), py::arg("received"), py::arg("what"));
  module.def(
      "free_memory",
      [](const at::Tensor& tensor, const std::string& message) {
        zero3::free_memory(tensor, message);
      },
      py::arg("tensor"), py::arg("message"));
  module.def("freed_tensors_throw", &zero3::released_tensors_throw);
  module.def("this_launch", &this_launch);
}

}  // namespace artesian::python
