// Choices that the caller or the config leaves to the engine.
#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/machine.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/engine.h"

namespace artesian::zero3 {

Result<DType> choose_compute_dtype(const Config& config, bool native) {
  const DType automatic = native ? config.param_dtype : DType::Float32;
  const DType chosen = config.artesian.compute_dtype.value_or(automatic);
  if (chosen != DType::Float32 && chosen != config.param_dtype) {
    return make_error(ErrorCode::Invalid, std::string("artesian.compute_dtype: got ") +
                                              dtype_name(chosen) + ", allowed fp32 or " +
                                              dtype_name(config.param_dtype) +
                                              ", the parameters' dtype");
  }
  return chosen;
}

void tell_compute_dtype(const Config& config, DType chosen) {
  if (chosen == config.param_dtype && chosen == DType::Float32) return;
  log(LogLevel::Info, std::string("artesian.compute_dtype: ") + dtype_name(chosen) +
                          (config.artesian.compute_dtype.has_value() ? "" : ", chosen here") +
                          "; parameters are " + dtype_name(config.param_dtype));
}

Result<Budgets> choose_budgets(const Config& config, const std::string& device,
                               const PlannedActivations& planned, std::uint64_t engines) {
  ARTESIAN_CHECK(engines > 0);
  const std::uint64_t available = available_memory() / engines;
  const ArtesianConfig& given = config.artesian;
  Budgets budgets{.device = given.device_memory.value_or(available / 4),
                  .host = given.host_memory.value_or(available / 2),
                  .activations = given.activation_memory.value_or(available / 8)};
  const bool all_given = given.device_memory.has_value() && given.activation_memory.has_value();
  if (device == "cpu" || all_given) return budgets;
  ARTESIAN_TRY(asked, free_device_memory(device));
  if (!asked.has_value()) return budgets;
  const std::uint64_t free = *asked;
  budgets.activations = given.activation_memory.value_or(free / 20);
  std::uint64_t rest = free / 10 * 9;
  if (planned) {
    ARTESIAN_TRY(activations, planned(budgets));
    const std::uint64_t others = activations + cuda_bytes;
    rest = std::max(free / 10, free - std::min(free, others));
  }
  budgets.device = given.device_memory.value_or(rest);
  return budgets;
}

}  // namespace artesian::zero3
