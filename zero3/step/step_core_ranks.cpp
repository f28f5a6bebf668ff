// The part of StepCore that turns several ranks into one run.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/checksum.h"
#include "zero3/config/optimizers.h"
#include "zero3/step/lr_schedule.h"
#include "zero3/step/step_core.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t of_gradients = 1;  // stands for gradients in place of shares
constexpr const char* go_on_by = "; call zero_grad() on all ranks, and go on";

/// For a message about where a rank is, which it has sent.
std::string name_of(const Layout& layout, std::uint64_t unit) {
  return unit < layout.units.size() ? layout.units[unit].name : std::to_string(unit);
}

}  // namespace

/// Compares what must be equal on all ranks, and distributes rank 0's decisions.
Result<void> StepCore::agree() {
  kernels::Digest model;
  for (const ParameterSpec& parameter : shape_.parameters) {
    model.update(parameter.name.data(), parameter.name.size() + 1);
    model.update(parameter.shape.data(), parameter.shape.size() * sizeof(std::int64_t));
    const std::array<std::uint32_t, 2> rest{parameter.group, parameter.trainable ? 1u : 0u};
    model.update(rest.data(), sizeof rest);
  }
  for (const StageSpec& stage : shape_.stages) {
    model.update(stage.parameters.data(), stage.parameters.size() * sizeof(std::uint32_t));
  }
  Agreement::Facts facts = options_.facts;
  const auto add = [&](const char* name, const auto& value) {
    facts.emplace_back(name, fmt::format("{}", value));
  };
  add("the model's parameters", shape_.parameters.size());
  add("the model's names, shapes and stages", model.hex());
  add("train_micro_batch_size_per_gpu", config_.micro_batch_size);
  add("gradient_accumulation_steps", config_.accumulation_steps);
  add("gradient_clipping", config_.gradient_clipping);
  add("the parameters' type", dtype_name(config_.param_dtype));
  add("data_types.grad_accum_dtype", dtype_name(config_.grad_accum_dtype));
  add("artesian.compute_dtype", dtype_name(options_.compute_dtype));
  add("activation_checkpointing", config_.activation_checkpointing);
  add("communication_data_type",
      dtype_name(config_.communication_dtype.value_or(config_.param_dtype)));
  add("artesian.reduction", config_.artesian.reduction == Reduction::Fast ? "fast" : "exact");
  for (const std::uint64_t updates : {0, 1, 10, 100, 1000, 10'000}) {
    facts.emplace_back(
        fmt::format("the learning rate behind {} updates", updates),
        fmt::format("{}", learning_rate(config_.scheduler, config_.optimizer, updates)));
  }
  const OptimizerConfig& optimizer = config_.optimizer;
  add("optimizer.type", type_name(optimizer));
  add("the optimizer's moments", dtype_name(config_.artesian.moments));
  add("optimizer.params.betas[0] or momentum", optimizer.beta1);
  add("optimizer.params.betas[1] or alpha", optimizer.beta2);
  add("optimizer.params.eps", optimizer.eps);
  add("optimizer.params.weight_decay", optimizer.weight_decay);
  add("optimizer.params.bias_correction", optimizer.bias_correction);
  add("optimizer.params.dampening", optimizer.dampening);
  add("optimizer.params.nesterov", optimizer.nesterov);
  add("optimizer.params.lr_decay", optimizer.lr_decay);
  add("optimizer.params.min_coeff", optimizer.min_coeff);
  add("optimizer.params.max_coeff", optimizer.max_coeff);
  ARTESIAN_TRY_VOID(agreement_.compare(facts));
  ARTESIAN_TRY(run_id, agreement_.of_first(run_id_, "the run's number"));
  run_id_ = run_id;
  for (const auto budget : {&Budgets::device, &Budgets::host, &Budgets::activations}) {
    ARTESIAN_TRY(least, agreement_.least(options_.budgets.*budget, "budgets"));
    options_.budgets.*budget = least;
  }
  return {};
}

/// Refuses what is not implemented with several ranks.
Result<void> StepCore::check_ranks() const {
  if (options_.group == nullptr) return {};
  const auto unsupported = [&](const char* what) {
    return make_error(ErrorCode::Unsupported,
                      fmt::format("not supported yet with {} ranks: {}", ranks(), what));
  };
  const DType sent = config_.communication_dtype.value_or(config_.param_dtype);
  if (sent != config_.param_dtype && dtype_size(sent) == dtype_size(config_.param_dtype)) {
    return unsupported(
        fmt::format("communication_data_type {} with {} parameters; theirs, fp32 or none",
                    dtype_name(sent), dtype_name(config_.param_dtype))
            .c_str());
  }
  const auto& parameters = shape_.parameters;  // frozen parameters are not updated
  const bool frozen = std::any_of(parameters.begin(), parameters.end(),
                                  [](const ParameterSpec& each) { return !each.trainable; });
  const bool whole = (options_.hooked || separate_device()) && whole_params();
  if (whole && config_.zero.offload_param.device == Offload::Nvme && !frozen) {
    return unsupported("zero_optimization.offload_param.device nvme; cpu or none");
  }
  return {};
}

/// Gathers the shares of the units being entered, if ranks hold only their own shares. It also
/// begins to gather those of the next access if all ranks have their shares of it in memory, so
/// that computing overlaps. Which shares are missing follows from earlier accesses and budgets,
/// which are equal on all ranks, so all ranks lack the same.
Result<void> StepCore::gather_shares(const AccessOrder::Access& units) {
  if (!state_->placement().params_cut) return {};
  std::vector<std::uint32_t> lacking;
  for (const std::uint32_t unit : units) {
    if (residency_->lacks_shares(unit)) lacking.push_back(unit);
  }
  const std::size_t now = lacking.size();
  const AccessOrder::Access* const next =
      bus_.has_value() ? nullptr : prefetcher_->next_access();  // a device computes meanwhile
  bool ready = next != nullptr;
  for (const std::uint32_t unit : next != nullptr ? *next : AccessOrder::Access()) {
    const bool entered = std::find(units.begin(), units.end(), unit) != units.end();
    if (entered || !layout().units[unit].is_cut() || residency_->is_whole(unit)) continue;
    lacking.push_back(unit);
    ready = ready && residency_->has_share(unit);
  }
  if (lacking.empty()) return {};
  const std::uint64_t digest =
      kernels::checksum64(lacking.data(), lacking.size() * sizeof(std::uint32_t), now);
  const auto all_ready = agreement_.enter(
      step_ + 1, micro_batches_,
      {.first = units.front(), .units = digest, .evaluates = evaluating_, .ready = ready},
      [this](std::uint64_t unit) { return name_of(layout(), unit); });
  if (!all_ready.has_value()) {
    return agreement_.refused() ? give_pass_up(units, all_ready.error())
                                : Result<void>(all_ready.error());
  }
  for (std::size_t place = 0; place < (*all_ready ? lacking.size() : now); ++place) {
    // Until settle_shares() this adds one more pin to that of the user.
    ARTESIAN_TRY_VOID(prefetcher_->hold(lacking[place]));
    ARTESIAN_TRY_VOID(begin_gather(lacking[place]));
    if (place + 1 == now) ARTESIAN_TRY_VOID(settle_shares());
  }
  return {};
}

/// Between devices the bytes have arrived when this returns; the model computes meanwhile.
Result<void> StepCore::begin_gather(std::uint32_t unit) {
  std::vector<std::span<std::byte>> received = residency_->shares(unit);
  const std::vector<std::span<const std::byte>> sent(ranks(), received[state_->rank()]);
  received[state_->rank()] = {};
  const comm::What what{"parameters of", layout().units[unit].name};
  if (bus_.has_value()) {
    ARTESIAN_TRY_VOID(residency_->order_bus(unit));
    ARTESIAN_TRY_VOID(bus_->all_to_all(sent, received, what));
    gathers_.push_back({unit, nullptr});
    return {};
  }
  ARTESIAN_TRY(begun, options_.group->begin_all_to_all(sent, received, what));
  gathers_.push_back({unit, std::move(begun)});
  return {};
}

/// Called by any rank at any time: nothing is begun here.
Result<void> StepCore::settle_shares() {
  for (Gather& each : std::exchange(gathers_, {})) {
    if (each.begun != nullptr) ARTESIAN_TRY_VOID(options_.group->end(std::move(each.begun)));
    ARTESIAN_TRY_VOID(residency_->join_shares(each.unit));
    ARTESIAN_TRY_VOID(prefetcher_->release(each.unit));
  }
  return {};
}

/// Where all ranks are together: units that stay gathered are whole from here on, so that they can
/// be read without the other ranks.
Result<void> StepCore::gather_persistent_shares() {
  if (!meets_in_passes()) return {};
  for (std::uint32_t unit = 0; unit < layout().units.size(); ++unit) {
    if (!layout().units[unit].persistent || !residency_->lacks_shares(unit)) continue;
    ARTESIAN_TRY_VOID(prefetcher_->hold(unit));
    ARTESIAN_TRY_VOID(begin_gather(unit));
  }
  return settle_shares();
}

/// Another rank has refused its batch while this one entered `units`, or none.
Result<void> StepCore::give_pass_up(const AccessOrder::Access& units, Error refused) {
  ARTESIAN_TRY_VOID(prefetcher_->leave(units));
  given_up_ = true;
  if (evaluating_) return refused;
  awaited_ = Awaited::Nowhere;
  break_pass();
  refused.message += go_on_by;
  return refused;
}

Result<void> StepCore::send_gradients(std::uint32_t unit, bool complete) {
  if (!meets_in_passes() || step_state_ != StepState::Backward) return {};
  if (placement().exchange.once) return {};
  given_up_ = false;
  const auto all_complete = agreement_.enter(
      step_ + 1, micro_batches_, {.first = unit, .units = of_gradients, .ready = complete},
      [this](std::uint64_t other) { return name_of(layout(), other); });
  if (!all_complete.has_value()) {
    return agreement_.refused() ? give_pass_up({}, all_complete.error())
                                : remember(Result<void>(all_complete.error()));
  }
  if (!*all_complete) return {};
  return remember(gradients_->add_held({&unit, 1}, shape_.parameters));
}

/// Called when all ranks have computed their gradients of a micro-batch.
Result<void> StepCore::meet_behind_backward() {
  std::vector<double> losses = std::exchange(losses_pending_, {});
  losses.resize(1);
  auto of_all = agreement_.end_forward(step_ + 1, micro_batches_, losses);
  awaited_ = Awaited::Nowhere;
  if (!of_all.has_value() && agreement_.refused()) {
    break_pass();
    return make_error(ErrorCode::Invalid, of_all.error().message + go_on_by);
  }
  ARTESIAN_TRY(known, remember(std::move(of_all)));
  see_losses(known);
  if (placement().exchange.once) return {};
  std::vector<std::uint32_t> trainable;
  for (std::uint32_t unit = 0; unit < layout().units.size(); ++unit) {
    if (layout().units[unit].trainable) trainable.push_back(unit);
  }
  return remember(gradients_->add_held(trainable, shape_.parameters));
}

/// The other ranks learn of it where they wait.
Result<void> StepCore::give_micro_batch_up() {
  if (gradients_->holds()) gradients_->drop_held();
  if (std::exchange(awaited_, Awaited::Nowhere) == Awaited::Nowhere) return {};
  return remember(agreement_.refuse(step_ + 1, micro_batches_));
}

Result<void> StepCore::refuse_forward() noexcept {
  ARTESIAN_CHECK(step_state_ == StepState::Forward && entered_.empty(), entered_.size());
  if (options_.group != nullptr) {  // the other ranks finish their micro-batch
    ARTESIAN_TRY_VOID(remember(complete_pending()));
    ARTESIAN_TRY_VOID(remember(agreement_.refuse(step_ + 1, micro_batches_)));
  }
  take_forward_back();
  return {};
}

/// Ends an evaluation with the other ranks, unless they know already that it is given up.
Result<void> StepCore::meet_behind_evaluation(bool refused) {
  if (!meets_in_passes() || given_up_) return {};
  return refused ? agreement_.refuse(step_ + 1, micro_batches_)
                 : agreement_.end_evaluation(step_ + 1, micro_batches_);
}

}  // namespace artesian::zero3
