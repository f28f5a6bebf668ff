#include "zero3/unit_graphs.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "zero3/from_torch.h"
#include "zero3/step_trace.h"

namespace artesian::zero3 {
namespace {

Result<void> check_input(const Batch& batch) {
  if (!batch.input.defined()) {
    return make_error(ErrorCode::Invalid, "batch.input: got an undefined tensor");
  }
  for (const at::Tensor* tensor : {&batch.input, &batch.targets}) {
    if (!tensor->defined() || tensor->is_cpu()) continue;
    return make_error(ErrorCode::Invalid, std::string("batch: got a tensor on ") +
                                              tensor->device().str() + ", allowed cpu");
  }
  return {};
}

/// What the last stage returns to forward.
Result<void> check_loss(const at::Tensor& loss) {
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    return make_error(ErrorCode::Invalid,
                      "forward() of the last stage returned a tensor of shape " +
                          c10::str(loss.sizes()) + " and type " +
                          c10::toString(loss.scalar_type()) +
                          ", allowed one floating-point number: the mean loss of the batch");
  }
  if (!loss.requires_grad()) {
    return make_error(ErrorCode::Invalid,
                      "forward() of the last stage returned a loss that depends on no parameter");
  }
  return {};
}

}  // namespace

UnitGraphs::UnitGraphs(Module& module, ModelState& state, ParameterTensors& tensors,
                       Prefetcher& prefetcher, Gradients& gradients, c10::Device device,
                       Timeline* timeline)
    : module_(module),
      state_(state),
      layout_(state.layout()),
      tensors_(tensors),
      prefetcher_(prefetcher),
      gradients_(gradients),
      device_(device),
      timeline_(timeline),
      graphs_(module.stages().size()) {}

void UnitGraphs::span(const char* direction, std::size_t stage, std::uint64_t begin_ns) {
  if (timeline_ == nullptr) return;
  timeline_->add(Lane::Compute, module_.stages()[stage].name + direction, begin_ns,
                 system_clock().now_ns());
}

Result<void> UnitGraphs::enter(const Trace::Access& units) {
  ARTESIAN_TRY_VOID(prefetcher_.enter(units));
  for (const auto unit : units) tensors_.bind(unit, prefetcher_.data(unit));
  return {};
}

Result<void> UnitGraphs::leave(const Trace::Access& units) {
  for (const auto unit : units) tensors_.unbind(unit);
  return prefetcher_.leave(units);
}

/// The stage's parameters that take part in its graph: all but the looked-up one.
std::vector<std::uint32_t> UnitGraphs::graph_parameters(std::size_t stage) const {
  std::vector<std::uint32_t> parameters;
  const StageSpec& spec = module_.stages()[stage];
  for (const auto parameter : spec.parameters) {
    if (spec.lookup != parameter) parameters.push_back(parameter);
  }
  return parameters;
}

std::vector<at::Tensor> UnitGraphs::tensors_of(const std::vector<std::uint32_t>& parameters) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(parameters.size());
  for (const auto parameter : parameters) tensors.push_back(tensors_.at(parameter));
  return tensors;
}

Result<Result<double>> UnitGraphs::forward(const Batch& batch) {
  ARTESIAN_CHECK(!pending_);
  // A copy: the caller may reuse its memory, and backward needs what forward saw.
  auto copied = from_torch([&]() -> Result<void> {
    ARTESIAN_TRY_VOID(check_input(batch));
    const bool looks_up = module_.stages().front().lookup.has_value();
    input_ = looks_up ? batch.input.to(at::kLong, /*non_blocking=*/false, /*copy=*/true)
                      : batch.input.detach().clone();
    ids_ = looks_up ? input_.flatten() : at::Tensor();
    input_ = input_.to(device_);
    targets_ = batch.targets.defined() ? batch.targets.detach().clone().to(device_) : at::Tensor();
    const std::int64_t count = looks_up || input_.dim() == 0 ? input_.numel() : input_.size(0);
    tokens_ = static_cast<std::uint64_t>(count);
    return {};
  });
  if (!copied.has_value()) return Result<double>(std::move(copied).error());
  const std::size_t position = prefetcher_.position();
  ARTESIAN_TRY(output, run_stages({input_, targets_}, Keep::Graphs));
  auto loss = from_torch([&]() -> Result<double> {
    ARTESIAN_TRY(value, std::move(output));
    ARTESIAN_TRY_VOID(check_loss(value));
    return value.item<double>();
  });
  pending_ = loss.has_value();
  if (!pending_) {  // the batch's fault: as if it had not been tried
    forget();
    prefetcher_.rewind(position);
  }
  return loss;
}

Result<Result<at::Tensor>> UnitGraphs::evaluate(const Batch& batch) {
  auto checked = from_torch([&] { return check_input(batch); });
  if (!checked.has_value()) return Result<at::Tensor>(std::move(checked).error());
  auto input = from_torch([&]() -> Result<at::Tensor> { return batch.input.to(device_); });
  if (!input.has_value()) return input;
  auto targets = from_torch([&]() -> Result<at::Tensor> {
    return batch.targets.defined() ? batch.targets.to(device_) : at::Tensor();
  });
  if (!targets.has_value()) return targets;
  const std::size_t position = prefetcher_.position();
  ARTESIAN_TRY(output, run_stages({*input, *targets}, Keep::Nothing));
  if (!output.has_value()) prefetcher_.rewind(position);
  return output;
}

Result<Result<at::Tensor>> UnitGraphs::run_stages(const Batch& batch, Keep keep) {
  at::Tensor activation = batch.input.detach();
  for (std::size_t stage = 0; stage < graphs_.size(); ++stage) {
    ARTESIAN_TRY_VOID(enter(layout_.stages[stage]));
    const std::uint64_t begin = system_clock().now_ns();
    auto output = from_torch([&] {
      const tiering::ComputeScope computing(state_.device());
      return run_stage(stage, activation, batch, keep);
    });
    forward_ns_ += system_clock().now_ns() - begin;
    span(keep == Keep::Graphs ? " forward" : " evaluate", stage, begin);
    ARTESIAN_TRY_VOID(leave(layout_.stages[stage]));
    if (!output.has_value()) {
      Error error = std::move(output).error();
      error.message = "stage " + module_.stages()[stage].name + ": " + error.message;
      return Result<at::Tensor>(std::move(error));
    }
    activation = std::move(output).value();
  }
  return Result<at::Tensor>(std::move(activation));
}

Result<at::Tensor> UnitGraphs::run_stage(std::size_t stage, const at::Tensor& before,
                                         const Batch& batch, Keep keep) {
  const at::AutoGradMode mode(keep == Keep::Graphs);
  const auto& lookup = module_.stages()[stage].lookup;
  at::Tensor input = before.detach();
  if (lookup.has_value()) {
    const at::NoGradGuard no_grad;
    input = at::embedding(tensors_.at(*lookup), batch.input);
  }
  if (keep == Keep::Graphs && (lookup.has_value() || before.requires_grad())) {
    input.requires_grad_(true);
  }
  at::Tensor output = module_.forward(stage, input, tensors_of(graph_parameters(stage)), batch);
  if (!output.defined()) return make_error(ErrorCode::Invalid, "forward() returned no tensor");
  if (keep == Keep::Graphs) graphs_[stage] = {input, output};
  return output;
}

/// Lets go of the graphs and the batch of the last forward.
void UnitGraphs::forget() {
  for (StageGraph& graph : graphs_) graph = {};
  input_ = targets_ = ids_ = at::Tensor();
  late_.reset();
  pending_ = false;
}

Result<void> UnitGraphs::backward(double loss_multiplier) {
  ARTESIAN_CHECK(pending_);
  auto done = from_torch([&] { return backward_stages(loss_multiplier); });
  if (done.has_value()) forget();
  return done;
}

Result<void> UnitGraphs::backward_stages(double loss_multiplier) {
  const at::Tensor& loss = graphs_.back().output;
  at::Tensor gradient = at::full(loss.sizes(), loss_multiplier, loss.options());
  for (std::size_t stage = graphs_.size(); stage-- > 0;) {
    // Below a stage whose input needs no gradient, no parameter gets one.
    if (!gradient.defined() || !graphs_[stage].output.requires_grad()) break;
    ARTESIAN_TRY_VOID(backward_stage(stage, gradient));
  }
  if (late_.has_value()) ARTESIAN_TRY_VOID(accumulate(*late_));
  return {};
}

/// In: the gradient of the stage's output; out: that of its input, undefined if it needs none.
Result<void> UnitGraphs::backward_stage(std::size_t stage, at::Tensor& gradient) {
  const Trace::Access units = backward_units(layout_, module_.stages(), stage);
  ARTESIAN_TRY_VOID(enter(units));
  const std::uint64_t begin = system_clock().now_ns();
  const auto parameters = graph_parameters(stage);
  const auto gradients = differentiate(stage, parameters, gradient);
  ARTESIAN_TRY(made, collect(parameters, gradients));
  if (module_.stages()[stage].lookup.has_value() && gradient.defined()) {
    const std::int64_t width = gradient.size(-1);
    row_gradients_.push_back({ids_, gradient.reshape({-1, width}).to(at::kFloat).contiguous()});
  }
  backward_ns_ += system_clock().now_ns() - begin;
  span(" backward", stage, begin);
  const std::uint64_t rounding = system_clock().now_ns();
  if (state_.separate_device()) {  // while the device computes this stage, those of the one before
    std::optional<StageGradients> before = std::exchange(late_, std::move(made));
    if (before.has_value()) ARTESIAN_TRY_VOID(accumulate(*before));
  } else {
    ARTESIAN_TRY_VOID(accumulate(made));
  }
  span(" gradients", stage, rounding);
  return leave(units);
}

/// The gradients of a stage's parameters, and in place of its output's that of its input.
std::vector<at::Tensor> UnitGraphs::differentiate(std::size_t stage,
                                                  const std::vector<std::uint32_t>& parameters,
                                                  at::Tensor& gradient) {
  const tiering::ComputeScope computing(state_.device());
  std::vector<at::Tensor> inputs = tensors_of(parameters);
  const bool needs_input = graphs_[stage].input.requires_grad();
  if (needs_input) inputs.push_back(graphs_[stage].input);
  auto gradients = torch::autograd::grad({graphs_[stage].output}, inputs, {gradient},
                                         /*retain_graph=*/c10::nullopt, /*create_graph=*/false,
                                         /*allow_unused=*/true);
  graphs_[stage] = {};
  gradient = needs_input ? gradients.back() : at::Tensor();
  gradients.resize(parameters.size());
  return gradients;
}

/// A fence after all that the device was given to compute so far.
Result<tiering::DeviceFence> UnitGraphs::written() {
  if (!state_.separate_device()) return tiering::DeviceFence{};
  return state_.device().record(tiering::Queue::Compute);
}

Result<UnitGraphs::StageGradients> UnitGraphs::collect(const std::vector<std::uint32_t>& parameters,
                                                       const std::vector<at::Tensor>& gradients) {
  StageGradients made;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!gradients[index].defined()) continue;  // not used by this forward: zero
    const ParameterPlace& place = layout_.places[parameters[index]];
    const auto dtype = scalar_type(gradients_.added_dtype(place.unit));
    made.keep.push_back(gradients[index].to(dtype).contiguous());
    made.by_unit[place.unit].push_back({parameters[index], made.keep.back().const_data_ptr()});
    bytes_to_host_ += place.numel * gradients_.element_size();
  }
  ARTESIAN_TRY(complete, written());
  made.written = complete;
  return made;
}

Result<void> UnitGraphs::accumulate(const StageGradients& made) {
  for (const auto& [unit, list] : made.by_unit) {
    ARTESIAN_TRY_VOID(gradients_.add(unit, list, made.written));
  }
  return {};
}

/// The rows' gradients of all micro-batches, from a separate device.
Result<void> UnitGraphs::bring_rows_to_host() {
  if (!state_.separate_device()) return {};
  ARTESIAN_TRY(complete, written());
  for (RowGradients& batch : row_gradients_) {
    const at::Tensor target = at::empty(batch.gradient.sizes(), at::kFloat);
    const auto* source = static_cast<const std::byte*>(batch.gradient.const_data_ptr());
    ARTESIAN_TRY_VOID(state_.reader().read_into(
        static_cast<std::byte*>(target.mutable_data_ptr()),
        {source, static_cast<std::uint64_t>(batch.gradient.nbytes())}, complete));
    batch.gradient = target;
  }
  return {};
}

Result<void> UnitGraphs::finish_gradients() {
  ARTESIAN_TRY_VOID(bring_rows_to_host());
  std::vector<std::int64_t> rows;
  std::vector<const float*> row_gradients;
  std::uint64_t width = 0;
  for (const RowGradients& batch : row_gradients_) {
    width = static_cast<std::uint64_t>(batch.gradient.size(1));
    const auto* ids = batch.rows.const_data_ptr<std::int64_t>();
    const auto* data = batch.gradient.const_data_ptr<float>();
    for (std::int64_t position = 0; position < batch.rows.numel(); ++position) {
      rows.push_back(ids[position]);
      row_gradients.push_back(data + static_cast<std::uint64_t>(position) * width);
    }
  }
  const auto& lookup = module_.stages().front().lookup;
  if (lookup.has_value() && !rows.empty()) {
    ARTESIAN_TRY_VOID(gradients_.add_rows(*lookup, rows, row_gradients, width));
  }
  row_gradients_.clear();
  return {};
}

}  // namespace artesian::zero3
