#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "zero3/config/resolve.h"

namespace artesian::zero3 {
namespace {

constexpr const char* total_key = "train_batch_size";
constexpr const char* micro_key = "train_micro_batch_size_per_gpu";
constexpr const char* steps_key = "gradient_accumulation_steps";
constexpr std::uint64_t count_max = 2147483647;

std::optional<std::uint64_t> count(const Settings& settings, const char* path,
                                   const std::optional<std::uint64_t>& argument) {
  if (settings.given(path)) return settings.integer(path);
  return argument;
}

/// Returns where the user set a value: the key, or the flag that filled it.
std::string source(const Settings& settings, const char* path,
                   const std::optional<std::uint64_t>& argument, const char* flag) {
  return argument && !settings.given(path) ? flag : path;
}

struct Batch {
  std::optional<std::uint64_t> total, micro, steps;
};

/// Formats "a multiple of --micro-batch 3" for the factor that was given if the other one was not,
/// since the other factor's value was never typed by anybody.
std::string a_multiple_of(const std::string& factor, std::uint64_t value, std::uint64_t ranks) {
  std::string text = fmt::format("a multiple of {} {}", factor, value);
  if (ranks != 1) text += fmt::format(" x world size {}", ranks);
  return text;
}

/// Completes missing batch sizes like DeepSpeed. Division rounds down; the product is checked
/// later. Without any size the micro-batch is 1 (DeepSpeed refuses), with a note.
void complete(Batch& batch, std::uint64_t ranks, Config& config) {
  if (!batch.total && !batch.micro) {
    batch.micro = 1;
    config.notes.push_back(std::string(micro_key) +
                           ": 1, as neither the config nor --micro-batch says a batch size");
  }
  if (batch.total && batch.micro) {
    if (!batch.steps) batch.steps = *batch.total / *batch.micro / ranks;
    return;
  }
  if (!batch.steps) batch.steps = 1;
  if (batch.total) batch.micro = *batch.total / ranks / *batch.steps;
}

}  // namespace

std::string shortest(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

void resolve_batch(const Settings& settings, const ConfigArguments& arguments, Config& config,
                   Faults& faults) {
  if (settings.broken(total_key) || settings.broken(micro_key) || settings.broken(steps_key)) {
    return;
  }
  // Reported already.
  if (arguments.micro_batch_size == 0u || arguments.accumulation_steps == 0u) return;
  const std::uint64_t ranks = arguments.world_size;
  Batch batch{count(settings, total_key, {}),
              count(settings, micro_key, arguments.micro_batch_size),
              count(settings, steps_key, arguments.accumulation_steps)};
  const bool micro_given = batch.micro.has_value();
  const bool steps_given = batch.steps.has_value();
  const bool total_given = batch.total.has_value();
  complete(batch, ranks, config);
  std::uint64_t product = 0;
  const bool overflows = __builtin_mul_overflow(*batch.micro, *batch.steps, &product) ||
                         __builtin_mul_overflow(product, ranks, &product);
  if (!batch.total) batch.total = product;
  if (overflows || product != *batch.total || product == 0) {
    const std::string micro =
        source(settings, micro_key, arguments.micro_batch_size, "--micro-batch");
    const std::string steps =
        source(settings, steps_key, arguments.accumulation_steps, "--accumulation");
    std::string allowed;
    if (total_given && micro_given && !steps_given) {
      allowed = a_multiple_of(micro, *batch.micro, ranks);
    } else if (total_given && !micro_given) {
      allowed = steps_given ? a_multiple_of(steps, *batch.steps, ranks)
                            : fmt::format("a multiple of world size {}", ranks);
    } else {
      allowed = fmt::format("{} {} x {} {} x world size {}{}", micro, *batch.micro, steps,
                            *batch.steps, ranks, overflows ? "" : fmt::format(" = {}", product));
    }
    faults.invalid(fmt::format("{}: got {}, allowed {}; change one of them", total_key,
                               *batch.total, allowed));
  }
  config.train_batch_size = *batch.total;
  config.micro_batch_size = *batch.micro;
  config.accumulation_steps = *batch.steps;
}

void check_arguments(const Settings& settings, const ConfigArguments& arguments, Faults& faults) {
  const auto positive = [&](const char* flag, const std::optional<std::uint64_t>& argument) {
    if (argument.value_or(1) >= 1 && argument.value_or(1) <= count_max) return;
    faults.invalid(
        fmt::format("{}: got {}, allowed an integer from 1 to {}", flag, *argument, count_max));
  };
  positive("--micro-batch", arguments.micro_batch_size);
  positive("--accumulation", arguments.accumulation_steps);
  positive("--steps", arguments.steps);
  if (!(arguments.lr.value_or(0) >= 0) || !std::isfinite(arguments.lr.value_or(0))) {
    faults.invalid("--lr: got " + shortest(*arguments.lr) + ", allowed a number of at least 0");
  }
  std::string list;
  const auto compare = [&](const char* flag, const std::string& argument, const char* path,
                           bool equal) {
    if (!settings.given(path) || equal) return;
    list += (list.empty() ? "" : ", ") + std::string(flag) + " " + argument + " and " +
            settings.name(path) + " " + settings.typed(path);
  };
  const auto compare_count = [&](const char* flag, const std::optional<std::uint64_t>& argument,
                                 const char* path) {
    if (argument) {
      compare(flag, std::to_string(*argument), path, settings.integer(path) == *argument);
    }
  };
  const auto compare_rate = [&](const char* path) {
    if (arguments.lr) {
      compare("--lr", shortest(*arguments.lr), path, settings.real(path) == *arguments.lr);
    }
  };
  compare_count("--micro-batch", arguments.micro_batch_size, micro_key);
  compare_count("--accumulation", arguments.accumulation_steps, steps_key);
  compare_rate("optimizer.params.lr");
  compare_rate("scheduler.params.warmup_max_lr");
  constexpr const char* total = "scheduler.params.total_num_steps";
  // A run that ends before its schedule is normal; beyond the schedule's end there is no rate.
  if (arguments.steps.value_or(0) > settings.integer(total)) {
    compare_count("--steps", arguments.steps, total);
  }
  if (list.empty()) return;
  faults.invalid("the command line contradicts the config: " + list +
                 "; leave out one of each, or write \"auto\" in the config");
}

}  // namespace artesian::zero3
