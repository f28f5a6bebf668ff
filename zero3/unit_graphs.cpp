#include "zero3/unit_graphs.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "zero3/from_torch.h"

namespace artesian::zero3 {

UnitGraphs::UnitGraphs(Module& module, const Layout& layout, ParameterTensors& tensors,
                       Prefetcher& prefetcher, Gradients& gradients, Timeline* timeline,
                       std::int64_t samples, std::int64_t length)
    : module_(module),
      layout_(layout),
      tensors_(tensors),
      prefetcher_(prefetcher),
      gradients_(gradients),
      timeline_(timeline),
      samples_(samples),
      length_(length),
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
  for (const auto parameter : parameters) tensors.push_back(tensors_.at(parameter));
  return tensors;
}

/// Backward needs no values of the looked-up parameter: its rows' gradients are all there is.
Trace::Access UnitGraphs::backward_units(std::size_t stage) const {
  const StageSpec& spec = module_.stages()[stage];
  Trace::Access units = layout_.stages[stage];
  if (spec.lookup.has_value()) std::erase(units, layout_.places[*spec.lookup].unit);
  return units;
}

Result<double> UnitGraphs::run(std::span<const std::int64_t> ids,
                               std::span<const std::int64_t> targets, double loss_multiplier) {
  const auto tensor = [&](std::span<const std::int64_t> tokens) {
    auto copy = at::empty({samples_, length_}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), copy.mutable_data_ptr<std::int64_t>());
    return copy;
  };
  return from_torch([&]() -> Result<double> {
    const at::Tensor id_tensor = tensor(ids);
    const at::Tensor target_tensor = tensor(targets);
    const Batch batch{id_tensor, target_tensor};
    ARTESIAN_TRY_VOID(forward(batch));
    const auto loss = graphs_.back().output.item<double>();
    ARTESIAN_TRY_VOID(backward(batch, loss_multiplier));
    return loss;
  });
}

Result<void> UnitGraphs::forward(const Batch& batch) {
  at::Tensor activation;
  for (std::size_t stage = 0; stage < graphs_.size(); ++stage) {
    ARTESIAN_TRY_VOID(enter(layout_.stages[stage]));
    const std::uint64_t begin = system_clock().now_ns();
    const auto& lookup = module_.stages()[stage].lookup;
    if (lookup.has_value()) {
      const at::NoGradGuard no_grad;
      activation = at::embedding(tensors_.at(*lookup), batch.ids);
    }
    StageGraph& graph = graphs_[stage];
    graph.input = activation.detach().requires_grad_(true);
    graph.output = module_.forward(stage, graph.input, tensors_of(graph_parameters(stage)), batch);
    activation = graph.output;
    forward_ns_ += system_clock().now_ns() - begin;
    span(" forward", stage, begin);
    ARTESIAN_TRY_VOID(leave(layout_.stages[stage]));
  }
  return {};
}

Result<void> UnitGraphs::backward(const Batch& batch, double loss_multiplier) {
  at::Tensor gradient = at::scalar_tensor(loss_multiplier, graphs_.back().output.options());
  for (std::size_t stage = graphs_.size(); stage-- > 0;) {
    const Trace::Access units = backward_units(stage);
    ARTESIAN_TRY_VOID(enter(units));
    const std::uint64_t begin = system_clock().now_ns();
    const auto parameters = graph_parameters(stage);
    std::vector<at::Tensor> inputs = tensors_of(parameters);
    inputs.push_back(graphs_[stage].input);
    auto gradients = torch::autograd::grad({graphs_[stage].output}, inputs, {gradient});
    graphs_[stage] = {};
    gradient = gradients.back();
    gradients.pop_back();
    if (module_.stages()[stage].lookup.has_value()) {
      const std::int64_t width = gradient.size(-1);
      row_gradients_.push_back(
          {batch.ids.flatten(), gradient.reshape({-1, width}).to(at::kFloat).contiguous()});
    }
    backward_ns_ += system_clock().now_ns() - begin;
    span(" backward", stage, begin);
    const std::uint64_t rounding = system_clock().now_ns();
    ARTESIAN_TRY_VOID(accumulate(parameters, gradients));
    span(" gradients", stage, rounding);
    ARTESIAN_TRY_VOID(leave(units));
  }
  return {};
}

Result<void> UnitGraphs::accumulate(const std::vector<std::uint32_t>& parameters,
                                    const std::vector<at::Tensor>& gradients) {
  std::map<std::uint32_t, std::vector<ParameterGradient>> by_unit;
  std::vector<at::Tensor> keep;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    keep.push_back(gradients[index].to(at::kFloat).contiguous());
    const ParameterPlace& place = layout_.places[parameters[index]];
    by_unit[place.unit].push_back({parameters[index], keep.back().const_data_ptr<float>()});
    bytes_to_host_ += place.numel * gradients_.element_size();
  }
  for (const auto& [unit, list] : by_unit) ARTESIAN_TRY_VOID(gradients_.add(unit, list));
  return {};
}

Result<void> UnitGraphs::finish_gradients() {
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
