#include <string>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "zero3/config/config.h"
#include "zero3/step/lr_schedule.h"

namespace artesian::python {
namespace {

using zero3::Config;
using zero3::SchedulerConfig;

Config parse(const std::string& text, const std::string& path,
             std::optional<std::uint64_t> micro_batch, std::optional<std::uint64_t> accumulation,
             std::optional<std::uint64_t> hidden_size) {
  zero3::ConfigArguments arguments;
  arguments.micro_batch_size = micro_batch;
  arguments.accumulation_steps = accumulation;
  arguments.hidden_size = hidden_size;
  arguments.steps_later = true;
  return value_or_raise(zero3::parse_config(text, path, arguments));
}

py::dict optimizer_of(const Config& config) {
  const zero3::OptimizerConfig& adam = config.optimizer;
  py::dict values;
  values["lr"] = adam.lr;
  values["betas"] = py::make_tuple(adam.beta1, adam.beta2);
  values["eps"] = adam.eps;
  values["weight_decay"] = adam.weight_decay;
  return values;
}

}  // namespace

void bind_config(py::module_& module) {
  py::class_<Config>(module, "Config")
      .def_readonly("train_batch_size", &Config::train_batch_size)
      .def_readonly("micro_batch_size", &Config::micro_batch_size)
      .def_readonly("accumulation_steps", &Config::accumulation_steps)
      .def_property_readonly("stage", [](const Config& config) { return config.zero.stage; })
      .def_property_readonly("param_dtype",
                             [](const Config& config) { return dtype_name(config.param_dtype); })
      .def_property_readonly("optimizer", &optimizer_of)
      .def_property_readonly("has_schedule",
                             [](const Config& config) {
                               return config.scheduler.type != SchedulerConfig::Type::Constant;
                             })
      .def(
          "learning_rate",
          [](const Config& config, std::uint64_t updates) {
            return zero3::learning_rate(config.scheduler, config.optimizer, updates);
          },
          py::arg("updates"));
  module.def("parse_config", &parse, py::arg("text"), py::arg("path"), py::kw_only(),
             py::arg("micro_batch"), py::arg("accumulation"), py::arg("hidden_size"));
}

}  // namespace artesian::python
