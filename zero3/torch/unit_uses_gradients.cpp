// The part of UnitUses that takes gradients: those passed by nodes, summed if a parameter has
// several, are added to the step.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <span>
#include <utility>

#include "zero3/torch/unit_use.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

Result<void> UnitUses::take(Use& use, std::uint32_t parameter, const at::Tensor& gradient) {
  Use::Sum& sum = use.sum_of(parameter);
  if (gradient.defined()) sum.held.add(gradient);
  if (sum.left > 0) --sum.left;
  if (sum.left > 0 || !sum.held.gradient.defined()) return {};
  return add(parameter, std::exchange(sum.held, {}).gradient);
}

void UnitUses::Held::add(const at::Tensor& more) {
  if (!gradient.defined()) {
    gradient = more;
  } else if (own) {
    gradient.add_(more);
  } else {  // autograd may have passed the first one to others, too
    const at::NoGradGuard no_grad;
    gradient = gradient + more;
    own = true;
  }
}

Result<void> UnitUses::check_added(std::uint32_t parameter, const at::Tensor& gradient) const {
  const std::string& name = core_.shape().parameters[parameter].name;
  if (gradient.requires_grad()) {
    return make_error(ErrorCode::Unsupported, "backward(create_graph=True): parameter \"" + name +
                                                  "\": not supported: gradients are not kept as "
                                                  "tensors; leave create_graph out");
  }
  if (gradient.layout() == c10::kStrided) return {};
  return make_error(ErrorCode::Unsupported, "parameter \"" + name +
                                                "\": a sparse gradient is not supported yet: make "
                                                "the nn.Embedding with sparse=False");
}

Result<void> UnitUses::add(std::uint32_t parameter, const at::Tensor& gradient) {
  ARTESIAN_TRY_VOID(check_added(parameter, gradient));
  if (!several_[parameter]) return add_once(parameter, gradient);
  ARTESIAN_TRY_VOID(ready_for_gradients());
  ARTESIAN_TRY_VOID(reopen(layout_.places[parameter].unit));
  held_[parameter].add(gradient.to(scalar_type(core_.config().param_dtype)));
  return {};
}

/// Adds what the ending backward has computed for parameters with several uses.
Result<void> UnitUses::add_held() {
  for (const auto& [parameter, held] : std::exchange(held_, {})) {
    ARTESIAN_TRY_VOID(add_once(parameter, held.gradient));
    const auto stage = owner_of(parameter);
    ARTESIAN_TRY_VOID(core_.remember(core_.stage_accumulated(stage)));
  }
  return {};
}

/// Called when backward is done with a use: with several ranks, which all are here if parameters
/// are cut, sends gradients of units that no other use has.
Result<void> UnitUses::send_gradients(const Use& use) {
  if (!core_.meets_in_passes()) return {};
  for (const std::uint32_t unit : use.units) {
    if (!layout_.units[unit].trainable) continue;
    const bool left = link_->awaited[unit].load(std::memory_order_relaxed) != 0;
    ARTESIAN_TRY_VOID(core_.send_gradients(unit, !left && !holds_any_of(unit)));
  }
  return {};
}

/// Called when a call begins that reads a stage's parameters.
void UnitUses::count_call(std::uint32_t stage) {
  if (current_task() != no_task || evaluating_) return;
  for (const std::uint32_t parameter : core_.shape().stages[stage].parameters) {
    if (++calls_[parameter] > 1) several_[parameter] = true;
  }
}

Result<void> UnitUses::add_once(std::uint32_t parameter, const at::Tensor& gradient) {
  ARTESIAN_TRY_VOID(ready_for_gradients());
  const ParameterPlace& place = layout_.places[parameter];
  ARTESIAN_TRY_VOID(reopen(place.unit));
  ARTESIAN_CHECK(gradient.numel() == static_cast<std::int64_t>(place.numel), parameter);
  const auto dtype = scalar_type(core_.gradients().added_dtype(place.unit));
  const at::Tensor given = as_part_of_mean(gradient).to(dtype).contiguous();
  added_[parameter] = true;
  core_.counters().bytes_to_host += place.numel * core_.gradients().element_size();
  const ParameterGradient added[] = {{parameter, given.const_data_ptr()}};
  ARTESIAN_TRY(written, core_.state().device().record(tiering::Queue::Compute));
  return core_.remember(core_.add(place.unit, added, written));
}

/// Scales a gradient of this rank's own loss, which is a part of the mean over all ranks and, with
/// divide_own_losses(), over the accumulation steps. For an announced loss the caller has done
/// this.
at::Tensor UnitUses::as_part_of_mean(const at::Tensor& gradient) const {
  const double parts = own_parts_ * static_cast<double>(core_.ranks());
  if (parts == 1.0 || loss_.has_value()) return gradient;
  const at::NoGradGuard no_grad;
  return gradient / parts;
}

/// Makes sure that a backward of the step is open.
Result<void> UnitUses::ready_for_gradients() {
  if (core_.state_of_step() == StepState::Backward) return {};
  if (!loss_.has_value() && !scaled_loss_.has_value() && core_.loss_scale() != 1.0) {
    return make_error(ErrorCode::Invalid,
                      "Loss scaling is required; use engine.backward(loss), or "
                      "engine.scale(loss).backward()");
  }
  ARTESIAN_TRY_VOID(core_.take_update_back());
  // The caller has read a gradient, which ended the step's last micro-batch; its loss is counted.
  const bool again = core_.state_of_step() == StepState::Full;
  if (again) {
    ARTESIAN_TRY_VOID(core_.begin_again("backward"));
  } else if (core_.state_of_step() == StepState::Forward) {
    ARTESIAN_TRY_VOID(core_.end_forward({}));
  } else if (core_.state_of_step() != StepState::AwaitsBackward) {
    // A backward over an older graph, whose forward has had one backward already.
    ARTESIAN_TRY_VOID(core_.begin_forward(1, "backward"));
    ARTESIAN_TRY_VOID(core_.end_forward({}));
  }
  const double loss[] = {loss_.value_or(scaled_loss_.value_or(0.0))};
  const std::span<const double> losses(loss, again ? 0 : 1);
  scaled_loss_.reset();
  std::vector<GroupStep> constants = constants_if_last();
  const bool last = !constants.empty();
  return core_.begin_backward(
      {.last = last, .learning_rate = {}, .groups = std::move(constants), .losses = losses});
}

}  // namespace artesian::zero3
