#include "zero3/torch/unit_graphs.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "zero3/plan/step_accesses.h"
#include "zero3/torch/between_operators.h"
#include "zero3/torch/from_torch.h"

namespace artesian::zero3 {
namespace {

const std::function<void()> nothing;

/// A row outside of the first stage's table is refused here: on a GPU it would make all further
/// CUDA calls of the process fail.
Result<void> check_rows(const Module& module, const at::Tensor& rows) {
  const auto& lookup = module.stages().front().lookup;
  if (!lookup.has_value() || rows.numel() == 0) return {};
  const ParameterSpec& table = module.parameters()[*lookup];
  const auto [least, most] = rows.aminmax();
  const auto low = least.item<std::int64_t>();
  const auto high = most.item<std::int64_t>();
  if (low >= 0 && high < table.shape.front()) return {};
  return make_error(ErrorCode::Invalid,
                    fmt::format("batch.input: got {}, allowed 0 to {}, the rows "
                                "of \"{}\"",
                                low < 0 ? low : high, table.shape.front() - 1, table.name));
}

Result<void> check_input(const Module& module, const Batch& batch) {
  if (!batch.input.defined()) {
    return make_error(ErrorCode::Invalid, "batch.input: got an undefined tensor");
  }
  for (const at::Tensor* tensor : {&batch.input, &batch.targets}) {
    if (!tensor->defined() || tensor->is_cpu()) continue;
    return make_error(ErrorCode::Invalid, std::string("batch: got a tensor on ") +
                                              tensor->device().str() + ", allowed cpu");
  }
  return check_rows(module, batch.input);
}

/// Adds the number of the micro-batch to an error.
Error of_batch(std::size_t index, std::size_t count, Error error) {
  if (count > 1) {
    error.message = fmt::format("batch {}, counted from 0: {}", index, error.message);
  }
  return error;
}

/// Checks the last stage's result in forward.
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

Result<std::vector<double>> values_of(const std::vector<at::Tensor>& losses) {
  std::vector<double> values;
  for (const at::Tensor& loss : losses) {
    auto checked = check_loss(loss);
    if (!checked.has_value()) {
      return of_batch(values.size(), losses.size(), std::move(checked).error());
    }
    values.push_back(loss.item<double>());
  }
  return values;
}

}  // namespace

UnitGraphs::UnitGraphs(Module& module, StepCore& core, ParameterTensors& tensors,
                       const UnitGraphsOptions& options)
    : module_(module),
      core_(core),
      state_(core.state()),
      layout_(core.layout()),
      tensors_(tensors),
      options_(options),
      keeper_(core.state(), options.device) {
  // With a separate device the host's thread is idle anyway.
  if (!state_.separate_device()) between_ = [this] { work_between_operators(); };
}

void UnitGraphs::work_between_operators() {
  const std::uint64_t begin = monotonic_ns();
  core_.update_between_operators();
  between_ns_ += monotonic_ns() - begin;
}

void UnitGraphs::span(const char* direction, std::size_t stage, std::uint64_t begin_ns) {
  if (core_.timeline() == nullptr) return;
  core_.timeline()->add(Lane::Compute, module_.stages()[stage].name + direction, begin_ns,
                        monotonic_ns());
}

Result<void> UnitGraphs::enter(const AccessOrder::Access& units) {
  ARTESIAN_TRY_VOID(core_.enter(units));
  for (const auto unit : units) tensors_.bind(unit, core_.data(unit));
  return {};
}

Result<void> UnitGraphs::leave(const AccessOrder::Access& units) {
  for (const auto unit : units) tensors_.unbind(unit);
  return core_.leave(units);
}

std::vector<at::Tensor> UnitGraphs::tensors_of(const std::vector<std::uint32_t>& parameters) const {
  std::vector<at::Tensor> tensors;
  tensors.reserve(parameters.size());
  for (const auto parameter : parameters) tensors.push_back(tensors_.at(parameter));
  return tensors;
}

/// A copy, as the caller may reuse its memory, and backward needs forward's values.
Result<UnitGraphs::MicroBatch> UnitGraphs::copy_of(const Batch& batch) const {
  ARTESIAN_TRY_VOID(check_input(module_, batch));
  const bool looks_up = module_.stages().front().lookup.has_value();
  MicroBatch micro;
  micro.input = looks_up ? batch.input.to(at::kLong, /*non_blocking=*/false, /*copy=*/true)
                         : batch.input.detach().clone();
  if (looks_up) micro.ids = micro.input.flatten();
  micro.input = micro.input.to(options_.device);
  if (batch.targets.defined()) {
    micro.targets = batch.targets.detach().clone().to(options_.device);
  }
  micro.graphs.resize(module_.stages().size());
  return micro;
}

/// Marks an error as caused by the batch.
Error UnitGraphs::refuse(Error error) noexcept {
  refused_ = true;
  return error;
}

Result<std::vector<double>> UnitGraphs::forward(std::span<const Batch> batches,
                                                double loss_multiplier) {
  ARTESIAN_CHECK(group_.empty() && !batches.empty(), batches.size());
  ARTESIAN_CHECK(!late_.has_value());  // all gradients of the previous backward are accumulated
  refused_ = false;
  tokens_ = 0;
  told_multiplier_ = loss_multiplier;
  auto losses = run_forward(batches);
  if (!refused_) return losses;
  auto forgotten = forget();  // as if the forward had not been tried
  if (forgotten.has_value()) return losses;
  refused_ = false;
  return std::move(forgotten).error();
}

Result<std::vector<double>> UnitGraphs::run_forward(std::span<const Batch> batches) {
  for (std::size_t index = 0; index < batches.size(); ++index) {
    auto copied = from_torch([&] { return copy_of(batches[index]); });
    if (!copied.has_value()) {
      ARTESIAN_TRY_VOID(take_part(0));
      return refuse(of_batch(index, batches.size(), std::move(copied).error()));
    }
    const at::Tensor& input = copied->input;
    const bool by_element = copied->ids.defined() || input.dim() == 0;
    tokens_ += static_cast<std::uint64_t>(by_element ? input.numel() : input.size(0));
    group_.push_back(std::move(copied).value());
  }
  const Keep keep = options_.activation_checkpointing ? Keep::Inputs : Keep::Graphs;
  ARTESIAN_TRY(outputs, run_stages(group_, keep));
  auto losses = from_torch([&] { return values_of(outputs); });
  if (!losses.has_value()) return refuse(std::move(losses).error());
  return losses;
}

Result<at::Tensor> UnitGraphs::evaluate(const Batch& batch) {
  refused_ = false;
  std::vector<MicroBatch> group(1);
  auto moved = from_torch([&]() -> Result<void> {
    ARTESIAN_TRY_VOID(check_input(module_, batch));
    group.front().input = batch.input.to(options_.device);
    if (batch.targets.defined()) group.front().targets = batch.targets.to(options_.device);
    return {};
  });
  if (!moved.has_value()) {
    ARTESIAN_TRY_VOID(take_part(0));
    return refuse(std::move(moved).error());
  }
  ARTESIAN_TRY(outputs, run_stages(group, Keep::Nothing));
  return std::move(outputs.front());
}

/// Returns the last stage's result for each.
Result<std::vector<at::Tensor>> UnitGraphs::run_stages(std::vector<MicroBatch>& group, Keep keep) {
  std::vector<at::Tensor> activations;
  activations.reserve(group.size());
  for (const MicroBatch& micro : group) activations.push_back(micro.input.detach());
  for (std::size_t stage = 0; stage < module_.stages().size(); ++stage) {
    if (keep != Keep::Nothing) ARTESIAN_TRY_VOID(ask_to_stop());
    ARTESIAN_TRY_VOID(enter(layout_.stages[stage]));
    std::optional<Error> refused;
    for (std::size_t index = 0; index < group.size() && !refused.has_value(); ++index) {
      const std::uint64_t begin = monotonic_ns();
      const std::uint64_t others = between_ns_;
      auto output = from_torch([&] {
        const tiering::ComputeScope computing(state_.device());
        const BetweenOperators calls(keep == Keep::Nothing ? nothing : between_);
        return run_stage(stage, activations[index], group[index], keep);
      });
      core_.counters().forward_ns += monotonic_ns() - begin - (between_ns_ - others);
      span(keep == Keep::Nothing ? " evaluate" : " forward", stage, begin);
      if (output.has_value()) {
        activations[index] = std::move(output).value();
        if (keep == Keep::Inputs) {
          ARTESIAN_TRY_VOID(put_away(stage, index, group[index].graphs[stage]));
        }
      } else {
        refused = of_batch(index, group.size(), std::move(output).error());
      }
    }
    ARTESIAN_TRY_VOID(leave(layout_.stages[stage]));
    if (refused.has_value()) {
      refused->message = "stage " + module_.stages()[stage].name + ": " + refused->message;
      ARTESIAN_TRY_VOID(take_part(stage + 1));
      return refuse(*std::move(refused));
    }
  }
  return activations;
}

/// If each rank holds only its share of the parameters, the other ranks wait for this one's shares:
/// those of the stages from `first` on, which this rank does not run.
Result<void> UnitGraphs::take_part(std::size_t first) {
  if (!state_.placement().params_cut) return {};
  for (std::size_t stage = first; stage < module_.stages().size(); ++stage) {
    ARTESIAN_TRY_VOID(enter(layout_.stages[stage]));
    ARTESIAN_TRY_VOID(leave(layout_.stages[stage]));
  }
  return {};
}

Result<at::Tensor> UnitGraphs::run_stage(std::size_t stage, const at::Tensor& before,
                                         MicroBatch& micro, Keep keep) {
  const at::AutoGradMode mode(keep != Keep::Nothing);
  const auto& lookup = module_.stages()[stage].lookup;
  at::Tensor input = before.detach();
  if (lookup.has_value()) {
    const at::NoGradGuard no_grad;
    input = at::embedding(tensors_.at(*lookup), micro.input)
                .to(scalar_type(state_.placement().compute_dtype));
  }
  if (keep == Keep::Nothing) return call_module(stage, input, micro);
  const bool rows = lookup.has_value() && trainable(*lookup);
  if (rows || before.requires_grad()) input.requires_grad_(true);
  ARTESIAN_TRY(output, call_module(stage, input, micro));
  ARTESIAN_CHECK(stage < micro.graphs.size(), stage, micro.graphs.size());
  const bool last = stage + 1 == micro.graphs.size();
  const bool whole = keep == Keep::Graphs || (last && keeps_head());
  // Built with a graph that is then dropped: without a graph another kernel might be chosen.
  if (!whole) output = output.detach().requires_grad_(output.requires_grad());
  StageGraph& graph = micro.graphs[stage];
  graph = {};
  graph.input = input;
  graph.whole = whole;
  graph.differentiable = output.requires_grad();
  // With checkpointing, other stages' outputs are the inputs of the next stage.
  if (whole || last) graph.output = output;
  return output;
}

/// True if a step is one micro-batch: then nothing runs between the last stage's forward and its
/// backward, and keeping its graph needs no more memory than recomputing it.
bool UnitGraphs::keeps_head() const noexcept {
  return core_.config().accumulation_steps == 1 && !keeper_.keeps_some();
}

/// Stores what backward will need; nothing else is kept.
Result<void> UnitGraphs::put_away(std::size_t stage, std::size_t index, StageGraph& graph) {
  if (!keeper_.keeps_some()) return {};
  if (graph.differentiable) {
    ARTESIAN_TRY(away, keeper_.put({stage, index}, graph.input));
    graph.away = away;
  }
  if (graph.away || !graph.differentiable) graph.input = at::Tensor();
  return {};
}

Result<at::Tensor> UnitGraphs::call_module(std::size_t stage, const at::Tensor& input,
                                           const MicroBatch& micro) {
  at::Tensor output = module_.forward(
      stage, input, tensors_of(graph_parameters(module_.stages()[stage])),
      {micro.input, micro.targets, state_.separate_device() ? nullptr : &sink_, told_multiplier_});
  if (!output.defined()) return make_error(ErrorCode::Invalid, "forward() returned no tensor");
  return output;
}

/// Frees the graphs and the batches of the last forward.
Result<void> UnitGraphs::forget() {
  group_.clear();
  late_.reset();
  complete_.reset();
  stopped_ = false;
  return keeper_.keeps_some() ? keeper_.forget() : Result<void>();
}

Result<void> UnitGraphs::backward(double loss_multiplier) {
  ARTESIAN_CHECK(!group_.empty());
  ARTESIAN_TRY_VOID(from_torch([&] { return backward_stages(loss_multiplier); }));
  return forget();
}

Result<void> UnitGraphs::backward_stages(double loss_multiplier) {
  if (keeper_.keeps_some()) ARTESIAN_TRY_VOID(keeper_.expect());
  for (MicroBatch& micro : group_) {
    const at::Tensor& loss = micro.graphs.back().output;
    ARTESIAN_CHECK(loss.defined());
    micro.gradient = at::full(loss.sizes(), loss_multiplier, loss.options());
  }
  for (std::size_t stage = module_.stages().size(); stage-- > 0;) {
    bool some = false;
    for (MicroBatch& micro : group_) {
      // If a stage's input needs no gradient, no earlier parameter gets one.
      if (!micro.graphs[stage].differentiable) micro.gradient = at::Tensor();
      some = some || micro.gradient.defined();
    }
    if (!some) break;
    if (!core_.update_begun()) ARTESIAN_TRY_VOID(ask_to_stop());
    ARTESIAN_TRY_VOID(backward_stage(stage));
  }
  complete_ = std::exchange(late_, std::nullopt);
  return accumulate_complete();
}

Result<void> UnitGraphs::backward_stage(std::size_t stage) {
  const AccessOrder::Access units = backward_units(layout_, module_.stages(), stage);
  ARTESIAN_TRY_VOID(enter(units));
  for (std::size_t index = 0; index < group_.size(); ++index) {
    if (group_[index].gradient.defined()) ARTESIAN_TRY_VOID(backward_micro_batch(stage, index));
  }
  ARTESIAN_TRY_VOID(accumulate_complete());
  ARTESIAN_TRY_VOID(leave(units));
  return late_.has_value() ? Result<void>() : core_.stage_accumulated(stage);
}

Result<void> UnitGraphs::backward_micro_batch(std::size_t stage, std::size_t index) {
  MicroBatch& micro = group_[index];
  if (micro.graphs[stage].away) {
    ARTESIAN_TRY(input, keeper_.take({stage, index}));
    micro.graphs[stage].input = input;
  }
  ARTESIAN_TRY_VOID(keeper_.prepare_next());
  const std::uint64_t begin = monotonic_ns();
  const std::uint64_t others = between_ns_;
  const auto parameters = trained_parameters(stage);
  ARTESIAN_TRY(gradients, differentiate(stage, parameters, micro));
  ARTESIAN_TRY(made, collect(stage, parameters, gradients));
  ARTESIAN_TRY_VOID(keeper_.load_next());
  const auto& lookup = module_.stages()[stage].lookup;
  if (lookup.has_value() && micro.gradient.defined()) keep_rows(*lookup, micro);
  core_.counters().backward_ns += monotonic_ns() - begin - (between_ns_ - others);
  span(" backward", stage, begin);
  const std::uint64_t rounding = monotonic_ns();
  ARTESIAN_TRY_VOID(state_.separate_device() ? accumulate_late(std::move(made)) : accumulate(made));
  span(" gradients", stage, rounding);
  return {};
}

void UnitGraphs::PartSink::add(std::size_t position, std::int64_t first, const at::Tensor& part) {
  const bool frozen = position < parameters.size() && !graphs_.trainable(parameters[position]);
  if (frozen) return;
  const bool known = position < parameters.size() && graphs_.in_parts(parameters[position]);
  TORCH_CHECK(known, "GradientSink::add: parameter ", position,
              " of this stage is not tiled; return its gradient");
  const std::uint64_t numel = graphs_.layout_.places[parameters[position]].numel;
  const auto begin = static_cast<std::uint64_t>(first);  // negative: past the end
  const auto count = static_cast<std::uint64_t>(part.numel());
  TORCH_CHECK(begin <= numel && count <= numel - begin, "GradientSink::add: ", count,
              " elements from ", first, " on, of a parameter with ", numel);
  const at::Tensor values = part.to(at::kFloat).contiguous();
  graphs_.core_.gradients().add_part(parameters[position], begin, values.const_data_ptr<float>(),
                                     count);
}

std::vector<std::uint32_t> UnitGraphs::trained_parameters(std::size_t stage) const {
  std::vector<std::uint32_t> parameters = graph_parameters(module_.stages()[stage]);
  std::erase_if(parameters, [this](std::uint32_t parameter) { return !trainable(parameter); });
  return parameters;
}

bool UnitGraphs::in_parts(std::uint32_t parameter) const {
  const ParameterSpec& spec = module_.parameters()[parameter];
  return spec.tiled && spec.trainable && !state_.separate_device();
}

Result<void> UnitGraphs::begin_parts(const std::vector<std::uint32_t>& parameters) {
  sink_.parameters = parameters;
  for (const auto parameter : parameters) {
    if (in_parts(parameter)) ARTESIAN_TRY_VOID(core_.gradients().begin_parts(parameter));
  }
  return {};
}

Result<void> UnitGraphs::end_parts() {
  for (const auto parameter : std::exchange(sink_.parameters, {})) {
    if (!in_parts(parameter)) continue;
    ARTESIAN_TRY(added, core_.gradients().end_parts(parameter));
    const std::uint64_t numel = layout_.places[parameter].numel;
    if (added != 0 && added != numel) {
      return make_error(ErrorCode::Invalid,
                        fmt::format("GradientSink: got {} of the {} elements of the gradient of "
                                    "\"{}\"; give each once, or none",
                                    added, numel, module_.parameters()[parameter].name));
    }
    core_.counters().bytes_to_host += added * core_.gradients().element_size() / options_.ranks;
  }
  return {};
}

/// Computes the gradients of a stage's trained parameters, and replaces the output's gradient by
/// that of its input. A graph that was not kept is recomputed.
Result<std::vector<at::Tensor>> UnitGraphs::differentiate(std::size_t stage,
                                                          const std::vector<std::uint32_t>& trained,
                                                          MicroBatch& micro) {
  const tiering::ComputeScope computing(state_.device());
  const BetweenOperators calls(between_);
  std::vector<at::Tensor> inputs = tensors_of(trained);
  StageGraph& graph = micro.graphs[stage];
  ARTESIAN_CHECK(graph.input.defined() && micro.gradient.defined(), stage);
  if (!graph.whole) {
    const at::AutoGradMode mode(true);
    ARTESIAN_TRY(output, call_module(stage, graph.input, micro));
    graph.output = output;
  }
  const bool needs_input = graph.input.requires_grad();
  if (needs_input) inputs.push_back(graph.input);
  ARTESIAN_TRY_VOID(begin_parts(graph_parameters(module_.stages()[stage])));
  auto gradients = torch::autograd::grad({graph.output}, inputs, {micro.gradient},
                                         /*retain_graph=*/c10::nullopt, /*create_graph=*/false,
                                         /*allow_unused=*/true);
  ARTESIAN_TRY_VOID(end_parts());
  graph = {};
  micro.gradient = needs_input ? gradients.back() : at::Tensor();
  gradients.resize(trained.size());
  return gradients;
}

/// Returns a fence after all computation enqueued so far.
Result<tiering::DeviceFence> UnitGraphs::written() {
  return state_.device().record(tiering::Queue::Compute);
}

/// Interrupts the pass if requested, once the device no longer computes for it.
Result<void> UnitGraphs::ask_to_stop() {
  if (!options_.stop || !options_.stop()) return {};
  ARTESIAN_TRY(computed, written());
  if (state_.separate_device()) ARTESIAN_TRY_VOID(state_.device().finish(computed));
  stopped_ = true;
  return make_error(ErrorCode::Cancelled, "the step was broken off, as the caller asked");
}

Result<UnitGraphs::StageGradients> UnitGraphs::collect(std::size_t stage,
                                                       const std::vector<std::uint32_t>& parameters,
                                                       const std::vector<at::Tensor>& gradients) {
  ARTESIAN_CHECK(gradients.size() == parameters.size(), gradients.size(), parameters.size());
  StageGradients made;
  made.stage = stage;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!gradients[index].defined()) continue;  // not used in this forward: zero
    const ParameterPlace& place = layout_.places[parameters[index]];
    const auto numel = static_cast<std::uint64_t>(gradients[index].numel());
    ARTESIAN_CHECK(numel == place.numel, parameters[index], numel, place.numel);
    const auto dtype = scalar_type(core_.gradients().added_dtype(place.unit));
    made.by_unit[place.unit][parameters[index]] = gradients[index].to(dtype).contiguous();
  }
  ARTESIAN_TRY(complete, written());
  made.written = complete;
  return made;
}

/// Keeps the gradients while the device computes the next ones, which may be those of the previous
/// stage: then until all micro-batches of that stage are enqueued, or more gradients arrive. Only
/// one stage's at a time.
Result<void> UnitGraphs::accumulate_late(StageGradients made) {
  std::optional<StageGradients> before = std::exchange(late_, std::move(made));
  if (!before.has_value()) return {};
  if (before->stage != late_->stage) {
    ARTESIAN_CHECK(!complete_.has_value());
    complete_ = std::move(before);
    return {};
  }
  const StageGradients apart = take_apart(*before);
  if (!apart.by_unit.empty()) {
    ARTESIAN_TRY_VOID(accumulate_complete());
    ARTESIAN_TRY_VOID(accumulate(apart));
  }
  return before->by_unit.empty() ? Result<void>() : sum_on_device(*before, *late_);
}

Result<void> UnitGraphs::accumulate_complete() {
  if (!complete_.has_value()) return {};
  const StageGradients made = *std::exchange(complete_, std::nullopt);
  ARTESIAN_TRY_VOID(accumulate(made));
  return core_.stage_accumulated(made.stage);
}

/// Takes out gradients that must not be summed on the device; they are accumulated separately.
UnitGraphs::StageGradients UnitGraphs::take_apart(StageGradients& made) const {
  StageGradients apart{.stage = made.stage, .by_unit = {}, .written = made.written};
  for (auto& [unit, gradients] : made.by_unit) {
    for (auto each = gradients.begin(); each != gradients.end();) {
      if (core_.gradients().sums_on_device(each->first)) {
        ++each;
      } else {
        apart.by_unit[unit].insert(gradients.extract(each++));
      }
    }
  }
  std::erase_if(made.by_unit, [](const auto& entry) { return entry.second.empty(); });
  return apart;
}

/// Adds one micro-batch's gradients, or the sum so far, to those of the next micro-batch of the
/// same stage. If a gradient's tensor may be used elsewhere (another parameter or the stage's
/// input), the sum is a new tensor.
Result<void> UnitGraphs::sum_on_device(StageGradients& before, StageGradients& made) {
  ARTESIAN_CHECK(before.stage == made.stage, before.stage, made.stage);
  const auto add = [](const at::Tensor& sum, const at::Tensor& next) {
    const bool own = sum.use_count() == 1 && sum.storage().use_count() == 1;
    return own ? sum.add_(next) : at::add(sum, next);
  };
  {
    const tiering::ComputeScope computing(state_.device());
    const at::NoGradGuard no_grad;
    for (auto& [unit, gradients] : before.by_unit) {
      for (auto& [parameter, sum] : gradients) {
        at::Tensor& next = made.by_unit[unit][parameter];
        next = next.defined() ? add(sum, next) : sum;
      }
    }
  }
  ARTESIAN_TRY(complete, written());
  made.written = complete;
  return {};
}

Result<void> UnitGraphs::accumulate(const StageGradients& made) {
  // Reading gradients waits for the device. If a batch skipped the whole stage there are none to
  // read, and the next operations may refresh parameters that the device still uses.
  const bool left_out = made.by_unit.empty() && !trained_parameters(made.stage).empty();
  if (left_out) ARTESIAN_TRY_VOID(state_.device().finish(made.written));
  std::map<std::uint32_t, const std::map<std::uint32_t, at::Tensor>*> by_unit;
  static const std::map<std::uint32_t, at::Tensor> none;
  if (options_.ranks > 1) {  // the other ranks may have gradients that this one's batch lacks
    for (const std::uint32_t parameter : trained_parameters(made.stage)) {
      if (!in_parts(parameter)) by_unit[layout_.places[parameter].unit] = &none;
    }
  }
  for (const auto& [unit, gradients] : made.by_unit) by_unit[unit] = &gradients;
  for (const auto& [unit, gradients] : by_unit) {
    std::vector<ParameterGradient> list;
    for (const auto& [parameter, gradient] : *gradients) {
      list.push_back({parameter, gradient.const_data_ptr()});
      core_.counters().bytes_to_host +=
          layout_.places[parameter].numel * core_.gradients().element_size() / options_.ranks;
    }
    ARTESIAN_TRY_VOID(core_.add(unit, list, made.written));
  }
  return {};
}

/// Keeps the gradients of the looked-up rows for the step's end.
void UnitGraphs::keep_rows(std::uint32_t parameter, const MicroBatch& micro) {
  const std::int64_t width = micro.gradient.size(-1);
  const at::Tensor gradient = micro.gradient.reshape({-1, width}).to(at::kFloat).contiguous();
  ARTESIAN_CHECK(gradient.size(0) == micro.ids.numel(), gradient.size(0), micro.ids.numel());
  const auto* ids = micro.ids.const_data_ptr<std::int64_t>();
  core_.add_rows(
      {.parameter = parameter,
       .rows = {ids, static_cast<std::size_t>(micro.ids.numel())},
       .gradient = gradient.const_data_ptr<float>(),
       .width = static_cast<std::uint64_t>(width),
       .keep = std::make_shared<std::pair<at::Tensor, at::Tensor>>(micro.ids, gradient)});
}

}  // namespace artesian::zero3
