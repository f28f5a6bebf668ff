#include <ATen/core/Tensor.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "zero3/plan/evaluation_plan.h"
#include "zero3/torch/hooked_engine.h"
#include "zero3/torch/saved_facts.h"

namespace artesian::python {
namespace {

using zero3::HookedEngine;
using zero3::NamedTensor;
using zero3::Pass;
using zero3::StateKind;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Names = std::vector<std::pair<std::string, std::string>>;
using Files = std::map<std::string, std::string>;  // name -> bytes
using Numbers = std::vector<std::uint32_t>;
using Stages = std::vector<std::tuple<std::string, Numbers, std::optional<std::uint32_t>>>;
// lr, weight_decay, beta1, beta2, eps, dampening, nesterov, lr_decay, min_coeff, max_coeff,
// matrix_lr, momentum
using Constants = std::vector<std::array<double, 12>>;

std::vector<NamedTensor> named(const NamedTensors& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor});
  return result;
}

/// Destroying an engine waits for its disk and logs, so it must not hold the GIL.
struct EndWithoutGil {
  void operator()(HookedEngine* engine) const {
    const py::gil_scoped_release released;
    delete engine;
  }
};
using Holder = std::unique_ptr<HookedEngine, EndWithoutGil>;

std::vector<zero3::GroupStep> group_steps(const Constants& groups) {
  std::vector<zero3::GroupStep> steps;
  for (const auto& [lr, weight_decay, beta1, beta2, eps, dampening, nesterov, decay, least, most,
                    matrix_lr, momentum] : groups) {
    steps.push_back({lr, weight_decay, beta1, beta2, eps, dampening, nesterov != 0.0, decay, least,
                     most, matrix_lr, momentum});
  }
  return steps;
}

/// Calls the Python function from any thread. Its exceptions must not reach the current pass: the
/// constants then count as unknown.
zero3::UnitUses::Constants asking(py::function ask) {
  const auto without_python = [](py::function* held) {
    const py::gil_scoped_acquire acquired;
    delete held;
  };
  std::shared_ptr<py::function> held(new py::function(std::move(ask)), without_python);
  return [held]() -> std::vector<zero3::GroupStep> {
    const py::gil_scoped_acquire acquired;
    try {
      return group_steps((*held)().cast<Constants>());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("artesian: constants of the next step");
      return {};
    } catch (const py::cast_error&) {
      return {};
    }
  };
}

/// `constants`: returns the next step's constants, in the form of step()'s argument. groups[i]: the
/// group of parameter i, of `group_count`. A stage is a name, its parameters, and the parameter
/// that it looks up; `tables`: parameters that are only read by look_up and multiply. `shares`: as
/// HookedEngineOptions::shares, or None.
Holder create(const zero3::Config& config, const NamedTensors& parameters, const Numbers& groups,
              std::size_t group_count, bool skip_unreached, bool divides_own_losses,
              const Stages& stages, const Numbers& tables, const Numbers& matrices,
              const NamedTensors& others, std::uint64_t engines, const std::string& device,
              py::function constants, std::shared_ptr<comm::Group> ranks,
              const std::vector<std::optional<at::Tensor>>& shares) {
  zero3::ModelShape shape;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) {
    const std::uint32_t group = groups.at(tensors.size());
    shape.parameters.push_back({.name = name, .shape = tensor.sizes().vec(), .group = group});
    tensors.push_back(tensor);
  }
  std::vector<at::Tensor> of_rank;
  of_rank.reserve(shares.size());
  for (const auto& share : shares) of_rank.push_back(share.value_or(at::Tensor()));
  const zero3::HookedEngineOptions options{
      .device = device,
      .groups = std::vector<zero3::GroupOptions>(group_count),
      .unreached = skip_unreached ? zero3::Unreached::IsSkipped : zero3::Unreached::GetsZeros,
      .engines = engines,
      .divides_own_losses = divides_own_losses,
      .group = std::move(ranks),
      .shares = std::move(of_rank),
      .constants = asking(std::move(constants))};
  for (const std::uint32_t table : tables) shape.parameters.at(table).tiled = true;
  for (const std::uint32_t matrix : matrices) shape.parameters.at(matrix).matrix = true;
  for (const auto& [name, indices, lookup] : stages) {
    shape.stages.push_back({.name = name, .parameters = indices, .lookup = lookup});
  }
  const std::vector<NamedTensor> rest = named(others);
  auto made = without_gil(
      [&] { return HookedEngine::create(std::move(shape), config, options, tensors, rest); });
  return Holder(made.release());
}

const zero3::Moments& moments_of(HookedEngine& engine, std::uint32_t parameter) {
  const zero3::Placement& placement = engine.core().placement();
  return placement.moments_of(placement.layout.places.at(parameter).unit);
}

/// A parameter's moments by name.
std::vector<std::string> moment_names(HookedEngine& engine, std::uint32_t parameter) {
  const zero3::Moments& kept = moments_of(engine, parameter);
  std::vector<std::string> names;
  for (const std::string_view name : {kept.average, kept.squares}) {
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

StateKind state_kind(HookedEngine& engine, std::uint32_t parameter, const std::string& name) {
  const zero3::Moments& kept = moments_of(engine, parameter);
  if (name == "fp32") return StateKind::Master;
  if (!name.empty() && name == kept.average) return StateKind::ExpAvg;
  if (!name.empty() && name == kept.squares) return StateKind::ExpAvgSq;
  std::string allowed = "\"fp32\"";
  for (const std::string& each : moment_names(engine, parameter)) allowed += ", \"" + each + "\"";
  raise(make_error(ErrorCode::Invalid, "state: got \"" + name + "\", allowed " + allowed));
}

Pass pass_of(bool evaluate) {
  return evaluate ? Pass::Evaluate : Pass::Train;
}

/// The figures of a step as a Python dict.
py::dict told(const zero3::StepResult& result) {
  py::dict values;
  values["step"] = result.step;
  values["loss"] = result.loss;
  values["lr"] = result.lr;
  values["loss_scale"] = result.loss_scale;
  values["overflow"] = result.overflow;
  values["overflow_parameter"] = result.overflow_parameter;
  values["grad_norm"] = result.grad_norm;
  values["updated_under_backward"] = result.updated_under_backward;
  values["taken_back"] = result.taken_back;
  values["bytes_nvme_read"] = result.bytes_nvme_read;
  values["bytes_nvme_write"] = result.bytes_nvme_write;
  values["bytes_bus"] = result.bytes_bus;
  return values;
}

py::dict step(HookedEngine& engine, const Constants& groups) {
  const zero3::StepRequest request{.groups = group_steps(groups)};
  zero3::UnitUses* uses = value_or_raise(engine.uses());
  auto result = without_gil([&] { return uses->step(request); });
  if (result.end.has_value()) raise(*result.end);
  return told(result);
}

/// Calls one of UnitUses' functions without the GIL.
template <auto Function, typename... Arguments>
void call_uses(HookedEngine& engine, Arguments... arguments) {
  zero3::UnitUses* uses = value_or_raise(engine.uses());
  without_gil([&] { return (uses->*Function)(arguments...); });
}

void lend(HookedEngine& engine, std::uint32_t parameter, bool lent) {
  zero3::UnitUses* uses = value_or_raise(engine.uses());
  const py::gil_scoped_release released;
  uses->lend(parameter, lent);
}

void leave(HookedEngine& engine, std::uint32_t stage, const std::vector<at::Tensor>& outputs,
           bool failed) {
  zero3::UnitUses* uses = value_or_raise(engine.uses());
  without_gil([&] { return uses->leave(stage, outputs, failed); });
}

/// Calls a function that may throw LibTorch's exceptions, which Python gets as from torch.
template <auto Function, typename... Arguments>
at::Tensor compute(HookedEngine& engine, const Arguments&... arguments) {
  zero3::UnitUses* uses = value_or_raise(engine.uses());
  HANDLE_TH_ERRORS
  const py::gil_scoped_release released;
  return (uses->*Function)(arguments...);
  END_HANDLE_TH_ERRORS_PYBIND
}

void bind_tables(py::class_<HookedEngine, Holder>& bound) {
  using zero3::UnitUses;
  bound
      .def(
          "look_up",
          [](HookedEngine& engine, std::uint32_t parameter, std::int64_t padding,
             const at::Tensor& ids) {
            return compute<&UnitUses::look_up>(engine, parameter, ids, padding);
          },
          py::arg("parameter"), py::arg("padding"), py::arg("input"))
      .def(
          "multiply",
          [](HookedEngine& engine, std::uint32_t parameter, const std::optional<at::Tensor>& bias,
             bool frozen_here, const at::Tensor& input) {
            const auto by = frozen_here ? zero3::FrozenBy::Engine : zero3::FrozenBy::Caller;
            return compute<&UnitUses::multiply>(engine, parameter, input,
                                                bias.value_or(at::Tensor()), by);
          },
          py::arg("parameter"), py::arg("bias"), py::arg("frozen_here"), py::arg("input"));
}

void bind_state(py::class_<HookedEngine, Holder>& bound) {
  bound
      .def("help_read_state",
           [](HookedEngine& engine, std::uint32_t parameter, const std::string& kind) {
             const StateKind state = state_kind(engine, parameter, kind);
             without_gil([&] { return engine.help_read_state(parameter, state); });
           })
      .def(
          "read_state",
          [](HookedEngine& engine, std::uint32_t parameter, const std::string& kind,
             const std::optional<at::Tensor>& target) {
            const StateKind state = state_kind(engine, parameter, kind);
            const at::Tensor into = target.value_or(at::Tensor());
            return without_gil([&] { return engine.read_state(parameter, state, into); });
          },
          py::arg("parameter"), py::arg("kind"), py::arg("target") = py::none())
      .def("write_state",
           [](HookedEngine& engine, std::uint32_t parameter, const std::string& kind,
              const at::Tensor& values) {
             const StateKind state = state_kind(engine, parameter, kind);
             without_gil([&] { return engine.write_state(parameter, state, values); });
           })
      .def("read_gradient",
           [](HookedEngine& engine, std::uint32_t parameter) -> std::optional<at::Tensor> {
             at::Tensor read = without_gil([&] { return engine.read_gradient(parameter); });
             if (!read.defined()) return std::nullopt;
             return read;
           })
      .def("write_gradient",
           [](HookedEngine& engine, std::uint32_t parameter, const at::Tensor& values) {
             return without_gil([&] { return engine.write_gradient(parameter, values); });
           })
      .def(
          "changed",
          [](HookedEngine& engine, bool values) {
            const auto look = values ? zero3::LookFor::Values : zero3::LookFor::VersionsAndMemory;
            return without_gil([&] { return engine.changed(look); });
          },
          py::kw_only(), py::arg("values"))
      .def("accept",
           [](HookedEngine& engine, const Numbers& parameters) {
             without_gil([&] { return engine.accept(parameters); });
           })
      .def("planned_pass",
           [](HookedEngine& engine) {
             const zero3::StepCore& core = engine.core();
             return value_or_raise(
                        zero3::plan_evaluation(core.placement(), core.shape().stages,
                                               zero3::PrefetchLimits::of(core.config().zero)))
                 .nvme_read;
           })
      .def_property_readonly("planned_memory",
                             [](HookedEngine& engine) {
                               const zero3::Placement& plan = engine.core().placement();
                               return std::map<std::string, std::uint64_t>{
                                   {"device", plan.device_pool_bytes},
                                   {"host", plan.host_pool_bytes},
                                   {"nvme", plan.nvme_param_bytes + plan.nvme_optimizer_bytes}};
                             })
      .def("moments", &moment_names)
      .def_property_readonly("bytes_nvme_read",
                             [](HookedEngine& engine) { return engine.core().bytes_nvme_read(); })
      .def_property_readonly("resident",
                             [](HookedEngine& engine) { return engine.core().resident(); })
      .def_property_readonly("divides_parameters", [](HookedEngine& engine) {
        return engine.core().placement().params_cut;
      });
}

/// Returns the checkpoint's tag.
std::string save_checkpoint(HookedEngine& engine, const std::string& directory,
                            const std::string& tag, const Files& client, const Files& model,
                            const NamedTensors& buffers, const Names& aliases,
                            const std::string& config, bool exclude_frozen, bool replace_any,
                            bool becomes_latest) {
  zero3::SaveRequest request{.directory = directory, .tag = tag, .client = client, .model = model};
  request.config = config;
  request.aliases = aliases;
  request.exclude_frozen = exclude_frozen;
  request.replaces = replace_any ? zero3::Replaces::AnyLineage : zero3::Replaces::OwnLineage;
  request.latest = becomes_latest ? zero3::Latest::Becomes : zero3::Latest::Stays;
  const std::vector<NamedTensor> tensors = named(buffers);
  return without_gil([&]() -> Result<std::string> {
    ARTESIAN_TRY(saved, engine.save_checkpoint(std::move(request), tensors));
    return saved.tag;
  });
}

/// The description of a loaded checkpoint as a Python dict.
py::dict load_checkpoint(HookedEngine& engine, const std::string& directory, const std::string& tag,
                         bool strict, bool optimizer_states) {
  const zero3::LoadRequest request{.directory = directory,
                                   .tag = tag,
                                   .strict = strict ? zero3::Strict::Yes : zero3::Strict::No,
                                   .optimizer_states = optimizer_states};
  const auto loaded = without_gil([&] { return engine.load_checkpoint(request); });
  py::dict client;
  for (const auto& [name, bytes] : loaded.client) client[py::str(name)] = py::bytes(bytes);
  py::dict buffers;
  for (const auto& buffer : loaded.buffers) {
    buffers[py::str(buffer.buffer.name)] = value_or_raise(zero3::tensor_of(buffer));
  }
  py::dict values;
  values["tag"] = loaded.tag;
  values["step"] = loaded.manifest.state.step;
  values["client"] = client;
  values["buffers"] = buffers;
  values["missing"] = loaded.missing;
  values["unexpected"] = loaded.unexpected;
  return values;
}

/// `make`, `join`: capsules that contain a MakeBackend, and a JoinDevices or nothing.
void add_device_backend(const std::string& type, const py::capsule& make,
                        const std::optional<py::capsule>& join) {
  const auto kind = c10::Device(type).type();
  zero3::add_backend(
      kind, reinterpret_cast<zero3::MakeBackend>(make.get_pointer()),
      join.has_value() ? reinterpret_cast<zero3::JoinDevices>(join->get_pointer()) : nullptr);
}

}  // namespace

void bind_engine(py::module_& module) {
  using zero3::UnitUses;
  module.def("add_device_backend", &add_device_backend, py::arg("type"), py::arg("make"),
             py::arg("join") = std::nullopt);
  module.def("has_device_backend",
             [](const std::string& type) { return zero3::has_backend(c10::Device(type).type()); });
  py::class_<HookedEngine, Holder> bound(module, "Engine");
  bind_tables(bound);
  bind_state(bound);
  bound
      .def(py::init(&create), py::arg("config"), py::kw_only(), py::arg("parameters"),
           py::arg("groups"), py::arg("group_count"), py::arg("skip_unreached"),
           py::arg("divides_own_losses"), py::arg("stages"), py::arg("tables"), py::arg("matrices"),
           py::arg("others"), py::arg("engines"), py::arg("device"), py::arg("constants"),
           py::arg("group"), py::arg("shares"))
      .def("enter",
           [](HookedEngine& engine, std::uint32_t stage, bool evaluate) {
             call_uses<&UnitUses::enter>(engine, stage, pass_of(evaluate));
           })
      .def("leave", &leave)
      .def("gather", &call_uses<&UnitUses::gather, std::uint32_t>)
      .def("lend", &lend)
      .def("unwind", &call_uses<&UnitUses::unwind>)
      .def("begin_backward", &call_uses<&UnitUses::begin_backward, double>)
      .def("scales_by_itself", &call_uses<&UnitUses::scales_by_itself, double>)
      .def("backward_ended", &call_uses<&UnitUses::backward_ended, bool>)
      .def("zero_gradients", &call_uses<&UnitUses::zero_gradients>)
      .def("step", &step, py::arg("groups"))
      .def("save_checkpoint", &save_checkpoint, py::arg("directory"), py::kw_only(), py::arg("tag"),
           py::arg("client"), py::arg("model"), py::arg("buffers"), py::arg("aliases"),
           py::arg("config"), py::arg("exclude_frozen"), py::arg("replace_any"),
           py::arg("becomes_latest"))
      .def("load_checkpoint", &load_checkpoint, py::arg("directory"), py::kw_only(), py::arg("tag"),
           py::arg("strict"), py::arg("optimizer_states"))
      .def("leave_checkpoints",
           [](HookedEngine& engine) {
             without_gil([&] { return engine.core().leave_checkpoints(); });
           })
      .def(
          "broadcast",
          [](HookedEngine& engine, const at::Tensor& tensor, std::uint32_t root) {
            without_gil([&] { return engine.broadcast(tensor, root); });
          },
          py::arg("tensor"), py::arg("root"))
      .def("digest",
           [](HookedEngine& engine) { return without_gil([&] { return engine.digest(); }); })
      .def_property_readonly("device", [](HookedEngine& engine) { return engine.device().str(); })
      .def("close", [](HookedEngine& engine) { without_gil([&] { return engine.close(); }); })
      .def_property_readonly("loss_scale",
                             [](HookedEngine& engine) { return engine.core().loss_scale(); })
      .def_property_readonly(
          "compute_dtype",
          [](HookedEngine& engine) { return dtype_name(engine.core().placement().compute_dtype); })
      .def_property_readonly(
          "depth", [](HookedEngine& engine) { return value_or_raise(engine.uses())->depth(); })
      .def_property_readonly(
          "open_max",
          [](HookedEngine& engine) { return value_or_raise(engine.uses())->open_max(); })
      .def_property_readonly(
          "closed_late",
          [](HookedEngine& engine) { return value_or_raise(engine.uses())->closed_late(); })
      .def_property_readonly(
          "held_beside_max",
          [](HookedEngine& engine) { return engine.core().gradients().held_beside_max(); })
      .def_property_readonly("uses_alive", [](HookedEngine& engine) {
        return value_or_raise(engine.uses())->uses_alive();
      });
}

}  // namespace artesian::python
