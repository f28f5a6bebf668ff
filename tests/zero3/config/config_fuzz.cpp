// Any text as a config: it is refused with lines fit for a terminal, or accepted with every value
// inside its range. Never a crash, whatever the text.
#include <cmath>
#include <string_view>

#include "tests/support/fuzz_input.h"
#include "zero3/config/config.h"
#include "zero3/config/text.h"

namespace artesian::zero3 {
namespace {

constexpr std::ptrdiff_t lines_max = 5;

bool at_least_zero(double value) {
  return std::isfinite(value) && value >= 0;
}

void check_accepted(const Config& config) {
  ARTESIAN_CHECK(config.zero.stage >= 0 && config.zero.stage <= 3, config.zero.stage);
  ARTESIAN_CHECK(config.micro_batch_size > 0 && config.accumulation_steps > 0);
  ARTESIAN_CHECK(config.train_batch_size == config.micro_batch_size * config.accumulation_steps);
  ARTESIAN_CHECK(at_least_zero(config.gradient_clipping), config.gradient_clipping);
  const OptimizerConfig& adam = config.optimizer;
  ARTESIAN_CHECK(at_least_zero(adam.lr) && at_least_zero(adam.eps), adam.lr, adam.eps);
  ARTESIAN_CHECK(at_least_zero(adam.beta1) && static_cast<float>(adam.beta1) < 1, adam.beta1);
  ARTESIAN_CHECK(at_least_zero(adam.beta2) && static_cast<float>(adam.beta2) < 1, adam.beta2);
  ARTESIAN_CHECK(std::isfinite(adam.weight_decay), adam.weight_decay);
  const SchedulerConfig& schedule = config.scheduler;
  ARTESIAN_CHECK(at_least_zero(schedule.warmup_min_lr) && at_least_zero(schedule.warmup_max_lr));
  const SchedulerConfig::Cycle& cycle = schedule.cycle;
  ARTESIAN_CHECK(at_least_zero(cycle.min_lr) && at_least_zero(cycle.max_lr));
  ARTESIAN_CHECK(cycle.first_steps > 0 && schedule.range_test.step_size > 0);
  ARTESIAN_CHECK(static_cast<float>(cycle.max_momentum) < 1, cycle.max_momentum);
  ARTESIAN_CHECK(at_least_zero(config.loss_scale.loss_scale), config.loss_scale.loss_scale);
  ARTESIAN_CHECK(std::isfinite(config.loss_scale.min_loss_scale));
  ARTESIAN_CHECK(config.loss_scale.min_loss_scale > 0, config.loss_scale.min_loss_scale);
  const AioConfig& aio = config.aio;
  ARTESIAN_CHECK(aio.block_size >= 4096 && aio.block_size % 4096 == 0, aio.block_size);
  ARTESIAN_CHECK(aio.queue_depth > 0 && aio.intra_op_parallelism > 0, aio.queue_depth);
  ARTESIAN_CHECK(config.zero.offload_param.buffer_count > 0);
  ARTESIAN_CHECK(config.zero.offload_optimizer.buffer_count > 0);
  for (const std::string& note : config.notes) test_support::check_shown(note, 1);
}

void read(std::string_view text, const ConfigArguments& arguments) {
  const auto config = parse_config(text, "ds.json", arguments);
  if (config.has_value()) return check_accepted(*config);
  const ErrorCode code = config.error().code;
  ARTESIAN_CHECK(code == ErrorCode::Invalid || code == ErrorCode::Unsupported);
  test_support::check_shown(config.error().to_string(), lines_max);
}

}  // namespace
}  // namespace artesian::zero3

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace artesian::zero3;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text, {});
  read(
      text,
      {.micro_batch_size = 2, .accumulation_steps = 3, .lr = 0.5, .steps = 100, .hidden_size = 64});
  const auto tree = read_json(text, "ds.json");
  if (tree.has_value()) artesian::test_support::check_shown(print_json(*tree), 1);
  return 0;
}
