#include "tools/plan/planner.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/units.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/saved_units.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::tools {

using tiering::Tier;

namespace {

// Most groups of micro-batches per step that are simulated; further ones are extrapolated.
constexpr std::uint64_t groups_max = 16;

std::uint64_t tokens_of(const PlanCase& plan) {
  return plan.config.micro_batch_size * plan.length;
}

/// 16-bit parameters use the case's compute dtype, others fp32.
DType compute_dtype(const PlanCase& plan) {
  return plan.config.param_dtype == DType::Float32 ? DType::Float32 : plan.compute_dtype;
}

models::ActivationRun activation_run(const PlanCase& plan) {
  return {.model = plan.model,
          .config = &plan.config,
          .parameters = plan.parameters,
          .stages = plan.stages,
          .tokens = tokens_of(plan),
          .compute_dtype = compute_dtype(plan),
          .budget = plan.activation_bytes,
          .gpu = plan.gpu};
}

std::uint64_t group_of(const PlanCase& plan, const zero3::KeptInputs& inputs) {
  return models::micro_batches_at_once(activation_run(plan), inputs);
}

/// Bytes of activations beside inputs kept in tiers.
std::uint64_t activations_of(const PlanCase& plan, const zero3::KeptInputs& inputs) {
  return models::activations_of(activation_run(plan), group_of(plan, inputs),
                                inputs.bytes_in(Tier::Device));
}

void add_homes(const zero3::Placement& placement, PlanFigures& figures) {
  const auto tier = [&](Tier home) -> TierBytes& {
    return home == Tier::Device ? figures.device : home == Tier::Host ? figures.host : figures.nvme;
  };
  for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
    const zero3::UnitPlacement& place = placement.units[unit];
    tier(place.param).param += placement.param_bytes(unit);
    tier(place.grad).grad += placement.grad_bytes(unit);
    for (const Tier home : {Tier::Device, Tier::Host, Tier::Nvme}) {
      tier(home).optimizer += placement.optimizer_bytes_in(home, unit);
    }
  }
}

void take_memory(const zero3::Placement& placement, PlanFigures& figures) {
  add_homes(placement, figures);
  TierBytes& device = figures.device;
  const std::uint64_t buffers =
      placement.expansion_bytes + placement.grad_scratch_bytes + placement.exchange.device_bytes();
  device.gathered = placement.device_pool_bytes - device.used() - buffers;
  device.buffers = buffers + placement.device_gradient_bytes;
  figures.host.input = placement.inputs.bytes_in(Tier::Host);
  figures.nvme.input = placement.inputs.bytes_in(Tier::Nvme);
  figures.host.buffers = placement.host_pool_bytes - figures.host.used();
}

zero3::StageSeconds stage_seconds(const PlanCase& plan) {
  const auto tokens = static_cast<double>(tokens_of(plan));
  const std::size_t stages = plan.stages->size();
  const auto of = [&](double ModelSeconds::*part) {
    return std::max(plan.compute.*part * tokens, plan.launches.*part);
  };
  zero3::StageSeconds seconds;
  seconds.forward.assign(stages, of(&ModelSeconds::block_forward));
  const bool twice = plan.config.activation_checkpointing;
  const double again = twice ? seconds.forward.front() : 0.0;
  seconds.backward.assign(stages, of(&ModelSeconds::block_backward) + again);
  seconds.forward.front() = seconds.backward.front() = 0.0;  // a look-up takes no time
  seconds.forward.back() = of(&ModelSeconds::head_forward);
  // UnitGraphs keeps the head's graph if a step is one micro-batch.
  const bool head_twice =
      twice && (plan.config.accumulation_steps > 1 || plan.config.cpu_checkpointing);
  seconds.backward.back() =
      of(&ModelSeconds::head_backward) + (head_twice ? seconds.forward.back() : 0.0);
  return seconds;
}

/// Returns the rates used by a plan. If the config's parameters are not on NVMe, all NVMe bytes are
/// on the optimizer's disk.
zero3::Rates rates_of(const PlanCase& plan) {
  zero3::Rates rates = plan.rates;
  if (plan.config.zero.offload_param.device == zero3::Offload::Nvme) return rates;
  rates.param_read = rates.param_write = 0.0;
  rates.param_apart = false;
  return rates;
}

struct Simulated {
  zero3::MovedByKind moved;
  zero3::StepTime time;
  double clipped_seconds = 0.0;  // as PlanFigures::clipped_seconds
  std::uint64_t shadows = 0;     // bytes on NVMe for an update that may be rolled back
};

Result<Simulated> simulate(const PlanCase& plan, const zero3::Placement& placement,
                           std::uint64_t micro_batches, std::vector<bool> under_backward) {
  ARTESIAN_TRY(
      step,
      zero3::simulate_step(
          {.step = {.placement = &placement,
                    .stages = plan.stages,
                    .limits = zero3::PrefetchLimits::of(plan.config.zero),
                    .micro_batches = micro_batches,
                    .group = group_of(plan, placement.inputs),
                    .tokens = tokens_of(plan),
                    .lookup_width = static_cast<std::uint64_t>(plan.model->hidden),
                    .rows = tokens_of(plan) * plan.config.accumulation_steps,
                    .under_backward = std::move(under_backward),
                    .speculative = zero3::waits_for_norm(plan.config)},
           .timing = {.rates = rates_of(plan),
                      .stages = stage_seconds(plan),
                      .activation_bytes = plan.gpu ? 0 : activations_of(plan, placement.inputs)}}));
  const double seconds = step.time.seconds;
  return Simulated{step.moved, std::move(step.time), /*clipped_seconds=*/seconds};
}

/// Seconds until the slowest disk is done, as the engine counts them (zero3/plan/prediction.h).
double disk_seconds(const zero3::Rates& rates, const zero3::MovedByKind& moved) {
  const auto at = [](std::uint64_t bytes, double rate) {
    return bytes == 0 ? 0.0 : static_cast<double>(bytes) / rate;
  };
  const auto seconds = [&](const zero3::Moved& part, double read, double write) {
    return at(part.nvme_read, read) + at(part.nvme_write, write);
  };
  if (rates.param_read == 0.0) return seconds(moved.total(), rates.disk_read, rates.disk_write);
  zero3::Moved param = moved.param;
  param += moved.grad;
  param += moved.input;
  const double one = seconds(param, rates.param_read, rates.param_write);
  const double other = seconds(moved.optimizer, rates.disk_read, rates.disk_write);
  return rates.param_apart ? std::max(one, other) : one + other;
}

/// For each unit, whether it is updated under backward, judged by a step without.
std::vector<bool> under_backward_of(const PlanCase& plan, const zero3::Placement& placement,
                                    const Simulated& without, std::uint64_t micro_batches) {
  if (!zero3::may_update_under_backward(plan.config)) return {};
  if (plan.ranks > 1 && !plan.gpu) return {};  // the engine does not yet, with several ranks
  zero3::MovedByKind update;
  for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
    update += zero3::update_moves(placement, unit, /*live=*/true);
  }
  const zero3::Rates rates = rates_of(plan);
  const zero3::StageSeconds seconds = stage_seconds(plan);
  const auto sum = [&](const std::vector<double>& stages) {
    return static_cast<double>(micro_batches) * std::accumulate(stages.begin(), stages.end(), 0.0);
  };
  zero3::StepFigure step{.forward = sum(seconds.forward),
                         .backward = sum(seconds.backward),
                         .disk = disk_seconds(rates, without.moved),
                         .update_disk = disk_seconds(rates, update)};
  for (const zero3::StepSpan& span : without.time.spans) {
    if (span.resource != zero3::Resource::Host) continue;
    const bool updates = span.kind == zero3::StepEvent::Kind::Update;
    (updates ? step.update : step.gradients) += span.end - span.begin;
  }
  if (!plan.gpu) {
    const double computed = without.time.busy[static_cast<std::size_t>(zero3::Resource::Compute)];
    step.update = std::max(0.0, computed - without.time.model_seconds);
  }
  const auto group = static_cast<double>(group_of(plan, placement.inputs));
  const auto times =
      zero3::update_times(step, group / static_cast<double>(micro_batches), plan.gpu);
  return zero3::units_under_backward(placement, *plan.stages, zero3::share_under_backward(times),
                                     zero3::waits_for_norm(plan.config));
}

Result<Simulated> simulate(const PlanCase& plan, const zero3::Placement& placement,
                           std::uint64_t micro_batches) {
  ARTESIAN_TRY(without, simulate(plan, placement, micro_batches, {}));
  const auto under_backward = under_backward_of(plan, placement, without, micro_batches);
  const auto end = under_backward.end();
  if (std::find(under_backward.begin(), end, true) == end) return without;
  const bool speculative = zero3::waits_for_norm(plan.config);
  const std::uint64_t shadows = speculative ? zero3::shadow_bytes(placement, under_backward) : 0;
  if (!have_room(plan.space, plan.config, placement, shadows)) return without;
  ARTESIAN_TRY(done, simulate(plan, placement, micro_batches, under_backward));
  done.shadows = shadows;
  if (speculative) done.clipped_seconds = without.time.seconds;
  return done;
}

/// Computes b + (b - a) * further for each figure.
template <typename T>
T extend(T a, T b, std::uint64_t further) {
  return b + (b - a) * static_cast<T>(further);
}

void extend(zero3::Moved& b, const zero3::Moved& a, std::uint64_t further) {
  for (const auto member : {&zero3::Moved::nvme_read, &zero3::Moved::nvme_write,
                            &zero3::Moved::to_device, &zero3::Moved::to_host, &zero3::Moved::bus}) {
    b.*member = extend(a.*member, b.*member, further);
  }
}

/// A step with many groups of micro-batches: after the first groups each adds the same.
Result<Simulated> simulate(const PlanCase& plan, const zero3::Placement& placement) {
  const std::uint64_t micro_batches = plan.config.accumulation_steps;
  const std::uint64_t group = group_of(plan, placement.inputs);
  const std::uint64_t groups = micro_batches / group;
  if (groups <= groups_max) return simulate(plan, placement, micro_batches);
  const std::uint64_t rest = micro_batches % group;
  ARTESIAN_TRY(one_less, simulate(plan, placement, (groups_max - 1) * group + rest));
  ARTESIAN_TRY(done, simulate(plan, placement, groups_max * group + rest));
  const std::uint64_t further = groups - groups_max;
  extend(done.moved.param, one_less.moved.param, further);
  extend(done.moved.grad, one_less.moved.grad, further);
  extend(done.moved.optimizer, one_less.moved.optimizer, further);
  extend(done.moved.input, one_less.moved.input, further);
  done.time.seconds = extend(one_less.time.seconds, done.time.seconds, further);
  done.clipped_seconds = extend(one_less.clipped_seconds, done.clipped_seconds, further);
  done.time.model_seconds = extend(one_less.time.model_seconds, done.time.model_seconds, further);
  for (std::size_t index = 0; index < done.time.busy.size(); ++index) {
    done.time.busy[index] = extend(one_less.time.busy[index], done.time.busy[index], further);
  }
  return done;
}

double busy(const zero3::StepTime& time, zero3::Resource resource) {
  return time.busy[static_cast<std::size_t>(resource)];
}

/// Names the busiest resource. A disk that is not duplex counts as one resource.
std::string bottleneck_of(const PlanCase& plan, const zero3::StepTime& time) {
  std::string name;
  double longest = -1.0;
  const auto see = [&](const std::string& resource, double seconds) {
    if (seconds <= longest) return;
    longest = seconds;
    name = resource;
  };
  for (const zero3::Resource resource :
       {zero3::Resource::Compute, zero3::Resource::Host, zero3::Resource::ToDevice,
        zero3::Resource::ToHost, zero3::Resource::Bus}) {
    see(zero3::resource_name(resource), busy(time, resource));
  }
  const auto see_disk = [&](const char* both, zero3::Resource reads, zero3::Resource writes) {
    if (plan.rates.disk == zero3::Disk::Duplex) {
      see(zero3::resource_name(reads), busy(time, reads));
      see(zero3::resource_name(writes), busy(time, writes));
    } else {
      see(both, busy(time, reads) + busy(time, writes));
    }
  };
  see_disk("NVMe", zero3::Resource::DiskRead, zero3::Resource::DiskWrite);
  see_disk("param NVMe", zero3::Resource::ParamRead, zero3::Resource::ParamWrite);
  return name;
}

void take_time(const PlanCase& plan, PlanFigures& figures) {
  const zero3::StepTime& time = figures.time;
  figures.tokens = tokens_of(plan) * plan.config.accumulation_steps * plan.ranks;
  figures.tokens_per_s = static_cast<double>(figures.tokens) / time.seconds;
  figures.tflops = models::flops_per_token(*plan.model, plan.length) * figures.tokens_per_s /
                   static_cast<double>(plan.ranks) * 1e-12;
  figures.idle_share = std::max(0.0, 1.0 - busy(time, zero3::Resource::Compute) / time.seconds);
  figures.bottleneck = bottleneck_of(plan, time);
  figures.nvme_terabytes_written = static_cast<double>(figures.moved.total().nvme_write) *
                                   static_cast<double>(plan.ranks) * 1000 * 1e-12;
}

/// Returns the memory for the device tier beside these activations.
Result<std::uint64_t> device_budget(const PlanCase& plan, std::uint64_t activations) {
  if (!plan.gpu_bytes.has_value()) return *plan.device_bytes;
  const std::uint64_t gpu = *plan.gpu_bytes;
  const std::uint64_t others = activations + zero3::cuda_bytes;
  const std::string beside = format_size(activations) + " of activations and " +
                             format_size(zero3::cuda_bytes) + " of CUDA";
  const auto refused = [&](const std::string& got, std::uint64_t needed, const char* fix) {
    return make_error(ErrorCode::Exhausted,
                      fmt::format("{}, allowed {}, the GPU's memory: {} bytes missing; lower it{}",
                                  got, format_size(gpu), needed - gpu, fix));
  };
  if (others >= gpu) {
    return refused("train_micro_batch_size_per_gpu: got " + beside, others,
                   " or --seq-len, or set activation_checkpointing");
  }
  const std::uint64_t tier = plan.device_bytes.value_or(gpu - others);
  if (tier <= gpu - others) return tier;
  return refused("artesian.device_memory: got " + format_size(tier) + " beside " + beside,
                 tier + others, ", or train_micro_batch_size_per_gpu");
}

}  // namespace

ModelSeconds token_seconds(const models::ForwardFlops& forward, double flops_per_s) {
  return {forward.block / flops_per_s, 2 * forward.block / flops_per_s, forward.head / flops_per_s,
          2 * forward.head / flops_per_s};
}

ModelSeconds token_seconds(const models::DeviceWork& work, const DeviceRates& rates) {
  const auto seconds = [&](const models::StageWork& stage, double attention) {
    return stage.products / rates.products + stage.attention / attention +
           stage.bytes / rates.bytes;
  };
  return {seconds(work.block_forward, rates.attention),
          seconds(work.block_backward, rates.attention / 2),
          seconds(work.head_forward, rates.attention),
          seconds(work.head_backward, rates.attention / 2)};
}

ModelSeconds launch_seconds(const models::DeviceWork& work, double each) {
  return {work.block_forward.launches * each, work.block_backward.launches * each,
          work.head_forward.launches * each, work.head_backward.launches * each};
}

std::string memory_text(const PlanCase& plan, const PlanFigures& figures) {
  const std::string program =
      plan.program_bytes == 0 ? "" : " and " + format_size(plan.program_bytes) + " of the program";
  const std::string host = format_size(figures.host.used()) + " of the host";
  if (plan.gpu) return host + " tier" + program;
  return format_size(figures.activations) + " of activations beside " +
         format_size(figures.device.used()) + " of the device tier" +
         (program.empty() ? " and " : ", ") + host + "'s" + program;
}

const char* offload_name(zero3::Offload offload) noexcept {
  return offload == zero3::Offload::None ? "none" : offload == zero3::Offload::Cpu ? "cpu" : "nvme";
}

namespace {

/// Pools count with the size that is used; a stage's gradients, which are LibTorch tensors, count
/// for the device. A GPU's activations and tier are not in this memory.
Result<void> check_memory(const PlanCase& plan, const PlanFigures& figures) {
  const std::uint64_t tiers = (plan.gpu ? 0 : figures.device.used()) + figures.host.used();
  const std::uint64_t activations = plan.gpu ? 0 : figures.activations;
  const std::uint64_t needed = activations + tiers + plan.program_bytes;
  if (!plan.memory_max.has_value() || needed <= *plan.memory_max) return {};
  const bool mostly_tiers = tiers > activations;
  const bool mostly_device = !plan.gpu && figures.device.used() > figures.host.used();
  const std::string key = !mostly_tiers   ? "train_micro_batch_size_per_gpu"
                          : mostly_device ? "artesian.device_memory"
                                          : "artesian.host_memory";
  return make_error(
      ErrorCode::Exhausted,
      fmt::format("{}: got {}, allowed {}, the available memory: {} bytes missing; lower it{}", key,
                  memory_text(plan, figures), format_size(*plan.memory_max),
                  needed - *plan.memory_max,
                  mostly_tiers ? "" : " or --seq-len, or set activation_checkpointing"));
}

zero3::PlacementRequest placement_request(const PlanCase& plan) {
  return {.parameters = plan.parameters,
          .stages = plan.stages,
          .config = &plan.config,
          .compute_dtype = compute_dtype(plan),
          .separate_device = plan.gpu,
          .host_bytes = plan.host_bytes,
          .ranks = plan.ranks,
          .device_group = plan.gpu,
          .input_elements = models::stage_input_elements(*plan.model, tokens_of(plan)),
          .activation_bytes = plan.activation_bytes};
}

/// Makes the placement, and fills in memory and notes of the figures.
Result<zero3::Placement> place(const PlanCase& plan, PlanFigures& figures) {
  for (const auto& parameter : *plan.parameters) figures.elements += parameter.numel();
  zero3::PlacementRequest request = placement_request(plan);
  figures.activations = models::planned_activations(activation_run(plan), plan.host_bytes);
  ARTESIAN_TRY(device, device_budget(plan, figures.activations));
  request.device_bytes = device;
  ARTESIAN_TRY(placement, zero3::make_placement(request));
  const zero3::KeptInputs& inputs = placement.inputs;
  figures.activations = activations_of(plan, inputs);
  figures.device.budget = device;
  figures.host.budget = plan.host_bytes;
  figures.nvme.budget = free_for(plan.space, plan.config);
  figures.notes = placement.notes;
  take_memory(placement, figures);
  ARTESIAN_TRY_VOID(check_memory(plan, figures));
  return placement;
}

/// Times a save as made by zero3/checkpoint/checkpoints.h, on a disk like the one with the state.
void take_checkpoint(const PlanCase& plan, const zero3::Placement& placement,
                     PlanFigures& figures) {
  figures.checkpoint =
      placement.ranks * (zero3::checkpoint_data_bytes(zero3::trained_units(placement).images) +
                         zero3::checkpoint_data_bytes(zero3::frozen_units(placement).images));
  const zero3::Rates& rates = plan.rates;
  if (rates.disk_write <= 0.0 || rates.disk_read <= 0.0) return;
  const double written = static_cast<double>(figures.checkpoint) / static_cast<double>(plan.ranks);
  figures.save_seconds =
      written / rates.disk_write + static_cast<double>(figures.nvme.optimizer) / rates.disk_read;
}

}  // namespace

Result<PlanFigures> evaluate_memory(const PlanCase& plan) {
  PlanFigures figures;
  ARTESIAN_TRY(placement, place(plan, figures));
  static_cast<void>(placement);  // place() has filled the figures
  return figures;
}

double exposed_bus(const PlanCase& plan, const PlanFigures& planned) {
  if (planned.moved.total().bus == 0) return 0.0;
  PlanCase without = plan;
  without.rates.bus = 1e30;
  const auto figures = evaluate(without);
  return figures.has_value() ? std::max(0.0, planned.time.seconds - figures->time.seconds) : 0.0;
}

Result<PlanFigures> evaluate(const PlanCase& plan) {
  PlanFigures figures;
  ARTESIAN_TRY(placement, place(plan, figures));
  ARTESIAN_TRY_VOID(check_space(plan.space, plan.config, placement));
  ARTESIAN_TRY(done, simulate(plan, placement));
  figures.moved = done.moved;
  figures.nvme.buffers = done.shadows;
  take_checkpoint(plan, placement, figures);
  figures.time = std::move(done.time);
  figures.clipped_seconds = done.clipped_seconds;
  take_time(plan, figures);
  return figures;
}

}  // namespace artesian::tools
