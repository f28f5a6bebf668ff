#include <optional>
#include <string>
#include <utility>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "zero3/config/config.h"
#include "zero3/config/optimizers.h"
#include "zero3/config/text.h"
#include "zero3/step/lr_schedule.h"

namespace artesian::python {
namespace {

using zero3::Config;
using zero3::SchedulerConfig;

Config parse(const std::string& text, const std::string& path,
             std::optional<std::uint64_t> micro_batch, std::optional<std::uint64_t> accumulation,
             std::optional<std::uint64_t> hidden_size, bool note_unknown_keys,
             std::uint64_t ranks) {
  zero3::ConfigArguments arguments;
  if (note_unknown_keys) arguments.unknown_keys = zero3::UnknownKeys::AreNoted;
  arguments.micro_batch_size = micro_batch;
  arguments.accumulation_steps = accumulation;
  arguments.hidden_size = hidden_size;
  arguments.steps_later = true;
  arguments.world_size = ranks;
  return value_or_raise(zero3::parse_config(text, path, arguments));
}

/// Converts a JSON value as Python's json module does.
py::object to_python(const zero3::JsonValue& value) {
  using Kind = zero3::JsonValue::Kind;
  switch (value.kind) {
    case Kind::Null: return py::none();
    case Kind::Boolean: return py::bool_(value.boolean);
    case Kind::Number:
      if (value.text.find_first_of(".eEIN") != value.text.npos) return py::float_(value.number);
      return py::reinterpret_steal<py::object>(PyLong_FromString(value.text.c_str(), nullptr, 10));
    case Kind::String: return py::str(value.text);
    case Kind::Array: {
      py::list list;
      for (const auto& element : value.elements) list.append(to_python(element));
      return list;
    }
    case Kind::Object: {
      py::dict dict;
      for (const auto& [name, member] : value.members) dict[py::str(name)] = to_python(member);
      return dict;
    }
  }
  return py::none();
}

py::object read_json(const std::string& text, const std::string& path) {
  return to_python(value_or_raise(zero3::read_json(text, path)));
}

/// The folder for state on NVMe, or None.
std::optional<std::string> nvme_path_of(const Config& config) {
  for (const auto& offload : {config.zero.offload_param, config.zero.offload_optimizer}) {
    if (offload.device == zero3::Offload::Nvme) return offload.nvme_paths.front();
  }
  return std::nullopt;
}

py::dict optimizer_of(const Config& config) {
  const zero3::OptimizerConfig& optimizer = config.optimizer;
  py::dict values;
  values["type"] = std::string(zero3::type_name(optimizer));
  values["lr"] = optimizer.lr;
  values["betas"] = py::make_tuple(optimizer.beta1, optimizer.beta2);
  const bool muon = optimizer.type == zero3::OptimizerType::Muon;
  values["momentum"] = muon ? optimizer.momentum : optimizer.beta1;
  values["muon_lr"] = optimizer.muon_lr;
  values["adam_lr"] = optimizer.lr;
  values["ns_method"] = optimizer.newton_schulz == zero3::NewtonSchulz::Gram ? "gram" : "standard";
  values["alpha"] = optimizer.beta2;
  values["eps"] = optimizer.eps;
  values["weight_decay"] = optimizer.weight_decay;
  values["dampening"] = optimizer.dampening;
  values["nesterov"] = optimizer.nesterov;
  values["lr_decay"] = optimizer.lr_decay;
  values["initial_accumulator_value"] = optimizer.initial_squares;
  values["min_coeff"] = optimizer.min_coeff;
  values["max_coeff"] = optimizer.max_coeff;
  return values;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<Config>(module, "Config")
      .def_readonly("train_batch_size", &Config::train_batch_size)
      .def_readonly("micro_batch_size", &Config::micro_batch_size)
      .def_readonly("accumulation_steps", &Config::accumulation_steps)
      .def_readonly("managed_gradient_accumulation", &Config::managed_gradient_accumulation)
      .def_readonly("gradient_clipping", &Config::gradient_clipping)
      .def_readonly("notes", &Config::notes)
      .def_property_readonly("stage", [](const Config& config) { return config.zero.stage; })
      .def_property_readonly("param_dtype",
                             [](const Config& config) { return dtype_name(config.param_dtype); })
      .def_property_readonly("optimizer", &optimizer_of)
      .def_property_readonly("nvme_path", &nvme_path_of)
      .def_property_readonly("has_schedule",
                             [](const Config& config) {
                               return config.scheduler.type != SchedulerConfig::Type::Constant;
                             })
      .def_property_readonly("schedule_ends",
                             [](const Config& config) {
                               const auto type = config.scheduler.type;
                               return type == SchedulerConfig::Type::WarmupDecayLR ||
                                      type == SchedulerConfig::Type::WarmupCosineLR;
                             })
      .def_property_readonly("total_num_steps",
                             [](const Config& config) { return config.scheduler.total_num_steps; })
      .def_property_readonly("rate_ends",  // low, high: the rates in the config
                             [](const Config& config) {
                               const zero3::RateEnds ends =
                                   zero3::ends_of(config.scheduler, config.optimizer.lr);
                               return std::make_pair(ends.low, ends.high);
                             })
      .def_property_readonly("momentum_ends",
                             [](const Config& config) {
                               const auto& cycle = config.scheduler.cycle;
                               return std::make_pair(cycle.min_momentum, cycle.max_momentum);
                             })
      .def(
          "learning_rate",
          [](const Config& config, std::uint64_t updates, double lr, double low, double high) {
            return zero3::rate_between(config.scheduler, {lr, low, high}, updates);
          },
          py::arg("updates"), py::kw_only(), py::arg("lr"), py::arg("low"), py::arg("high"))
      .def(
          "betas",  // for OneCycle; None if momentum is not cycled
          [](const Config& config, std::uint64_t updates, double low,
             double high) -> std::optional<std::pair<double, double>> {
            const auto betas = zero3::betas_between(config.scheduler, low, high, updates);
            if (!betas.has_value()) return std::nullopt;
            return std::make_pair(betas->beta1, betas->beta2);
          },
          py::arg("updates"), py::kw_only(), py::arg("low"), py::arg("high"));
  module.def("parse_config", &parse, py::arg("text"), py::arg("path"), py::kw_only(),
             py::arg("micro_batch"), py::arg("accumulation"), py::arg("hidden_size"),
             py::arg("note_unknown_keys"), py::arg("ranks"));
  module.def("read_json", &read_json, py::arg("text"), py::arg("path"));
}

}  // namespace artesian::python
