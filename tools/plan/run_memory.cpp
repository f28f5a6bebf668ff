#include "tools/plan/run_memory.h"

#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "tools/plan/planner.h"
#include "zero3/torch/compute_device.h"

namespace artesian::tools {
namespace {

// A part of the memory that the process will use beside tiers and activations (docs/memory.md, "The
// whole process"): the minimum for every run, and the maximum seen on usual machines.
constexpr std::uint64_t program_least = std::uint64_t{64} << 20;
constexpr std::uint64_t program_most = std::uint64_t{192} << 20;

/// Warns if the configured budgets exceed the memory. This is not an error, since pools use memory
/// only as needed.
void warn_of_budgets(const RunMemory& run, const PlanCase& plan, const PlanFigures& figures) {
  const std::uint64_t device = plan.gpu ? 0 : run.budgets.device;
  const double sum = static_cast<double>(device) + static_cast<double>(run.budgets.host);
  if (sum <= static_cast<double>(*plan.memory_max)) return;
  const std::string keys =
      plan.gpu ? "artesian.host_memory: " + format_size(run.budgets.host)
               : "artesian.device_memory and artesian.host_memory: " + format_size(device) +
                     " and " + format_size(run.budgets.host);
  log(LogLevel::Warning, keys + " are more than the " + format_size(*plan.memory_max) +
                             " of available memory; this run takes " + memory_text(plan, figures));
}

}  // namespace

Result<DType> run_compute_dtype(const zero3::Config& config, bool gpu) {
  bool native = true;
  if (!gpu) {
    ARTESIAN_TRY(cpu, zero3::open_compute_device("cpu"));
    native = cpu.native(config.param_dtype);
  }
  return zero3::choose_compute_dtype(config, native);
}

Result<void> check_run_memory(const RunMemory& run) {
  const std::uint64_t available = available_memory();
  if (available == 0) return {};  // unknown
  const auto parameters = models::model_parameters(*run.model);
  const auto stages = models::model_stages(*run.model);
  ARTESIAN_TRY(index, zero3::device_index(run.device));
  PlanCase plan;
  plan.model = run.model;
  plan.parameters = &parameters;
  plan.stages = &stages;
  plan.config = *run.config;
  plan.length = run.length;
  plan.gpu = index.has_value();
  plan.ranks = run.ranks;
  plan.device_bytes = run.budgets.device;
  plan.host_bytes = run.budgets.host;
  plan.activation_bytes = run.budgets.activations;
  plan.memory_max = available;
  plan.program_bytes = program_least;
  ARTESIAN_TRY(dtype, run_compute_dtype(*run.config, plan.gpu));
  plan.compute_dtype = dtype;
  ARTESIAN_TRY(figures, evaluate_memory(plan));
  warn_of_budgets(run, plan, figures);
  plan.program_bytes = program_most;
  const auto close = evaluate_memory(plan);
  if (close.has_value()) return {};
  log(LogLevel::Warning, "the memory may not do: " + close.error().message);
  return {};
}

}  // namespace artesian::tools
