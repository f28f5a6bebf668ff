#include "zero3/step/step_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/keep_for_ever.h"
#include "base/log.h"
#include "tiering/host_nodes.h"
#include "zero3/step/clip.h"
#include "zero3/step/io_engine.h"
#include "zero3/step/lr_schedule.h"

namespace artesian::zero3 {
namespace {

std::uint64_t random_run_id() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

Error out_of_order(const std::string& call, const std::string& text) {
  return make_error(ErrorCode::Invalid, call + "(): out of order: " + text);
}

}  // namespace

StepCore::StepCore(ModelShape shape, const Config& config, const StepCoreOptions& options,
                   Executor& executor)
    : shape_(std::move(shape)),
      config_(config),
      options_(options),
      executor_(executor),
      scaler_(config.param_dtype, config.loss_scale),
      guard_(config_),
      agreement_(options.group),
      run_id_(options.run_id != 0 ? options.run_id : random_run_id()) {}

Result<std::unique_ptr<StepCore>> StepCore::create(ModelShape shape, const Config& config,
                                                   const StepCoreOptions& options,
                                                   Executor& executor) {
  std::unique_ptr<StepCore> core(new StepCore(std::move(shape), config, options, executor));
  auto built = core->build();
  if (!built.has_value()) {
    static_cast<void>(core->close().has_value());  // the first error is the one to report
    if (built.error().code == ErrorCode::Timeout) core->stalled_ = true;
    return std::move(built).error();
  }
  return core;
}

Result<void> StepCore::build() {
  ARTESIAN_TRY_VOID(check_shape(shape_.parameters, shape_.stages));
  ARTESIAN_TRY_VOID(check_groups(shape_.parameters, options_.groups, config_.optimizer));
  ARTESIAN_TRY_VOID(agree());
  ARTESIAN_TRY_VOID(check_ranks());
  return agree_on(lay_out(), "the state to be laid out");
}

/// Creates all parts that hold the training. If one rank lacks room, all ranks fail.
Result<void> StepCore::lay_out() {
  ARTESIAN_TRY(placement, place());
  ARTESIAN_TRY_VOID(create_state(std::move(placement)));
  residency_ =
      std::make_unique<tiering::Residency>(state_->resident_units(), state_->store(),
                                           state_->device_pool(), executor_, state_->loader());
  prefetcher_ =
      std::make_unique<Prefetcher>(state_->layout(), *residency_, PrefetchLimits::of(config_.zero));
  if (options_.device_group != nullptr) {
    bus_.emplace(*options_.group, *options_.device_group, state_->device());
  }
  Bus* const bus = bus_.has_value() ? &*bus_ : nullptr;
  gradients_ = std::make_unique<Gradients>(*state_, options_.group, bus);
  OptimizerOptions how{.lender = options_.lender,
                       .stays = [this](std::uint32_t unit) { return prefetcher_->stays(unit); },
                       .group = options_.group,
                       .bus = bus};
  if (options_.unreached == Unreached::IsSkipped) {
    how.updates = [this](std::uint32_t parameter) { return gradients_->reached(parameter); };
  }
  how.orthogonalize = options_.orthogonalize;
  how.initial_squares = static_cast<float>(config_.optimizer.initial_squares);
  optimizer_ = std::make_unique<Optimizer>(*state_, *residency_, std::move(how));
  for (const StageSpec& stage : shape_.stages) {
    const bool trained = stage.lookup.has_value() && shape_.parameters[*stage.lookup].trainable;
    if (trained) looked_up_.push_back(*stage.lookup);
  }
  std::sort(looked_up_.begin(), looked_up_.end());
  looked_up_.erase(std::unique(looked_up_.begin(), looked_up_.end()), looked_up_.end());
  final_by_stage_ = final_after_stage(state_->placement(), shape_.stages);
  ARTESIAN_CHECK(final_by_stage_.size() == layout().stages.size(), final_by_stage_.size());
  under_backward_.emplace(config_, *state_, shape_.stages, options_.hooked, *gradients_,
                          *optimizer_);
  // With several ranks, updated shares would have to be gathered before the norm is known.
  const auto share = options_.group != nullptr ? 0.0 : options_.share_under_backward;
  if (under_backward_->undecided() && share.has_value()) {
    ARTESIAN_TRY_VOID(under_backward_->decide(*share));
  }
  checkpoints_ = std::make_unique<Checkpoints>(CheckpointSources{.parameters = shape_.parameters,
                                                                 .placement = state_->placement(),
                                                                 .optimizer = *optimizer_,
                                                                 .team = executor_,
                                                                 .files = files(),
                                                                 .run_id = run_id_,
                                                                 .group = options_.group});
  figures_ = std::make_unique<StepFigures>(
      FigureSources{.state = *state_,
                    .residency = *residency_,
                    .prefetcher = *prefetcher_,
                    .gradients = *gradients_,
                    .optimizer = *optimizer_,
                    .passes = counters_,
                    .group = options_.group,
                    .memory_beside_tiers = options_.memory_beside_tiers});
  return {};
}

/// Decides the placement, and logs its notes.
Result<Placement> StepCore::place() const {
  const std::size_t sizes = options_.input_elements.size();
  if (sizes != 0 && sizes != shape_.stages.size()) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("input_elements: got {}, allowed none or {}, one for each stage",
                                  sizes, shape_.stages.size()));
  }
  ARTESIAN_TRY(placement, make_placement({.parameters = &shape_.parameters,
                                          .stages = &shape_.stages,
                                          .config = &config_,
                                          .compute_dtype = options_.compute_dtype,
                                          .separate_device = separate_device(),
                                          .device_bytes = options_.budgets.device,
                                          .host_bytes = options_.budgets.host,
                                          .ranks = agreement_.ranks(),
                                          .device_group = options_.device_group != nullptr,
                                          .whole_params = whole_params(),
                                          .whole_frozen = !trains(),
                                          .hooked = options_.hooked,
                                          .split_master = options_.split_master,
                                          .spare_device = options_.spare_device,
                                          .resident = options_.resident,
                                          .input_elements = options_.input_elements,
                                          .activation_bytes = options_.budgets.activations}));
  if (config_.cpu_checkpointing && !placement.inputs.some()) {
    log(LogLevel::Info,
        "activation_checkpointing.cpu_checkpointing: inputs stay where they are computed: the "
        "engine was not told how large they are");
  }
  for (const std::string& note : placement.notes) log(LogLevel::Info, note);
  return placement;
}

/// Creates the I/O engine, and the state that uses it.
Result<void> StepCore::create_state(Placement placement) {
  ARTESIAN_TRY(paths, swap_paths_of(config_, options_.path_disks));
  tiering::Device& device = options_.device != nullptr ? *options_.device : tiering::host_device();
  auto nodes = tiering::nodes_of_host(device.numa_node(), paths.directories);
  for (const std::string& note : paths.notes) log(LogLevel::Info, note);
  ARTESIAN_TRY(engine, make_io_engine(config_, paths.io));
  io_ = std::move(engine);
  ModelStateOptions state_options{.placement = std::move(placement),
                                  .paths = std::move(paths),
                                  .run_id = run_id_,
                                  .rank = options_.group != nullptr ? options_.group->rank() : 0,
                                  .verify = verify_of(config_.artesian.verify),
                                  .pin_memory = config_.zero.offload_param.pin_memory &&
                                                config_.zero.offload_optimizer.pin_memory,
                                  .wait_seconds = options_.wait_seconds,
                                  .timeline = options_.timeline,
                                  .device = &device,
                                  .host_nodes = std::move(nodes)};
  ARTESIAN_TRY(made, ModelState::create(std::move(state_options), *io_, files(), executor_));
  state_ = std::move(made);
  const pinned::NodePolicy taken = state_->host_pool().statistics().nodes;
  if (!taken.nodes.empty()) log(LogLevel::Info, "host memory lies " + describe(taken));
  return {};
}

Error StepCore::fail(Error error) {
  step_state_ = step_state_ == StepState::Closed ? StepState::Closed : StepState::Failed;
  if (checkpoints_ && checkpoints_->adds()) give_up_checkpoint(error);
  if (!end_.has_value()) end_ = gradients_ ? gradients_->cause_of(std::move(error)) : error;
  return *end_;
}

Result<void> StepCore::check(StepCall call, const char* name) const {
  if (step_state_ == StepState::Closed) {
    return make_error(ErrorCode::Invalid, "the engine is closed; create another one");
  }
  if (is_legal(step_state_, call)) return {};
  if (is_end(step_state_)) return *end_;
  return out_of_order(name, advice(call));
}

/// Explains why a call is out of order, and which call must come first.
std::string StepCore::advice(StepCall call) const {
  if (call == StepCall::Initialize) return "the engine has its weights; create another one";
  const bool checkpoint =
      call == StepCall::ExpectSave || call == StepCall::Save || call == StepCall::Load;
  switch (step_state_) {
    case StepState::Unfilled: return "the engine has no weights yet; call initialize() first";
    case StepState::Forward:
    case StepState::Backward: return "a pass is under way; end it first";
    case StepState::Broken: return "a pass broke off in the middle; call abandon_step() first";
    case StepState::AwaitsBackward:
      if (checkpoint) break;
      if (call == StepCall::Step) {
        return "the last forward() has had no backward(); call backward() first";
      }
      return "the forward() before it has had no backward(); call backward() first, or evaluate() "
             "for a loss without gradients";
    case StepState::Begun:
      if (call != StepCall::BeginForward && call != StepCall::BeginBackward) {
        return "backward() has begun the update (nothing clips or skips it); call step() first";
      }
      break;
    default: break;
  }
  if (checkpoint) {
    return "a step is under way, and checkpoints are of whole ones; call step() or abandon_step() "
           "first";
  }
  if (call == StepCall::BeginBackward) return "no forward() waits for it; call forward() first";
  if (call == StepCall::BeginForward) {
    return fmt::format(
        "all {} micro-batches of this step are done (gradient_accumulation_steps); call step() "
        "first",
        micro_batches_);
  }
  return fmt::format(
      "got {} micro-batches since the last step, allowed {} (gradient_accumulation_steps); call "
      "forward() and backward() for each",
      micro_batches_, config_.accumulation_steps);
}

/// Excludes the bytes and time of reading the weights from the step in which it occurs.
template <typename Read>
auto StepCore::of_no_step(const Read& read) {
  const StepFigures::Mark before = figures_->mark();
  auto result = remember(read());
  figures_->leave_out(before);
  return result;
}

Result<void> StepCore::initialize(WeightSource& weights, const Optimizer::Progress& progress) {
  ARTESIAN_TRY_VOID(check(StepCall::Initialize, "initialize"));
  ARTESIAN_TRY_VOID(remember(optimizer_->initialize(weights, progress)));
  return become_ready();
}

/// Called once the homes are filled.
Result<void> StepCore::become_ready() {
  ARTESIAN_TRY_VOID(remember(prefetcher_->gather_persistent()));
  ARTESIAN_TRY_VOID(remember(gather_persistent_shares()));
  figures_->start();
  step_state_ = StepState::Ready;
  return {};
}

void StepCore::begin_step() {
  loss_sum_ = 0.0;
  tokens_ = 0;
  backward_ns_ = 0;
  rows_.clear();
  figures_->begin_step(optimizer_->step_under_way());
  gradients_->begin_step();
  prefetcher_->begin_step();
}

Result<void> StepCore::check_forward(std::uint64_t micro_batches, const char* call) const {
  ARTESIAN_TRY_VOID(check(StepCall::BeginForward, call));
  const std::uint64_t left = config_.accumulation_steps - micro_batches_;
  if (micro_batches < 1 || micro_batches > left) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("{}(): got {} batches, allowed 1 to {}, the micro-batches left "
                                  "of this step (gradient_accumulation_steps)",
                                  call, micro_batches, left));
  }
  return {};
}

Result<void> StepCore::begin_forward(std::uint64_t micro_batches, const char* call) {
  ARTESIAN_TRY_VOID(check_forward(micro_batches, call));
  if (micro_batches_ == 0) begin_step();
  forward_position_ = prefetcher_->position();
  awaited_ = meets_in_passes() ? Awaited::InPass : Awaited::Nowhere;
  step_state_ = StepState::Forward;
  return {};
}

Result<void> StepCore::enter(const AccessOrder::Access& units) {
  given_up_ = false;
  auto entered = enter_units(units);
  if (!entered.has_value()) return given_up_ ? std::move(entered) : remember(std::move(entered));
  entered_.push_back(units);
  if (first_uses_.has_value() && step_state_ == StepState::Forward) {
    first_uses_->insert(first_uses_->end(), units.begin(), units.end());
  }
  return {};
}

Result<void> StepCore::leave(const AccessOrder::Access& units) {
  const auto entered = std::find(entered_.rbegin(), entered_.rend(), units);
  ARTESIAN_CHECK(entered != entered_.rend(), units.size());
  entered_.erase(std::next(entered).base());
  return prefetcher_->leave(units);
}

Result<void> StepCore::end_forward(std::span<const double> losses) {
  ARTESIAN_TRY_VOID(check(StepCall::EndForward, "end_forward"));
  ARTESIAN_TRY_VOID(remember(complete_pending()));  // updates units that belong to no stage
  losses_pending_.assign(losses.begin(), losses.end());
  if (!meets()) {                   // ranks that do meet there communicate after the backward
    if (first_uses_.has_value()) {  // the order in a caller's model may differ from its stages
      set_update_order(*std::exchange(first_uses_, std::nullopt));
    }
    auto of_all = agreement_.end_forward(step_ + 1, micro_batches_, losses);
    if (!of_all.has_value() && agreement_.refused()) {
      take_forward_back();
      return std::move(of_all).error();
    }
    ARTESIAN_TRY(known, remember(std::move(of_all)));
    losses_pending_ = std::move(known);
  }
  micro_batches_pending_ = losses.size();
  step_state_ = StepState::AwaitsBackward;
  return {};
}

/// Resets to the state before the forward.
void StepCore::take_forward_back() noexcept {
  prefetcher_->rewind(forward_position_);
  if (first_uses_.has_value()) first_uses_->clear();
  step_state_ = micro_batches_ == 0 ? StepState::Ready : StepState::Accumulated;
}

Result<void> StepCore::begin_backward(const BackwardRequest& request) {
  ARTESIAN_TRY_VOID(check(StepCall::BeginBackward, "backward"));
  step_state_ = StepState::Backward;
  backward_begin_ns_ = monotonic_ns();
  if (!request.losses.empty()) {
    losses_pending_.assign(request.losses.begin(), request.losses.end());
    micro_batches_pending_ = losses_pending_.size();
  }
  if (meets()) awaited_ = Awaited::BehindBackward;
  if (!meets()) see_losses(losses_pending_);
  return remember(begin_update_under_backward(request));
}

void StepCore::see_losses(std::span<const double> losses) {
  for (const double loss : losses) {
    loss_sum_ += loss;
    guard_.see_loss(loss);
  }
}

template <typename Work>
Result<void> StepCore::timed_gradients(const Work& work) {
  const std::uint64_t begin = monotonic_ns();
  const auto waits = [this] {
    const bool separate = state_->separate_device();
    return gradients_->wait_seconds() + (separate ? state_->reader().wait_seconds() : 0.0);
  };
  const double waited = waits();
  auto outcome = work();
  const auto waited_ns = static_cast<std::uint64_t>((waits() - waited) * 1e9);
  const std::uint64_t taken_ns = monotonic_ns() - begin;
  counters_.gradient_ns += taken_ns - std::min(taken_ns, waited_ns);
  return outcome;
}

Result<void> StepCore::add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                           tiering::DeviceFence written) {
  const std::uint64_t begin = monotonic_ns();
  ARTESIAN_TRY_VOID(timed_gradients([&]() -> Result<void> {
    if (!gradients_->holds()) return gradients_->add(unit, gradients, written);
    for (const ParameterGradient& each : gradients) {
      auto held = gradients_->hold(each.parameter, each.data, written);
      if (!held.has_value()) return held;
    }
    return {};
  }));
  if (options_.timeline != nullptr) {
    options_.timeline->add(Lane::ToHost, layout().units[unit].name + " gradient", begin,
                           monotonic_ns());
  }
  return {};
}

/// With a separate device the host's cores have time under the last backward to sum the squares of
/// final gradients, so that the norm finds them. For units updated there they are known already.
void StepCore::sum_ahead(std::size_t stage) noexcept {
  ARTESIAN_CHECK(stage < final_by_stage_.size(), stage, final_by_stage_.size());
  if (!last_backward_ || !state_->separate_device() || options_.hooked) return;
  if (placement().exchange.once) return;  // none is final before step()
  const bool updates = optimizer_->under_backward();
  const auto summed = timed_gradients([&]() -> Result<void> {
    for (const std::uint32_t unit : final_by_stage_[stage]) {
      if (updates && under_backward_->units()[unit]) continue;
      // The norm reports values that are not finite.
      static_cast<void>(gradients_->sum_final(unit));
    }
    return {};
  });
  ARTESIAN_CHECK(summed.has_value());
}

Result<void> StepCore::gradients_are_added(std::size_t stage) {
  ARTESIAN_TRY_VOID(timed_gradients([&] { return gradients_->write_back(); }));
  sum_ahead(stage);
  return failed_ahead_.has_value() ? Result<void>(*failed_ahead_) : Result<void>();
}

Result<void> StepCore::end_backward(std::uint64_t tokens) {
  ARTESIAN_TRY_VOID(check(StepCall::EndBackward, "end_backward"));
  if (failed_ahead_.has_value()) return fail(*failed_ahead_);
  if (meets()) ARTESIAN_TRY_VOID(meet_behind_backward());
  backward_ns_ += monotonic_ns() - backward_begin_ns_;
  micro_batches_ += std::exchange(micro_batches_pending_, 0);
  losses_pending_.clear();
  tokens_ += tokens;
  ARTESIAN_CHECK(micro_batches_ <= config_.accumulation_steps, micro_batches_);
  const bool all = micro_batches_ == config_.accumulation_steps;
  step_state_ = under_backward_->begun()         ? StepState::Begun
                : all || rate_begun_.has_value() ? StepState::Full
                                                 : StepState::Accumulated;
  return {};
}

Result<void> StepCore::begin_again(const char* call) {
  ARTESIAN_TRY_VOID(check(StepCall::BeginAgain, call));
  ARTESIAN_CHECK(options_.hooked && !in_last_backward());
  step_state_ = StepState::AwaitsBackward;
  return {};
}

bool StepCore::update_begun() const noexcept {
  return under_backward_->begun();
}

void StepCore::break_pass() noexcept {
  if (is_end(step_state_)) return;
  step_state_ = StepState::Broken;
}

/// Drops what the current step holds and has begun, but nothing of the previous step.
Result<void> StepCore::take_step_back() {
  if (failed_ahead_.has_value()) return *failed_ahead_;
  ARTESIAN_TRY_VOID(settle_shares());
  for (const AccessOrder::Access& units : std::exchange(entered_, {})) {
    ARTESIAN_TRY_VOID(prefetcher_->leave(units));
  }
  if (optimizer_->speculative()) ARTESIAN_TRY_VOID(prefetcher_->stop_fetching());
  return under_backward_->abandon();
}

Result<void> StepCore::abandon_step() {
  ARTESIAN_TRY_VOID(check(StepCall::AbandonStep, "abandon_step"));
  if (under_backward_->begun()) {
    return fail(make_error(ErrorCode::Invalid,
                           "abandon_step(): the step's update began under its last backward, and "
                           "nothing of it is kept to take it back"));
  }
  ARTESIAN_TRY_VOID(give_micro_batch_up());
  ARTESIAN_TRY_VOID(remember(take_step_back()));
  prefetcher_->rewind(0);
  rows_.clear();
  losses_pending_.clear();
  micro_batches_pending_ = 0;
  static_cast<void>(checkpoints_->take_copy_ns());
  guard_.forget_losses();
  micro_batches_ = 0;
  rate_begun_.reset();
  figures_->start();
  step_state_ = StepState::Ready;
  return {};
}

Result<void> StepCore::begin_evaluation() {
  ARTESIAN_TRY_VOID(check(StepCall::Evaluate, "evaluate"));
  ARTESIAN_TRY_VOID(remember(complete_pending()));
  evaluation_begin_ = figures_->mark();
  evaluating_ = true;
  given_up_ = false;
  return remember(prefetcher_->begin_pass(Course::Evaluations));
}

Result<void> StepCore::end_evaluation(bool refused) {
  evaluating_ = false;
  ARTESIAN_TRY_VOID(remember(settle_shares()));
  Result<void> of_others = meet_behind_evaluation(refused);
  if (!of_others.has_value() && !agreement_.refused()) return fail(std::move(of_others).error());
  if (refused) prefetcher_->rewind(0);
  // If nothing is trained, another evaluation usually follows (such as the next token), so its
  // first units are prefetched and kept.
  if (trains()) ARTESIAN_TRY_VOID(remember(prefetcher_->begin_pass(Course::Steps)));
  figures_->leave_out(evaluation_begin_);
  return of_others;
}

double StepCore::scheduled_rate() const noexcept {
  return learning_rate(config_.scheduler, config_.optimizer, updates_);
}

StepConstants StepCore::step_constants(double learning_rate, double multiplier) const {
  StepConstants constants =
      make_step_constants(config_.optimizer, options_.groups, learning_rate, multiplier);
  const auto& cycle = config_.scheduler.cycle;
  const auto betas =
      betas_between(config_.scheduler, cycle.min_momentum, cycle.max_momentum, updates_);
  if (betas.has_value() && has_betas(config_.optimizer)) {
    for (GroupStep& group : constants.groups) {
      group.beta1 = betas->beta1;
      group.beta2 = betas->beta2;
    }
  }
  return constants;
}

double StepCore::rate_of(const StepRequest& request) const {
  if (!request.groups.empty()) return request.groups.front().lr;
  return request.learning_rate.value_or(scheduled_rate());
}

/// True if an update begun under backward has these constants.
bool StepCore::is_as_begun(const StepRequest& request) const {
  if (!rate_begun_.has_value()) return true;
  return request.groups == groups_begun_ && rate_of(request) == *rate_begun_;
}

std::optional<StepResult> StepCore::take_completed() noexcept {
  return std::exchange(completed_, std::nullopt);
}

/// Copies the rows' gradients of all micro-batches from a separate device.
Result<void> StepCore::bring_rows_to_host() {
  if (!state_->separate_device() || rows_.empty()) return {};
  ARTESIAN_TRY(written, state_->device().record(tiering::Queue::Compute));
  for (RowGradients& rows : rows_) {
    auto target = std::make_shared<std::vector<float>>(rows.rows.size() * rows.width);
    ARTESIAN_TRY_VOID(
        state_->reader().read_into(reinterpret_cast<std::byte*>(target->data()),
                                   {reinterpret_cast<const std::byte*>(rows.gradient),
                                    static_cast<std::uint64_t>(target->size() * sizeof(float))},
                                   written));
    rows.gradient = target->data();
    rows.keep =
        std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
            std::move(rows.keep), std::move(target));
  }
  return {};
}

/// Adds, after everything else, the rows of each looked-up parameter, once, in canonical order.
Result<void> StepCore::add_kept_rows() {
  ARTESIAN_TRY_VOID(bring_rows_to_host());
  for (const std::uint32_t parameter : looked_up_) {
    std::vector<RowsOfLookup> lookups;
    for (const RowGradients& part : rows_) {
      if (part.parameter == parameter) lookups.push_back({part.rows, part.gradient});
    }
    if (lookups.empty() && options_.group == nullptr) continue;
    const auto width = static_cast<std::uint64_t>(shape_.parameters[parameter].shape.back());
    ARTESIAN_TRY_VOID(
        timed_gradients([&] { return gradients_->add_lookups(parameter, lookups, width); }));
  }
  rows_.clear();
  return {};
}

Result<StepResult> StepCore::step(const StepRequest& request) {
  ARTESIAN_TRY_VOID(check(StepCall::Step, "step"));
  const std::uint64_t expected =
      request.micro_batches != 0 ? request.micro_batches : config_.accumulation_steps;
  if (micro_batches_ != expected) {
    if (request.micro_batches == 0) return out_of_order("step", advice(StepCall::Step));
    return make_error(
        ErrorCode::Invalid,
        fmt::format(
            "step(): got micro_batches {}, allowed {}, those that had a forward and a backward",
            expected, micro_batches_));
  }
  if (!request.groups.empty()) {
    const std::size_t count = std::max<std::size_t>(options_.groups.size(), 1);
    ARTESIAN_TRY_VOID(check_group_steps(request.groups, count));
  }
  if (step_state_ == StepState::Begun && !is_as_begun(request)) {
    return make_error(ErrorCode::Invalid,
                      "step(): the learning rate changed after the update began under backward; "
                      "give it to backward(), too");
  }
  return remember(finish_step(request));
}

/// Decides what happens to a step with these gradients.
StepVerdict StepCore::judge(const GradientNorm& norm, const StepRequest& request,
                            StepResult& result) {
  ARTESIAN_CHECK(micro_batches_ != 0);
  result.step = ++step_;
  result.loss = loss_sum_ / static_cast<double>(micro_batches_ * agreement_.ranks());
  result.loss_scale = scaler_.scale();  // the scale that backward used
  result.lr = rate_of(request);
  result.grad_norm = std::sqrt(norm.sum_squares) / result.loss_scale;
  if (!norm.finite) result.overflow_parameter = shape_.parameters[norm.bad_parameter].name;
  const bool begun = under_backward_->begun();
  auto verdict = guard_.judge(step_, result.overflow_parameter, scaler_, begun);
  result.overflow = verdict.skip;
  result.end = end_ = std::move(verdict.end);
  const double clip = clip_divisor(result.grad_norm, config_.gradient_clipping);
  const bool as_begun = !result.overflow && clip == 1.0 && is_as_begun(request);
  result.taken_back = optimizer_->speculative() && !as_begun;
  if (as_begun) result.updated_under_backward = optimizer_->updated_under_backward();
  // Like any skipped step, it rolls the whole update back.
  step_state_ = !result.end.has_value() ? StepState::Ready
                : begun                 ? StepState::Failed
                                        : StepState::EndedWhole;
  return {.as_begun = as_begun, .skipped = result.overflow, .ends = result.end.has_value()};
}

Result<void> StepCore::begin_update(const StepRequest& request, const StepResult& result) {
  const double clip = clip_divisor(result.grad_norm, config_.gradient_clipping);
  StepConstants constants = step_constants(result.lr, 1.0 / (result.loss_scale * clip));
  if (!request.groups.empty()) constants.groups = request.groups;
  ARTESIAN_TRY_VOID(optimizer_->begin_step(std::move(constants)));
  ++updates_;
  ARTESIAN_CHECK(updates_ <= step_, updates_, step_);
  last_rate_ = result.lr;
  return {};
}

Result<void> StepCore::complete_gradients() {
  ARTESIAN_TRY_VOID(
      timed_gradients([&] { return gradients_->add_held_of_step(shape_.parameters); }));
  ARTESIAN_TRY_VOID(add_kept_rows());
  return gradients_->complete();
}

Result<StepResult> StepCore::finish_step(const StepRequest& request) {
  StepResult result;
  ARTESIAN_TRY_VOID(settle_shares());
  const bool stop = options_.stop && options_.stop();
  ARTESIAN_TRY(
      facts, agreement_.step(step_ + 1, micro_batches_, tokens_, stop, digest_of(request.groups)));
  if (meets() && first_uses_.has_value()) {
    std::vector<std::uint32_t> order = *std::exchange(first_uses_, std::nullopt);
    ARTESIAN_TRY_VOID(agreement_.take_first(order, "the order of the update"));
    optimizer_->set_order(order);
  }
  result.tokens = facts.tokens;
  result.stop = facts.stop;
  std::uint64_t begin = 0;
  const auto verdict = [&]() -> Result<StepVerdict> {
    begin = monotonic_ns();
    ARTESIAN_TRY(norm, gradients_->norm());
    return judge(norm, request, result);
  };
  const bool early = micro_batches_ < config_.accumulation_steps;
  ARTESIAN_TRY_VOID(end_step(early ? StepEnd::Early : StepEnd::Whole, verdict,
                             [&] { return begin_update(request, result); }));
  measured_.end_step(step_, /*updates=*/!result.overflow, static_cast<double>(backward_ns_) * 1e-9);
  const std::uint64_t end = monotonic_ns();
  const std::uint64_t micro_batches = std::exchange(micro_batches_, 0);
  rate_begun_.reset();
  const std::uint64_t updating_ns = end - begin + under_backward_ns_;
  const std::uint64_t copying_ns = std::min(checkpoints_->take_copy_ns(), updating_ns);
  figures_->leave_out(copying_ns);  // copying under backward belongs to no step
  result.optimizer_s = static_cast<double>(updating_ns - copying_ns) * 1e-9;
  ARTESIAN_TRY_VOID(figures_->end_step(end, result));
  if (options_.timeline != nullptr) {
    options_.timeline->add(Lane::Optimizer, "norm", begin, end);
    options_.timeline->add_step({.number = step_,
                                 .micro_batches = micro_batches,
                                 .loss = result.loss,
                                 .predicted_s = result.predicted_step_s,
                                 .begin_ns = figures_->step_begin_ns(),
                                 .end_ns = end});
  }
  ARTESIAN_CHECK(!updating_.has_value());  // the last forward has completed it
  (optimizer_->step_under_way() ? updating_ : completed_) = result;
  return result;
}

Result<std::string> StepCore::digest() {
  ARTESIAN_TRY_VOID(check(StepCall::Evaluate, "digest"));
  ARTESIAN_TRY_VOID(remember(complete_pending()));
  return of_no_step([&] { return optimizer_->digest(shape_.parameters); });
}

Result<void> StepCore::read_state(std::uint32_t parameter, StateKind kind,
                                  const std::function<Result<void>(std::span<const float>)>& sink,
                                  const char* call) {
  ARTESIAN_TRY_VOID(check(StepCall::ReadState, call));
  ARTESIAN_TRY_VOID(optimizer_->check_kind(parameter, kind));
  ARTESIAN_TRY_VOID(remember(complete_pending()));
  std::optional<Error> of_sink;
  const auto told = [&](std::span<const float> piece) {
    auto taken = sink(piece);
    if (!taken.has_value()) of_sink = taken.error();
    return taken;
  };
  ARTESIAN_TRY_VOID(of_no_step([&]() -> Result<void> {
    auto read = optimizer_->read_state(parameter, kind, told);
    if (!read.has_value() && !of_sink.has_value()) return read;
    return {};
  }));
  if (of_sink.has_value()) return *of_sink;
  return {};
}

Result<bool> StepCore::read_gradient(
    std::uint32_t parameter, const std::function<Result<void>(std::span<const float>)>& sink) {
  ARTESIAN_TRY_VOID(check(StepCall::ReadState, "read_gradient"));
  const bool some = step_state_ == StepState::Accumulated || step_state_ == StepState::Full ||
                    (step_state_ == StepState::AwaitsBackward && micro_batches_ > 0);
  if (some) ARTESIAN_TRY_VOID(remember(gradients_->add_held_of_step(shape_.parameters)));
  if (!some || !gradients_->reached(parameter)) return false;
  const auto read = [&]() -> Result<void> {
    ARTESIAN_TRY_VOID(optimizer_->stop_reading());
    return gradients_->read(parameter, sink);
  };
  ARTESIAN_TRY_VOID(of_no_step(read));
  return true;
}

Result<bool> StepCore::write_gradient(const ParameterGradient& gradient) {
  ARTESIAN_TRY_VOID(check(StepCall::WriteState, "write_gradient"));
  const ParameterSpec& spec = shape_.parameters[gradient.parameter];
  if (!spec.trainable) {
    return make_error(ErrorCode::Invalid,
                      "write_gradient: \"" + spec.name + "\": a frozen parameter has no gradient");
  }
  if (step_state_ == StepState::Ready) return false;
  ARTESIAN_TRY_VOID(take_update_back());
  const auto replace = [&]() -> Result<void> {
    ARTESIAN_TRY_VOID(optimizer_->stop_reading());
    ARTESIAN_TRY_VOID(gradients_->add_held_of_step(shape_.parameters));
    return gradients_->replace(gradient);
  };
  ARTESIAN_TRY_VOID(of_no_step(replace));
  return true;
}

Result<void> StepCore::write_state(
    std::uint32_t parameter, StateKind kind,
    const std::function<void(std::uint64_t first, std::span<float> values)>& source) {
  ARTESIAN_TRY_VOID(check(StepCall::WriteState, "write_state"));
  ARTESIAN_TRY_VOID(optimizer_->check_kind(parameter, kind));
  ARTESIAN_TRY_VOID(remember(complete_pending()));
  checkpoints_->forget();
  return of_no_step([&]() -> Result<void> {
    ARTESIAN_TRY_VOID(optimizer_->write_state(parameter, kind, source));
    if (kind != StateKind::Master) return {};
    ARTESIAN_TRY_VOID(prefetcher_->forget(layout().places[parameter].unit));
    return gather_persistent_shares();
  });
}

std::string StepCore::describe_io() const {
  return zero3::describe_io(*io_, state_->path_count());
}

Result<void> StepCore::close() {
  if (step_state_ == StepState::Closed) return {};
  step_state_ = StepState::Closed;
  gathers_.clear();  // before the slots to which they refer
  auto saved = checkpoints_ ? checkpoints_->close() : Result<void>();
  auto cleared = prefetcher_ ? prefetcher_->clear() : Result<void>();
  auto closed = state_ ? state_->close() : Result<void>();
  for (const auto* outcome : {&cleared, &closed}) {
    const bool stalled = !outcome->has_value() && outcome->error().code == ErrorCode::Timeout;
    stalled_ = stalled_ || stalled;
  }
  if (!cleared.has_value()) return cleared;
  return closed.has_value() ? std::move(saved) : std::move(closed);
}

StepCore::~StepCore() {
  if (step_state_ != StepState::Closed) {
    const auto outcome = close();
    if (!outcome.has_value()) log(LogLevel::Error, outcome.error().to_string());
  }
  if (!stalled_) return;
  keep_for_ever(std::move(checkpoints_));
  keep_for_ever(std::move(optimizer_));
  keep_for_ever(std::move(gradients_));
  keep_for_ever(std::move(residency_));
  keep_for_ever(std::move(state_));
  keep_for_ever(std::move(io_));
}

}  // namespace artesian::zero3
