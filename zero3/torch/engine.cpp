#include "zero3/torch/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"
#include "base/launcher.h"
#include "base/log.h"
#include "zero3/plan/step_accesses.h"
#include "zero3/step/step_core.h"
#include "zero3/torch/activation_memory.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/first_calls.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/make_core.h"
#include "zero3/torch/saved_facts.h"
#include "zero3/torch/torch_executor.h"
#include "zero3/torch/unit_graphs.h"

namespace artesian::zero3 {
class Engine::Impl {
 public:
  Impl(Module& model, const Config& resolved, const EngineOptions& given)
      : module(model), config(resolved), options(given) {}

  Module& module;
  const Config config;
  const EngineOptions options;
  TorchExecutor executor;
  ComputeDevice compute;
  std::unique_ptr<StepCore> core;
  std::unique_ptr<ParameterTensors> tensors;
  std::unique_ptr<UnitGraphs> graphs;
  bool layer_by_layer = false;           // whether running layer by layer gives the same bits
  std::uint64_t activations_of_one = 0;  // the most bytes that a micro-batch kept; 0: unknown

  Result<void> build();
  Agreement::Facts facts() const;
  Result<void> open_device();
  Result<MemoryBesideTiers> memory_with_device(std::uint64_t tiers) const;
  Result<std::vector<double>> forward(std::span<const Batch> batches, const char* call);
  Error broken_off(Error error);
  Result<void> backward(const BackwardOptions& how);
  Result<std::size_t> group_size(std::size_t count) const;
  std::uint32_t ranks() const { return options.group == nullptr ? 1 : options.group->ranks(); }
  /// Number of micro-batches of all ranks.
  double micro_batches_of_step() const {
    return static_cast<double>(config.accumulation_steps * ranks());
  }
  Result<SaveRequest> with_facts(SaveRequest request) const;
};

namespace {

/// UnitGraphs only supports a look-up in stage 0.
Result<void> check_lookups(const std::vector<StageSpec>& stages) {
  for (std::size_t stage = 1; stage < stages.size(); ++stage) {
    if (!stages[stage].lookup.has_value()) continue;
    return make_error(ErrorCode::Invalid,
                      fmt::format("module.stages()[{}] {}: lookup is for stage 0 alone; use "
                                  "at::embedding in forward()",
                                  stage, stages[stage].name));
  }
  return {};
}

}  // namespace

Result<void> Engine::Impl::build() {
  make_first_calls();
  ARTESIAN_TRY_VOID(check_shape(module.parameters(), module.stages()));
  ARTESIAN_TRY_VOID(check_trainable(module.parameters()));
  ARTESIAN_TRY_VOID(check_lookups(module.stages()));
  layer_by_layer = keeps_order(module.stages());
  if (options.group != nullptr && !layer_by_layer) {  // a stage's gradients arrive rank by rank
    return make_error(ErrorCode::Unsupported,
                      fmt::format("not supported yet with {} ranks: a parameter that the graphs of "
                                  "two stages have; train with one process",
                                  ranks()));
  }
  ARTESIAN_TRY_VOID(open_device());
  StepCoreOptions core_options{
      .run_id = options.run_id,
      .group = options.group,
      .device_group = options.device_group,
      .facts = facts(),
      .timeline = options.timeline,
      .files = options.files,
      .wait_seconds = options.wait_seconds,
      .stop = options.group != nullptr ? options.stop : std::function<bool()>(),
      .split_master = options.split_master,
      .spare_device = options.spare_device,
      .share_under_backward = options.share_under_backward,
      .path_disks = options.path_disks,
      .input_elements = options.input_elements,
      .groups = options.groups,
      .unreached = options.unreached,
      .memory_beside_tiers = [this](std::uint64_t tiers) { return memory_with_device(tiers); }};
  ARTESIAN_TRY(made, make_core({module.parameters(), module.stages()}, config, compute,
                               std::move(core_options), executor));
  core = std::move(made);
  ARTESIAN_TRY(leaves,
               ParameterTensors::create(module.parameters(), core->placement(), compute.torch));
  tensors = std::move(leaves);
  graphs = std::make_unique<UnitGraphs>(
      module, *core, *tensors,
      UnitGraphsOptions{.device = compute.torch,
                        .activation_checkpointing = config.activation_checkpointing,
                        .ranks = ranks(),
                        .stop = options.group != nullptr ? std::function<bool()>() : options.stop});
  return {};
}

/// Facts that must be equal on all ranks for the bits of one.
Agreement::Facts Engine::Impl::facts() const {
  const auto bits = facts_of_bits(compute.torch, config.param_dtype);
  Agreement::Facts facts = options.facts;
  facts.insert(facts.end(), bits.begin(), bits.end());
  return facts;
}

Result<void> Engine::Impl::open_device() {
  ARTESIAN_TRY(opened, open_compute_device(options.device, config.artesian.determinism));
  compute = std::move(opened);
  if (options.backend != nullptr) compute.backend = options.backend;
  if (!compute.backend->host_accessible()) compute.backend->set_wait_seconds(options.wait_seconds);
  const bool joins = options.group != nullptr && options.device_group == nullptr;
  return joins ? join_devices(compute, *options.group) : Result<void>();
}

Result<MemoryBesideTiers> Engine::Impl::memory_with_device(std::uint64_t tiers) const {
  MemoryBesideTiers beside = memory_beside_tiers(tiers);
  if (compute.torch.is_cuda()) {
    ARTESIAN_TRY(peak, tensor_bytes_peak(compute));
    beside.activations = peak;
  }
  return beside;
}

/// An error of one batch leaves the step unchanged; any other has ended the run.
Result<std::vector<double>> Engine::Impl::forward(std::span<const Batch> batches,
                                                  const char* call) {
  ARTESIAN_TRY_VOID(check_stream(compute, call));
  ARTESIAN_TRY_VOID(core->begin_forward(batches.size(), call));
  ARTESIAN_TRY(before, core->remember(tensor_bytes_now(compute)));
  const double multiplier = core->loss_scale() / micro_batches_of_step();
  auto ran = graphs->forward(batches, multiplier);
  if (graphs->stopped()) return broken_off(std::move(ran).error());
  if (graphs->refused()) {
    ARTESIAN_TRY_VOID(core->refuse_forward());
    return ran;
  }
  ARTESIAN_TRY(losses, core->remember(std::move(ran)));
  ARTESIAN_CHECK(losses.size() == batches.size(), losses.size(), batches.size());
  auto ended = core->end_forward(losses);
  if (!ended.has_value()) {
    // Another rank may have refused its batch: then nothing of this rank's batch is kept either.
    if (core->check(StepCall::BeginForward, call).has_value()) {
      ARTESIAN_TRY_VOID(core->remember(graphs->forget()));
    }
    return std::move(ended).error();
  }
  ARTESIAN_TRY(after, core->remember(tensor_bytes_now(compute)));
  const std::uint64_t kept = after > before ? after - before : 0;
  activations_of_one = std::max(activations_of_one, kept / batches.size());
  return losses;
}

/// The error of a pass that `stop` has ended: abandon_step() must follow.
Error Engine::Impl::broken_off(Error error) {
  core->break_pass();
  return error;
}

Result<void> Engine::Impl::backward(const BackwardOptions& how) {
  ARTESIAN_TRY_VOID(check_stream(compute, "backward"));
  ARTESIAN_TRY_VOID(core->begin_backward({.last = how.last, .learning_rate = how.learning_rate}));
  const double multiplier = how.loss_weight.has_value()
                                ? core->loss_scale() * *how.loss_weight
                                : core->loss_scale() / micro_batches_of_step();
  auto ran = graphs->backward(multiplier);
  if (graphs->stopped()) return broken_off(std::move(ran).error());
  ARTESIAN_TRY_VOID(core->remember(std::move(ran)));
  return core->end_backward(graphs->tokens());
}

/// The number of micro-batches, of the next `count`, that run at once.
Result<std::size_t> Engine::Impl::group_size(std::size_t count) const {
  const KeptInputs& inputs = core->placement().inputs;
  std::uint64_t room = 1;
  if (inputs.some()) {
    room = inputs.at_once;
  } else if (activations_of_one != 0 && layer_by_layer) {
    room = core->budgets().activations / activations_of_one;
  }
  ARTESIAN_TRY(least, core->least_of_ranks(room, "micro-batches at once"));
  return std::clamp<std::uint64_t>(least, 1, count);
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Engine>> Engine::create(Module& module, const Config& config,
                                               const EngineOptions& options) {
  if (options.group == nullptr) ARTESIAN_TRY_VOID(check_one_process("EngineOptions::group"));
  std::unique_ptr<Engine> engine(new Engine(std::make_unique<Impl>(module, config, options)));
  auto built = from_torch([&] { return engine->impl_->build(); });
  if (built.has_value()) return engine;
  // Memory that a hung disk may still write to may also be in use by the device.
  if (built.error().code == ErrorCode::Timeout) keep_for_ever(std::move(engine->impl_));
  return std::move(built).error();
}

Engine::~Engine() {
  if (impl_ == nullptr || impl_->core == nullptr) return;
  const auto outcome = impl_->core->close();
  if (!outcome.has_value()) log(LogLevel::Error, outcome.error().to_string());
  if (impl_->core->stalled()) keep_for_ever(std::move(impl_));
}

Result<void> Engine::initialize(WeightSource& weights, const Progress& progress) {
  return impl_->core->initialize(weights, progress);
}

Result<double> Engine::forward(const Batch& batch) {
  ARTESIAN_TRY(losses, impl_->forward({&batch, 1}, "forward"));
  return losses.front();
}

Result<void> Engine::backward(const BackwardOptions& options) {
  return impl_->backward(options);
}

Result<std::vector<double>> Engine::forward_backward(std::span<const Batch> batches,
                                                     const BackwardOptions& options) {
  ARTESIAN_TRY_VOID(impl_->core->check_forward(batches.size(), "forward_backward"));
  std::vector<double> losses;
  while (losses.size() < batches.size()) {
    const auto rest = batches.subspan(losses.size());
    ARTESIAN_TRY(count, impl_->group_size(rest.size()));
    ARTESIAN_CHECK(count != 0 && count <= rest.size(), count, rest.size());
    ARTESIAN_TRY(made, impl_->forward(rest.first(count), "forward_backward"));
    BackwardOptions how = options;
    if (how.last.has_value()) how.last = *how.last && count == rest.size();
    ARTESIAN_TRY_VOID(impl_->backward(how));
    losses.insert(losses.end(), made.begin(), made.end());
  }
  return losses;
}

std::uint64_t Engine::micro_batches() const noexcept {
  return impl_->core->micro_batches();
}

Result<StepResult> Engine::step(const StepRequest& request) {
  ARTESIAN_TRY(result, impl_->core->step(request));
  if (!result.overflow) impl_->tensors->bump_versions();
  return result;
}

Result<void> Engine::abandon_step() {
  ARTESIAN_TRY_VOID(impl_->core->abandon_step());
  return impl_->core->remember(impl_->graphs->forget());
}

std::optional<StepResult> Engine::take_completed() noexcept {
  return impl_->core->take_completed();
}

Result<void> Engine::finish_update() {
  return impl_->core->finish_update();
}

Result<at::Tensor> Engine::evaluate(const Batch& batch) {
  ARTESIAN_TRY_VOID(check_stream(impl_->compute, "evaluate"));
  ARTESIAN_TRY_VOID(impl_->core->begin_evaluation());
  auto output = impl_->graphs->evaluate(batch);
  const bool refused = impl_->graphs->refused();
  if (!refused) output = impl_->core->remember(std::move(output));
  if (!refused && !output.has_value()) return output;
  ARTESIAN_TRY_VOID(impl_->core->end_evaluation(refused));
  return output;
}

Result<std::string> Engine::digest() {
  return impl_->core->digest();
}

bool Engine::weights_readable() const noexcept {
  return impl_->core->weights_readable();
}

Result<void> Engine::read_master(std::uint32_t parameter,
                                 const std::function<Result<void>(std::span<const float>)>& sink) {
  return impl_->core->read_state(parameter, StateKind::Master, sink, "read_master");
}

double Engine::disk_write_rate() const noexcept {
  return impl_->core->disk_write_rate();
}

Result<void> Engine::open_checkpoints(const CheckpointPlace& place) {
  return impl_->core->open_checkpoints(place);
}

const Checkpoints& Engine::checkpoints() const noexcept {
  return impl_->core->checkpoints();
}

Result<SaveRequest> Engine::Impl::with_facts(SaveRequest request) const {
  ARTESIAN_TRY_VOID(add_facts(request, compute.torch, core->compute_dtype()));
  return request;
}

Result<SavedCheckpoint> Engine::save_checkpoint(SaveRequest request) {
  ARTESIAN_TRY(whole, impl_->with_facts(std::move(request)));
  return impl_->core->save_checkpoint(whole);
}

Result<void> Engine::expect_checkpoint(const SaveRequest& request) {
  return impl_->core->expect_checkpoint(request);
}

Result<void> Engine::begin_checkpoint(SaveRequest request) {
  ARTESIAN_TRY(whole, impl_->with_facts(std::move(request)));
  return impl_->core->begin_checkpoint(whole);
}

Result<void> Engine::commit_checkpoint(std::optional<SavedTrainer> trainer) {
  return impl_->core->commit_checkpoint(std::move(trainer));
}

Result<std::optional<SavedCheckpoint>> Engine::finish_checkpoint(double seconds) {
  return impl_->core->finish_checkpoint(seconds);
}

Result<LoadedCheckpoint> Engine::load_checkpoint(const LoadRequest& request,
                                                 const Progress& progress) {
  ARTESIAN_TRY(loaded, impl_->core->load_checkpoint(request, progress));
  impl_->tensors->bump_versions();
  if (!request.optimizer_states) return loaded;
  ARTESIAN_TRY_VOID(go_on_from(loaded, impl_->compute.torch, impl_->core->compute_dtype()));
  return loaded;
}

const Placement& Engine::placement() const noexcept {
  return impl_->core->placement();
}
const Config& Engine::config() const noexcept {
  return impl_->config;
}
const std::vector<bool>& Engine::units_under_backward() const noexcept {
  return impl_->core->units_under_backward();
}
std::string Engine::describe_io() const {
  return impl_->core->describe_io();
}
std::vector<SwapPathUse> Engine::path_use() const {
  return impl_->core->path_use();
}

Result<void> Engine::close() {
  return impl_->core->close();
}

}  // namespace artesian::zero3
