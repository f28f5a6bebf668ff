#include "zero3/torch/engine.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/keep_for_ever.h"
#include "base/log.h"
#include "base/machine.h"
#include "tiering/host_nodes.h"
#include "zero3/plan/step_accesses.h"
#include "zero3/step/io_engine.h"
#include "zero3/step/loss_scaler.h"
#include "zero3/step/lr_schedule.h"
#include "zero3/step/optimizer.h"
#include "zero3/step/step_guard.h"
#include "zero3/step/under_backward.h"
#include "zero3/torch/activation_memory.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/first_calls.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/step_figures.h"
#include "zero3/torch/unit_graphs.h"

namespace artesian::zero3 {
namespace {

/// LibTorch's own threads are the compute team.
class TorchExecutor final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    if (count == 0) return;
    at::parallel_for(0, static_cast<std::int64_t>(count), static_cast<std::int64_t>(grain),
                     [&](std::int64_t begin, std::int64_t end) {
                       body(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
                     });
  }
};

std::uint64_t random_run_id() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

Error out_of_order(const char* call, const std::string& text) {
  return make_error(ErrorCode::Invalid, std::string(call) + "(): out of order: " + text);
}

}  // namespace

class Engine::Impl {
 public:
  Impl(Module& model, const Config& resolved, const EngineOptions& given)
      : module(model),
        config(resolved),
        options(given),
        scaler(resolved.param_dtype, resolved.loss_scale),
        guard(config) {}

  Module& module;
  const Config config;
  const EngineOptions options;
  TorchExecutor executor;
  ComputeDevice compute;
  std::unique_ptr<aio::Engine> io;
  std::unique_ptr<ModelState> state;
  std::unique_ptr<tiering::Residency> residency;
  std::unique_ptr<Prefetcher> prefetcher;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<UnderBackward> under_backward;
  std::unique_ptr<ParameterTensors> tensors;
  std::unique_ptr<UnitGraphs> graphs;
  LossScaler scaler;
  StepGuard guard;
  std::optional<Error> poison;
  bool ended_whole = false;  // poison is step_guard's end, and the weights are as before that step
  bool closed = false;
  bool stalled = false;  // transfers are still in flight, and the disk does not answer

  std::uint64_t step = 0;     // steps done, skipped ones included
  std::uint64_t updates = 0;  // steps that were not skipped
  bool initialized = false;
  std::uint64_t micro_batches = 0;  // forward and backward done since the last step
  std::uint64_t tokens = 0;         // of those
  double loss_sum = 0.0;
  std::vector<double> losses_pending;    // of the forward that waits for its backward
  bool layer_by_layer = false;           // may micro-batches run so, for the same bits
  std::uint64_t activation_budget = 0;   // bytes, as is what follows
  std::uint64_t activations_of_one = 0;  // the most that a micro-batch has kept; 0: not known
  std::unique_ptr<StepFigures> figures;
  std::optional<StepResult> updating;  // the step whose update is under way, so far
  std::optional<StepResult> completed;
  std::optional<Error> failed_ahead;    // of an update between operators, for who comes next
  bool updated_before = false;          // the last step was not skipped
  std::uint64_t step_to_measure = 0;    // the first after such a one: it is whole
  std::optional<StepResult> measured;   // that step, by which backward gets its share
  std::uint64_t under_backward_ns = 0;  // updating, in this step

  Result<void> build();
  Result<Placement> place(DType compute_dtype, const Budgets& budgets) const;
  Result<void> create_state(Placement placement);
  Result<void> open_device();
  Result<void> check_alive() const;
  template <typename T>
  Result<T> remember(Result<T> result);
  template <typename Read>
  auto of_no_step(const Read& read);
  Result<void> check_ready(const char* call) const;
  Result<void> check_weights(const char* call) const;
  bool weights_readable() const;
  Result<void> check_forward(const char* call, std::size_t count) const;
  Result<void> check_backward() const;
  Result<void> check_step() const;
  Result<Result<std::vector<double>>> forward(std::span<const Batch> batches);
  Result<void> backward();
  Result<Result<std::vector<double>>> forward_backward(std::span<const Batch> batches);
  std::size_t group_size(std::size_t count) const;
  Result<Result<at::Tensor>> evaluate(const Batch& batch);
  Result<StepResult> finish_step();
  Result<void> begin_update(const StepResult& result, double multiplier);
  template <typename Work>
  Result<void> go_on_updating(const Work& work);
  Result<void> update_before_use(const Trace::Access& units);
  void update_between_operators();
  Result<void> finish_update();
  UpdateTimes update_times(const StepResult& whole, double part) const;
  Result<void> begin_update_under_backward();
  Result<void> update_under_backward(std::size_t stage);
  kernels::AdamStep adam_step(double lr, double multiplier) const;
  void begin_step();
};

Result<void> Engine::Impl::build() {
  make_first_calls();
  ARTESIAN_TRY_VOID(check_module(module.parameters(), module.stages()));
  ARTESIAN_TRY_VOID(open_device());
  ARTESIAN_TRY(compute_dtype, choose_compute_dtype(config, compute.native(config.param_dtype)));
  if (compute_dtype != config.param_dtype || compute_dtype != DType::Float32) {
    log(LogLevel::Info, std::string("artesian.compute_dtype: ") + dtype_name(compute_dtype) +
                            (config.artesian.compute_dtype.has_value() ? "" : ", chosen here") +
                            "; parameters are " + dtype_name(config.param_dtype));
  }
  ARTESIAN_TRY(budgets, choose_budgets(config, options.device));
  ARTESIAN_TRY(placement, place(compute_dtype, budgets));
  ARTESIAN_TRY_VOID(create_state(std::move(placement)));
  residency = std::make_unique<tiering::Residency>(state->resident_units(), state->store(),
                                                   state->device_pool(), executor, state->loader());
  prefetcher =
      std::make_unique<Prefetcher>(state->layout(), *residency, PrefetchLimits::of(config.zero));
  gradients = std::make_unique<Gradients>(*state);
  optimizer =
      std::make_unique<Optimizer>(*state, *residency, kept_activations(),
                                  [this](std::uint32_t unit) { return prefetcher->stays(unit); });
  under_backward.emplace(config, *state, module.stages(), *gradients, *optimizer);
  if (under_backward->undecided() && options.share_under_backward.has_value()) {
    ARTESIAN_TRY_VOID(under_backward->decide(*options.share_under_backward));
  }
  ARTESIAN_TRY(leaves,
               ParameterTensors::create(module.parameters(), state->placement(), compute.torch));
  tensors = std::move(leaves);
  std::function<void()> between;  // beside a separate device, the host's thread is free anyway
  if (!state->separate_device()) between = [this] { update_between_operators(); };
  graphs = std::make_unique<UnitGraphs>(
      module, *state, *tensors, *prefetcher, *gradients,
      UnitGraphsOptions{
          .device = compute.torch,
          .timeline = options.timeline,
          .activation_checkpointing = config.activation_checkpointing,
          .gathered = [this](const Trace::Access& units) { return update_before_use(units); },
          .accumulated = [this](std::size_t stage) { return update_under_backward(stage); },
          .between = between});
  figures = std::make_unique<StepFigures>(FigureSources{.state = *state,
                                                        .compute = compute,
                                                        .residency = *residency,
                                                        .prefetcher = *prefetcher,
                                                        .gradients = *gradients,
                                                        .optimizer = *optimizer,
                                                        .graphs = *graphs});
  layer_by_layer = keeps_order(module.stages());
  activation_budget = budgets.activations;
  return {};
}

/// Where everything goes, with its notes in the log.
Result<Placement> Engine::Impl::place(DType compute_dtype, const Budgets& budgets) const {
  const std::size_t sizes = options.input_elements.size();
  if (sizes != 0 && sizes != module.stages().size()) {
    return make_error(ErrorCode::Invalid,
                      "input_elements: got " + std::to_string(sizes) + ", allowed none or " +
                          std::to_string(module.stages().size()) + ", one for each stage");
  }
  ARTESIAN_TRY(placement, make_placement({.parameters = &module.parameters(),
                                          .stages = &module.stages(),
                                          .config = &config,
                                          .compute_dtype = compute_dtype,
                                          .separate_device = !compute.backend->host_accessible(),
                                          .device_bytes = budgets.device,
                                          .host_bytes = budgets.host,
                                          .split_master = options.split_master,
                                          .spare_device = options.spare_device,
                                          .input_elements = options.input_elements,
                                          .activation_bytes = budgets.activations}));
  if (config.cpu_checkpointing && !placement.inputs.some()) {
    log(LogLevel::Info,
        "activation_checkpointing.cpu_checkpointing: inputs stay where they are computed: the "
        "engine was not told how large they are");
  }
  for (const std::string& note : placement.notes) log(LogLevel::Info, note);
  return placement;
}

/// The I/O engine, and the state that it serves.
Result<void> Engine::Impl::create_state(Placement placement) {
  ARTESIAN_TRY(paths, swap_paths_of(config, options.path_disks));
  auto nodes = tiering::nodes_of_host(compute.backend->numa_node(), paths.directories);
  for (const std::string& note : paths.notes) log(LogLevel::Info, note);
  ARTESIAN_TRY(engine, make_io_engine(config, paths.io));
  io = std::move(engine);
  ModelStateOptions state_options{.placement = std::move(placement),
                                  .paths = std::move(paths),
                                  .run_id = options.run_id != 0 ? options.run_id : random_run_id(),
                                  .verify = verify_of(config.artesian.verify),
                                  .pin_memory = config.zero.offload_param.pin_memory &&
                                                config.zero.offload_optimizer.pin_memory,
                                  .wait_seconds = options.wait_seconds,
                                  .timeline = options.timeline,
                                  .device = compute.backend,
                                  .host_nodes = std::move(nodes)};
  FileSystem& files = options.files != nullptr ? *options.files : system_files();
  ARTESIAN_TRY(made, ModelState::create(std::move(state_options), *io, files, executor));
  state = std::move(made);
  const pinned::NodePolicy taken = state->host_pool().statistics().nodes;
  if (!taken.nodes.empty()) log(LogLevel::Info, "host memory lies " + describe(taken));
  return {};
}

Result<void> Engine::Impl::open_device() {
  ARTESIAN_TRY(opened, open_compute_device(options.device, config.artesian.determinism));
  compute = std::move(opened);
  if (options.backend != nullptr) compute.backend = options.backend;
  if (!compute.backend->host_accessible()) compute.backend->set_wait_seconds(options.wait_seconds);
  return {};
}

Result<void> Engine::Impl::check_alive() const {
  if (closed) return make_error(ErrorCode::Invalid, "the engine is closed; create another one");
  if (poison.has_value()) return *poison;
  return {};
}

Result<void> Engine::Impl::check_ready(const char* call) const {
  ARTESIAN_TRY_VOID(check_alive());
  if (initialized) return {};
  return out_of_order(call, "the engine has no weights yet; call initialize() first");
}

/// All weights are of the same step, or can be brought there.
Result<void> Engine::Impl::check_weights(const char* call) const {
  ARTESIAN_TRY_VOID(check_ready(call));
  if (!under_backward->begun()) return {};
  return out_of_order(
      call, "backward() has begun the update (nothing clips or skips it); call step() first");
}

bool Engine::Impl::weights_readable() const {
  if (closed || !initialized || under_backward->begun()) return false;
  return !poison.has_value() || ended_whole;
}

Result<void> Engine::Impl::check_forward(const char* call, std::size_t count) const {
  ARTESIAN_TRY_VOID(check_ready(call));
  if (graphs->backward_pending()) {
    return out_of_order(call,
                        "the forward() before it has had no backward(); call backward() first, or "
                        "evaluate() for a loss without gradients");
  }
  if (micro_batches == config.accumulation_steps) {
    return out_of_order(call, "all " + std::to_string(micro_batches) +
                                  " micro-batches of this step are done "
                                  "(gradient_accumulation_steps); call step() first");
  }
  const std::uint64_t left = config.accumulation_steps - micro_batches;
  if (count >= 1 && count <= left) return {};
  return make_error(ErrorCode::Invalid,
                    std::string(call) + "(): got " + std::to_string(count) +
                        " batches, allowed 1 to " + std::to_string(left) +
                        ", the micro-batches left of this step (gradient_accumulation_steps)");
}

Result<void> Engine::Impl::check_backward() const {
  ARTESIAN_TRY_VOID(check_ready("backward"));
  if (graphs->backward_pending()) return {};
  return out_of_order("backward", "no forward() waits for it; call forward() first");
}

Result<void> Engine::Impl::check_step() const {
  ARTESIAN_TRY_VOID(check_ready("step"));
  if (graphs->backward_pending()) {
    return out_of_order("step", "the last forward() has had no backward(); call backward() first");
  }
  if (micro_batches == config.accumulation_steps) return {};
  return out_of_order("step", "got " + std::to_string(micro_batches) +
                                  " micro-batches since the last step, allowed " +
                                  std::to_string(config.accumulation_steps) +
                                  " (gradient_accumulation_steps); call forward() and backward() "
                                  "for each");
}

/// The first error ends the run: later calls return it instead of working on damaged state.
template <typename T>
Result<T> Engine::Impl::remember(Result<T> result) {
  if (!result.has_value()) ended_whole = false;
  if (!result.has_value() && !poison.has_value()) {
    poison = gradients ? gradients->cause_of(result.error()) : result.error();
    result = *poison;
  }
  return result;
}

/// What reading the weights moves and takes is not of the step that it falls into.
template <typename Read>
auto Engine::Impl::of_no_step(const Read& read) {
  const StepFigures::Mark before = figures->mark();
  auto result = remember(read());
  figures->leave_out(before);
  return result;
}

void Engine::Impl::begin_step() {
  loss_sum = 0.0;
  tokens = 0;
  figures->begin_step(optimizer->step_under_way());
  gradients->begin_step();
  prefetcher->begin_step();
}

Result<Result<std::vector<double>>> Engine::Impl::forward(std::span<const Batch> batches) {
  if (micro_batches == 0) begin_step();
  ARTESIAN_TRY(before, tensor_bytes_now(compute));
  ARTESIAN_TRY(losses, graphs->forward(batches));
  if (!losses.has_value()) return losses;
  ARTESIAN_TRY_VOID(finish_update());  // of units that no stage has; then new gradients may come
  losses_pending = *losses;
  ARTESIAN_TRY(after, tensor_bytes_now(compute));
  const std::uint64_t kept = after > before ? after - before : 0;
  activations_of_one = std::max(activations_of_one, kept / batches.size());
  return losses;
}

Result<void> Engine::Impl::backward() {
  const double multiplier = scaler.scale() / static_cast<double>(config.accumulation_steps);
  for (const double loss : losses_pending) {
    loss_sum += loss;
    guard.see_loss(loss);
  }
  ARTESIAN_TRY_VOID(begin_update_under_backward());
  ARTESIAN_TRY_VOID(graphs->backward(multiplier));
  if (failed_ahead.has_value()) return *failed_ahead;
  micro_batches += losses_pending.size();
  tokens += graphs->tokens();
  return {};
}

/// How many of the next `count` micro-batches run at once.
std::size_t Engine::Impl::group_size(std::size_t count) const {
  const KeptInputs& inputs = state->placement().inputs;
  if (inputs.some()) return std::min<std::uint64_t>(inputs.at_once, count);
  if (activations_of_one == 0 || !layer_by_layer) return 1;
  const std::uint64_t room = activation_budget / activations_of_one;
  return std::clamp<std::uint64_t>(room, 1, count);
}

Result<Result<std::vector<double>>> Engine::Impl::forward_backward(std::span<const Batch> batches) {
  std::vector<double> losses;
  while (losses.size() < batches.size()) {
    const auto rest = batches.subspan(losses.size());
    ARTESIAN_TRY(made, forward(rest.first(group_size(rest.size()))));
    if (!made.has_value()) return made;
    ARTESIAN_TRY_VOID(backward());
    losses.insert(losses.end(), made->begin(), made->end());
  }
  return Result<std::vector<double>>(std::move(losses));
}

/// What it moves and how long it takes are not of the step that it falls into.
Result<Result<at::Tensor>> Engine::Impl::evaluate(const Batch& batch) {
  ARTESIAN_TRY_VOID(finish_update());
  const StepFigures::Mark before = figures->mark();
  prefetcher->begin_evaluation();
  ARTESIAN_TRY(output, graphs->evaluate(batch));
  ARTESIAN_TRY_VOID(prefetcher->end_evaluation());
  figures->leave_out(before);
  return output;
}

kernels::AdamStep Engine::Impl::adam_step(double lr, double multiplier) const {
  const OptimizerConfig& adam = config.optimizer;
  kernels::AdamStep constants;
  constants.mode = adam.decoupled_decay ? kernels::AdamMode::AdamW : kernels::AdamMode::L2;
  constants.learning_rate = static_cast<float>(lr);
  constants.beta1 = static_cast<float>(adam.beta1);
  constants.beta2 = static_cast<float>(adam.beta2);
  constants.epsilon = static_cast<float>(adam.eps);
  constants.weight_decay = static_cast<float>(adam.weight_decay);
  constants.grad_multiplier = static_cast<float>(multiplier);
  return kernels::make_adam_step(constants, updates + 1, adam.bias_correction);
}

Result<void> Engine::Impl::begin_update(const StepResult& result, double multiplier) {
  ARTESIAN_TRY_VOID(optimizer->begin_step(adam_step(result.lr, multiplier)));
  ++updates;
  tensors->bump_versions();
  return {};
}

/// With the last backward of a step, where that is allowed. How much of the update it gets is
/// decided once, from the first step that had all there is to a step.
Result<void> Engine::Impl::begin_update_under_backward() {
  under_backward_ns = 0;
  if (micro_batches + losses_pending.size() < config.accumulation_steps) return {};
  if (guard.loss_is_bad()) return {};
  const std::uint64_t begin = system_clock().now_ns();
  if (under_backward->undecided() && measured.has_value()) {
    const double part =
        static_cast<double>(losses_pending.size()) / static_cast<double>(config.accumulation_steps);
    const double share = share_under_backward(update_times(*measured, part));
    ARTESIAN_TRY_VOID(under_backward->decide(share));
  }
  const double lr = learning_rate(config.scheduler, config.optimizer, updates);
  ARTESIAN_TRY_VOID(under_backward->begin(adam_step(lr, 1.0 / scaler.scale()), scaler.scale()));
  under_backward_ns += system_clock().now_ns() - begin;
  return {};
}

Result<void> Engine::Impl::update_under_backward(std::size_t stage) {
  if (failed_ahead.has_value()) return *failed_ahead;
  optimizer->stage_is_done();
  if (!optimizer->under_backward()) return {};
  const std::uint64_t begin = system_clock().now_ns();
  ARTESIAN_TRY_VOID(under_backward->accumulated(stage));
  const std::uint64_t end = system_clock().now_ns();
  under_backward_ns += end - begin;
  if (options.timeline != nullptr) {
    options.timeline->add(Lane::Optimizer, "update under backward", begin, end);
  }
  return {};
}

/// Of a step whose update was all left to the next forward; `part`: of its micro-batches, a
/// group's.
UpdateTimes Engine::Impl::update_times(const StepResult& whole, double part) const {
  const double update_disk = figures->update_disk_s();
  const double others = std::max(0.0, whole.disk_s - update_disk);  // in forward and backward alike
  return {.forward = part * whole.forward_s,
          .backward = part * whole.backward_s,
          .forward_disk = part * others / 2,
          .backward_disk = part * others / 2,
          .update = state->separate_device() ? 0.0 : whole.optimizer_s - whole.wait_optimizer_s,
          .update_disk = update_disk};
}

/// What it moves and how long it takes are of the step whose update it is, not of the one under
/// way.
template <typename Work>
Result<void> Engine::Impl::go_on_updating(const Work& work) {
  const StepFigures::Mark before = figures->mark();
  ARTESIAN_TRY_VOID(work());
  updating->optimizer_s += figures->hand_over(before, *updating);
  return {};
}

Result<void> Engine::Impl::update_before_use(const Trace::Access& units) {
  if (failed_ahead.has_value()) return *failed_ahead;
  if (!updating.has_value()) return {};
  for (const std::uint32_t unit : units) {
    const std::uint64_t begin = system_clock().now_ns();
    ARTESIAN_TRY_VOID(go_on_updating([&] { return optimizer->update_up_to(unit); }));
    if (options.timeline == nullptr) continue;
    options.timeline->add(Lane::Optimizer, state->layout().units[unit].name + " update", begin,
                          system_clock().now_ns());
  }
  return {};
}

/// As much as needs no waiting: so the disk never waits for the model, and the ring may be short.
void Engine::Impl::update_between_operators() {
  if (failed_ahead.has_value() || !optimizer->may_update_ahead()) return;
  const std::uint64_t begin = system_clock().now_ns();
  const auto work = [&] { return optimizer->update_ahead(); };
  auto updated = updating.has_value() ? go_on_updating(work) : work();
  if (!updated.has_value()) failed_ahead = std::move(updated).error();
  const std::uint64_t end = system_clock().now_ns();
  if (!updating.has_value()) under_backward_ns += end - begin;
  if (options.timeline == nullptr) return;
  options.timeline->add(Lane::Optimizer, "update ahead", begin, end);
}

Result<void> Engine::Impl::finish_update() {
  if (failed_ahead.has_value()) return *failed_ahead;
  if (optimizer->speculative()) ARTESIAN_TRY_VOID(prefetcher->stop_fetching());
  ARTESIAN_TRY_VOID(under_backward->take_back());  // of a step that has not been taken
  if (!updating.has_value()) return {};
  ARTESIAN_TRY_VOID(go_on_updating([&] { return optimizer->finish_step(); }));
  completed = std::exchange(updating, std::nullopt);
  if (completed->step == step_to_measure) measured = completed;
  figures->end_update();
  return {};
}

Result<StepResult> Engine::Impl::finish_step() {
  ARTESIAN_TRY_VOID(graphs->finish_gradients());
  ARTESIAN_TRY_VOID(gradients->complete());
  ARTESIAN_TRY_VOID(prefetcher->end_step());
  const std::uint64_t begin = system_clock().now_ns();
  ARTESIAN_TRY(norm, gradients->norm());
  StepResult result;
  result.step = ++step;
  result.loss = loss_sum / static_cast<double>(micro_batches);
  result.tokens = tokens;
  result.loss_scale = scaler.scale();  // what backward used
  result.lr = learning_rate(config.scheduler, config.optimizer, updates);
  result.grad_norm = std::sqrt(norm.sum_squares) / result.loss_scale;
  if (!norm.finite) result.overflow_parameter = module.parameters()[norm.bad_parameter].name;
  const bool begun = under_backward->begun();
  auto verdict = guard.judge(step, result.overflow_parameter, scaler, begun);
  result.overflow = verdict.skip;
  result.end = poison = std::move(verdict.end);
  // DeepSpeed: divide by scale * max(1, (norm + 1e-6) / clip)
  const double excess = (result.grad_norm + 1e-6) / config.gradient_clipping;
  const double clip = config.gradient_clipping > 0 && excess > 1.0 ? excess : 1.0;
  const bool as_begun = !result.overflow && clip == 1.0;
  result.taken_back = optimizer->speculative() && !as_begun;
  ARTESIAN_TRY_VOID(under_backward->judged(as_begun, result.overflow));
  if (!result.overflow) ARTESIAN_TRY_VOID(begin_update(result, 1.0 / (result.loss_scale * clip)));
  if (!result.overflow && updated_before && step_to_measure == 0) step_to_measure = step;
  updated_before = !result.overflow;
  if (!result.end.has_value()) ARTESIAN_TRY_VOID(prefetcher->look_ahead_to_next_step());
  const std::uint64_t end = system_clock().now_ns();
  const std::uint64_t micro_batches_done = std::exchange(micro_batches, 0);
  result.optimizer_s = static_cast<double>(end - begin + under_backward_ns) * 1e-9;
  ARTESIAN_TRY_VOID(figures->end_step(end, result));
  if (options.timeline != nullptr) {
    options.timeline->add(Lane::Optimizer, "norm", begin, end);
    options.timeline->add_step({.number = step,
                                .micro_batches = micro_batches_done,
                                .loss = result.loss,
                                .predicted_s = result.predicted_step_s,
                                .begin_ns = figures->step_begin_ns(),
                                .end_ns = end});
  }
  (optimizer->step_under_way() ? updating : completed) = result;
  ended_whole = poison.has_value() && !begun;  // skipped as any other: all of it is taken back
  return result;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Engine>> Engine::create(Module& module, const Config& config,
                                               const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(std::make_unique<Impl>(module, config, options)));
  auto built = from_torch([&] { return engine->impl_->build(); });
  if (!built.has_value()) {
    static_cast<void>(engine->close().has_value());  // the first error is the one that matters
    if (built.error().code == ErrorCode::Timeout) engine->impl_->stalled = true;
    return std::move(built).error();
  }
  return engine;
}

Engine::~Engine() {
  if (!impl_->closed) {
    const auto outcome = close();
    if (!outcome.has_value()) log(LogLevel::Error, outcome.error().to_string());
  }
  if (impl_->stalled) keep_for_ever(std::move(impl_));
}

Result<void> Engine::initialize(WeightSource& weights, const Progress& progress) {
  ARTESIAN_TRY_VOID(impl_->check_alive());
  if (impl_->initialized) {
    return out_of_order("initialize", "the engine has its weights; create another one");
  }
  ARTESIAN_TRY_VOID(impl_->remember(impl_->optimizer->initialize(weights, progress)));
  ARTESIAN_TRY_VOID(impl_->remember(impl_->prefetcher->gather_persistent()));
  impl_->figures->start();
  impl_->initialized = true;
  return {};
}

Result<double> Engine::forward(const Batch& batch) {
  ARTESIAN_TRY_VOID(impl_->check_forward("forward", 1));
  ARTESIAN_TRY(losses, impl_->remember(impl_->forward({&batch, 1})));
  ARTESIAN_TRY(values, std::move(losses));
  return values.front();
}

Result<void> Engine::backward() {
  ARTESIAN_TRY_VOID(impl_->check_backward());
  return impl_->remember(impl_->backward());
}

Result<std::vector<double>> Engine::forward_backward(std::span<const Batch> batches) {
  ARTESIAN_TRY_VOID(impl_->check_forward("forward_backward", batches.size()));
  ARTESIAN_TRY(losses, impl_->remember(impl_->forward_backward(batches)));
  return losses;
}

std::uint64_t Engine::micro_batches() const noexcept {
  return impl_->micro_batches;
}

Result<StepResult> Engine::step() {
  ARTESIAN_TRY_VOID(impl_->check_step());
  return impl_->remember(impl_->finish_step());
}

std::optional<StepResult> Engine::take_completed() noexcept {
  return std::exchange(impl_->completed, std::nullopt);
}

Result<void> Engine::finish_update() {
  ARTESIAN_TRY_VOID(impl_->check_ready("finish_update"));
  return impl_->remember(impl_->finish_update());
}

Result<at::Tensor> Engine::evaluate(const Batch& batch) {
  ARTESIAN_TRY_VOID(impl_->check_weights("evaluate"));
  ARTESIAN_TRY(output, impl_->remember(impl_->evaluate(batch)));
  return output;
}

Result<std::string> Engine::digest() {
  ARTESIAN_TRY_VOID(impl_->check_weights("digest"));
  ARTESIAN_TRY_VOID(finish_update());
  return impl_->of_no_step([&] { return impl_->optimizer->digest(impl_->module.parameters()); });
}

bool Engine::weights_readable() const noexcept {
  return impl_->weights_readable();
}

Result<void> Engine::read_master(std::uint32_t parameter,
                                 const std::function<Result<void>(std::span<const float>)>& sink) {
  if (!impl_->weights_readable()) ARTESIAN_TRY_VOID(impl_->check_weights("read_master"));
  ARTESIAN_TRY_VOID(impl_->remember(impl_->finish_update()));
  std::optional<Error> of_sink;
  const auto told = [&](std::span<const float> piece) {
    auto taken = sink(piece);
    if (!taken.has_value()) of_sink = taken.error();
    return taken;
  };
  ARTESIAN_TRY_VOID(impl_->of_no_step([&]() -> Result<void> {
    auto read = impl_->optimizer->read_master(parameter, told);
    if (!read.has_value() && !of_sink.has_value()) return read;
    return {};
  }));
  if (of_sink.has_value()) return *of_sink;
  return {};
}

const Placement& Engine::placement() const noexcept {
  return impl_->state->placement();
}
const Config& Engine::config() const noexcept {
  return impl_->config;
}
const std::vector<bool>& Engine::units_under_backward() const noexcept {
  return impl_->under_backward->units();
}
std::string Engine::describe_io() const {
  return zero3::describe_io(*impl_->io, impl_->state->path_count());
}
std::vector<SwapPathUse> Engine::path_use() const {
  return impl_->state->path_use();
}

Result<void> Engine::close() {
  Impl& impl = *impl_;
  if (impl.closed) return {};
  impl.closed = true;
  auto cleared = impl.prefetcher ? impl.prefetcher->clear() : Result<void>();
  auto closed = impl.state ? impl.state->close() : Result<void>();
  for (const auto* outcome : {&cleared, &closed}) {
    const bool stalled = !outcome->has_value() && outcome->error().code == ErrorCode::Timeout;
    impl.stalled = impl.stalled || stalled;
  }
  if (!cleared.has_value()) return cleared;
  return closed;
}

}  // namespace artesian::zero3
