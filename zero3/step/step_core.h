// StepCore: what a training step is made of, whoever runs the model. It knows bytes, not tensors: a
// driver (torch/unit_graphs.h is one) enters the units that it computes with, leaves them, and
// hands over gradients; gathering, look-ahead, the norm, loss scale and guard, the deferred update
// and the update under backward are here.
//
//   create, initialize or load_checkpoint                   once
//     begin_forward, { enter, leave }*, end_forward         a group of micro-batches
//     begin_backward, { enter, add, leave }*, end_backward  its gradients
//     step                                                  after 1 and more micro-batches
//     begin_evaluation, { enter, leave }*, end_evaluation   between two of the above
//     save_checkpoint, begin_checkpoint, load_checkpoint    between steps
//
// Which call is legal when is the table in step_state.h; one that is not is an error that leaves
// everything as it was. The update of a step is fixed by step() and made when the next forward, or
// anything else, comes to a unit: it is pending beside whatever step is open then, and abandoning
// that one does not touch it. Any error of a tier ends the run: every later call returns that first
// one, except that the weights before a step that ended the run can be read (weights_readable()).
// Used from one thread.
//
// Note [Where ranks meet]: of a model that this library runs, ranks do the same things in the same
// order, and come together wherever a unit's gradient is added or its update is. Of a model that
// somebody else runs nothing of that is known; there they meet at the end of a micro-batch's
// backward, whose gradients have been held until then, and in step(), which completes the update.
// Between these a rank may read, evaluate or skip what it likes, unless parameters are divided:
// then ranks also meet where one of them lacks others' shares of a unit, where backward leaves a
// unit, whose gradients are then sent, and at the end of an evaluation, and all of them enter the
// same units in the same order. A rank that gives a pass up
// tells the others where they meet next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/result.h"
#include "base/timeline.h"
#include "zero3/checkpoint/checkpoint_load.h"
#include "zero3/checkpoint/checkpoints.h"
#include "zero3/config/config.h"
#include "zero3/flow/step_flow.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/prefetcher.h"
#include "zero3/step/agreement.h"
#include "zero3/step/gradients.h"
#include "zero3/step/measured_step.h"
#include "zero3/step/optimizer.h"
#include "zero3/step/parameter_groups.h"
#include "zero3/step/step_figures.h"
#include "zero3/step/step_guard.h"
#include "zero3/step/step_request.h"
#include "zero3/step/step_result.h"
#include "zero3/step/step_state.h"
#include "zero3/step/under_backward.h"

namespace artesian::zero3 {

struct StepCoreOptions {
  Budgets budgets{};
  DType compute_dtype = DType::Float32;
  tiering::Device* device = nullptr;  // the device tier; null: the CPU's memory
  BufferLender* lender = nullptr;     // lends memory that activations have freed; may be null
  std::uint64_t run_id = 0;           // 0: choose at random
  comm::Group* group = nullptr;       // the ranks that train together; null: one rank
  comm::DeviceGroup* device_group = nullptr;  // null unless their devices reach each other
  Orthogonalize orthogonalize{};              // matrix product for Muon, from the driver
  Agreement::Facts facts{};                   // facts of the driver that must be equal on all ranks
  Timeline* timeline = nullptr;
  FileSystem* files = nullptr;  // null: the kernel's file system
  double wait_seconds = 60.0;   // deadline of every wait for the disk
  /// Called by step() for StepResult::stop. Null: never stop.
  std::function<bool()> stop{};
  bool split_master = true;  // false: bf16 training with whole fp32 master weights, for comparison
  bool spare_device = true;  // false: state meant for NVMe never gets a home in spare device memory
  bool resident = false;     // as PlacementRequest::resident
  std::optional<double> share_under_backward{};
  std::vector<tiering::PathDisk> path_disks{};
  std::vector<std::uint64_t> input_elements{};
  std::vector<GroupOptions>
      groups{};  // see parameter_groups.h; empty: one group with the config's constants
  Unreached unreached = Unreached::GetsZeros;
  /// The caller runs the model: the driver observes which units are used when, reports complete()
  /// units, and rolls back the update before any access that must not see it. Each rank may run a
  /// different graph, and ranks communicate at two places: Note [Where ranks meet].
  bool hooked = false;
  /// as FigureSources::memory_beside_tiers
  std::function<Result<MemoryBesideTiers>(std::uint64_t tiers)> memory_beside_tiers{};
};

struct BackwardRequest {
  /// True if the group's micro-batches are the step's last: its update may begin under this
  /// backward. Absent: true if they complete config.accumulation_steps.
  std::optional<bool> last{};
  /// The learning rate that step() will be given. Absent: the schedule's.
  std::optional<double> learning_rate{};
  /// The StepRequest::groups that step() will be given.
  std::vector<GroupStep> groups{};
  /// The micro-batches' losses, if the driver did not know them at end_forward().
  std::span<const double> losses{};
};

/// One look-up's gradients: row i of `gradient` is added to row rows[i] of the parameter.
struct RowGradients {
  std::uint32_t parameter = 0;
  std::span<const std::int64_t> rows;
  const float* gradient = nullptr;   // [rows, width]; in device memory if the device is separate
  std::uint64_t width = 0;           // must divide the parameter's numel
  std::shared_ptr<const void> keep;  // owns both arrays
};

class StepCore : public StepFlow<StepCore> {
 public:
  /// Plans, reserves every tier and opens the swap files. The executor must outlive the core.
  /// Errors: Exhausted (budgets), Busy, NoSpace, Invalid (paths, options), Unsupported.
  static Result<std::unique_ptr<StepCore>> create(ModelShape shape, const Config& config,
                                                  const StepCoreOptions& options,
                                                  Executor& executor);
  /// Closes, unless close() was called. If the disk does not answer any more, memory, descriptors
  /// and I/O threads are kept until the process ends, as the kernel may still write.
  ~StepCore();
  StepCore(const StepCore&) = delete;
  StepCore& operator=(const StepCore&) = delete;

  /// Fills the homes of all state. Errors: the source's, Io, NoSpace.
  Result<void> initialize(WeightSource& weights, const Optimizer::Progress& progress);

  /// Checks that begin_forward() of this many micro-batches is allowed now; changes nothing.
  Result<void> check_forward(std::uint64_t micro_batches, const char* call) const;
  /// Opens the forward of a group of micro-batches; the first group also opens the step. `call`:
  /// the call's name for the user, for messages. Errors: Invalid (out of order; more micro-batches
  /// than the step has left).
  Result<void> begin_forward(std::uint64_t micro_batches, const char* call = "forward");
  /// Gathers the units of one access, makes their pending update, and pins them. Errors: Io,
  /// Corrupt, Timeout, Exhausted, which end the run; Invalid, which does not: another rank has
  /// abandoned this pass, and so has this one; in a step, abandon_step() must follow.
  Result<void> enter(const AccessOrder::Access& units);
  Result<void> leave(const AccessOrder::Access& units);
  /// First byte of an entered unit's gathered parameters.
  std::byte* data(std::uint32_t unit) noexcept { return prefetcher_->data(unit); }
  /// Ends the group's forward; completes the pending update, so that new gradients may be added.
  /// Shape: losses: one for each micro-batch; empty if begin_backward() passes them. Errors: Io,
  /// Corrupt, NoSpace; with several ranks the group's, and Invalid if one of them has refused its
  /// batch: then this forward is refused, too, without ending the run.
  Result<void> end_forward(std::span<const double> losses);
  /// Refuses an invalid batch of the group: as if its forward had not been tried, on all ranks.
  /// Errors: with several ranks, the group's.
  Result<void> refuse_forward() noexcept;
  /// Returns the minimum of the ranks' values, the same on all of them. Errors: the group's.
  Result<std::uint64_t> least_of_ranks(std::uint64_t value, const char* what) {
    return remember(agreement_.least(value, what));
  }

  /// Opens the backward of the preceding forward. Errors: Invalid (out of order), Io.
  Result<void> begin_backward(const BackwardRequest& request = {});
  /// Factor of every loss's gradient, besides the micro-batch's weight.
  double loss_scale() const noexcept { return scaler_.scale(); }
  /// Adds gradients of parameters of one unit: Gradients::add.
  Result<void> add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                   tiering::DeviceFence written = {});
  /// The accumulators, for gradients that arrive in parts.
  Gradients& gradients() noexcept { return *gradients_; }
  /// Keeps the gradients of looked-up rows until step(), which adds them in the order of these
  /// calls.
  void add_rows(RowGradients rows) { rows_.push_back(std::move(rows)); }
  /// Called when all micro-batches of the group have added their gradients of a stage: writes back
  /// spilled ones, and updates final ones under backward. Errors: Io, Corrupt, NoSpace, Timeout.
  Result<void> stage_accumulated(std::size_t stage) { return end_stage(stage); }
  /// Reports, in the step's last backward, that nothing more is added to the unit's gradient, as
  /// far as the driver of a hooked model knows. Call it before stage_accumulated().
  void complete(std::uint32_t unit) { under_backward_->complete(unit); }
  bool is_complete(std::uint32_t unit) const noexcept {
    return in_last_backward() && under_backward_->is_complete(unit);
  }
  /// True once the step's last backward has begun, and with it the part of the update made under
  /// it.
  bool in_last_backward() const noexcept { return rate_begun_.has_value(); }
  /// Reports that something will be added to the unit after all, or that it is used again:
  /// take_update_back() must follow, and the unit is never updated under backward again.
  void reopen(std::uint32_t unit) noexcept { under_backward_->added_late(unit); }
  /// Rolls back what a hooked model's step has begun of its update, for callers that need gradients
  /// or weights from before it; the open backward then counts as not the last one. Errors: Io,
  /// Corrupt, Timeout.
  Result<void> take_update_back();
  /// `tokens`: number in the group's micro-batches. Errors: those of updates between operators; if
  /// ranks communicate here, the group's, and Invalid if one of them has abandoned the micro-batch:
  /// then it is abandoned here, too, and abandon_step() must follow.
  Result<void> end_backward(std::uint64_t tokens);
  /// Goes on with the step's last micro-batch, which was complete: begin_backward() must follow,
  /// and what it adds belongs to that micro-batch. For callers that read a gradient between two of
  /// its backwards. Errors: Invalid (out of order).
  Result<void> begin_again(const char* call);

  /// Makes the optimizer step over the micro-batches since the last step. Errors: Invalid (out of
  /// order, or not the number of micro-batches in `request`); Io, Corrupt.
  Result<StepResult> step(const StepRequest& request = {});
  /// Drops the gradients of the current step, and rolls back what it has begun of its update; the
  /// previous step's pending update is not affected. Afterwards weights are as if there had been no
  /// forward since the previous step. Errors: Invalid if the update cannot be rolled back; Io,
  /// Timeout; the group's, as other ranks are told of an abandoned micro-batch.
  Result<void> abandon_step();
  /// True if the current step has begun its update and can no longer be abandoned.
  bool update_begun() const noexcept;
  /// Reports that an error outside of the tiers interrupted a pass: call abandon_step() next.
  void break_pass() noexcept;
  /// Completes the update that the last step began. Errors: Io, Corrupt, NoSpace.
  Result<void> finish_update();
  /// Completes it at least for persistent units, whose parameters the caller may read between
  /// passes; in the order of the update they are the first ones. With several ranks it completes
  /// all of it, and each has these parameters as a whole. Errors: as finish_update, and the
  /// group's.
  Result<void> update_persistent();
  /// Returns the last step whose update is complete, with all its figures; each step once.
  std::optional<StepResult> take_completed() noexcept;
  /// Updates units as far as that needs no waiting; called between two of the driver's operators.
  void update_between_operators() noexcept;

  /// Opens a forward without gradients, whose bytes and time are not counted in any step. Errors:
  /// as finish_update; Invalid (out of order).
  Result<void> begin_evaluation();
  /// `refused`: its batch could not be taken. Errors: Io, Timeout; where ranks meet here, the
  /// group's, and Invalid, which ends nothing: another one has refused its batch.
  Result<void> end_evaluation(bool refused);

  /// Opens the folder in which save_checkpoint() saves from now on, instead of an earlier one. The
  /// next checkpoint descends from the loaded one, whether it is loaded before or after this call.
  /// Errors: those of Checkpoints::open, and Busy: a save is under way; they do not end the run.
  Result<void> open_checkpoints(const CheckpointPlace& place);
  /// Closes the folder and frees its lock until the next save, so that another engine may save
  /// there. Errors: Busy, Io.
  Result<void> leave_checkpoints();
  /// Combined write rate, in bytes per second as probed at the start, of the disks of the optimizer
  /// state, or else of the parameters; 0: neither is on NVMe.
  double disk_write_rate() const noexcept;
  /// State of the checkpoint folder; not open before open_checkpoints().
  const Checkpoints& checkpoints() const noexcept { return *checkpoints_; }
  /// Saves the state after the last step, whose update it completes; only between steps. Returns
  /// when the checkpoint is durable. Its bytes and time are not counted in any step. If the request
  /// names a folder that is not open, it is opened, and all its checkpoints are kept. Errors:
  /// Invalid (out of order, no folder); those of open_checkpoints(); Busy: a save is under way;
  /// those of Checkpoints::finish, which do not end the run; Io, Corrupt, Timeout of the tiers,
  /// which end it: state_of_step() tells.
  Result<SavedCheckpoint> save_checkpoint(const SaveRequest& request);
  /// Announces, before the last backward begins, that the step will be saved. State updated under
  /// that backward is then copied at once instead of being read later. begin_checkpoint() or
  /// save_checkpoint() must follow the step, with the same folder, tag and buffers in the request.
  /// Errors: Invalid (out of order), Busy, those of open_checkpoints().
  Result<void> expect_checkpoint(const SaveRequest& request);
  /// Three calls do what save_checkpoint() does, but in the background of training. This one
  /// begins, between steps, to save the state after the last step. The pending update copies each
  /// sub-group when it writes it: Note [Copied as it passes] in checkpoints.h. Errors: Invalid,
  /// Busy, those of open_checkpoints().
  Result<void> begin_checkpoint(const SaveRequest& request);
  /// Starts to make the checkpoint durable, and returns. Call it after begin_checkpoint(), at best
  /// when the next forward has completed the update; otherwise this call completes it. `trainer`:
  /// replaces the request's. Errors: Invalid (none has begun); the tiers', which end the run.
  /// finish_checkpoint() returns the errors of the save.
  Result<void> commit_checkpoint(std::optional<SavedTrainer> trainer = {});
  /// Waits up to this long until the checkpoint is durable. Returns nothing if there is none to
  /// wait for. Errors: those of Checkpoints::finish, which do not end the run; Timeout: not yet,
  /// call again.
  Result<std::optional<SavedCheckpoint>> finish_checkpoint(double seconds);
  /// Replaces weights, moments and everything else that the next step depends on with those of a
  /// checkpoint. Call it instead of initialize(), or between two steps. `progress` in elements. If
  /// no tag is given and a checkpoint is damaged, an older one is loaded. Errors: those of
  /// choose_checkpoints and CheckpointLoad::open, and Busy (a save is under way): nothing has
  /// changed; Io, Corrupt of the checkpoint: there are no weights, and another load or initialize()
  /// must follow; those of the tiers, which end the run.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request,
                                           const Optimizer::Progress& progress = {});

  /// Optimizer::digest and Optimizer::read_state, not counted in any step; they complete a pending
  /// update. Errors: Io, Corrupt, Timeout; Invalid (out of order); for read_state also the sink's,
  /// which do not end the run. `call`: as in begin_forward.
  Result<std::string> digest();
  Result<void> read_state(std::uint32_t parameter, StateKind kind,
                          const std::function<Result<void>(std::span<const float>)>& sink,
                          const char* call = "read_state");
  /// Gradients::read, once the step has had a backward and its update has not begun. Returns false
  /// without reading if the parameter got no gradient since the last step, or if it cannot be read
  /// now. The values include the loss scale.  Errors: as read_state.
  Result<bool> read_gradient(std::uint32_t parameter,
                             const std::function<Result<void>(std::span<const float>)>& sink);
  /// Gradients::replace, when write_state() is legal and the step has had a backward: the step's
  /// update uses this gradient. Returns false without writing if there was no backward. Errors: as
  /// read_state; Invalid: a frozen parameter.
  Result<bool> write_gradient(const ParameterGradient& gradient);
  /// Optimizer::write_state, not counted in any step, while no group of micro-batches is under way.
  /// Everything computed from here on uses the new values, including the current step's update.
  /// Errors: as read_state.
  Result<void> write_state(
      std::uint32_t parameter, StateKind kind,
      const std::function<void(std::uint64_t first, std::span<float> values)>& source);
  bool weights_readable() const noexcept { return is_legal(step_state_, StepCall::ReadState); }

  /// Checks that `call` is legal now; `name` is its name for the user.
  Result<void> check(StepCall call, const char* name) const;
  /// Records the first error, which ends the run: later calls return it instead of working on
  /// damaged state.
  template <typename T>
  Result<T> remember(Result<T> result) {
    if (!result.has_value()) result = fail(std::move(result).error());
    return result;
  }

  StepState state_of_step() const noexcept { return step_state_; }
  const ModelShape& shape() const noexcept { return shape_; }
  const Config& config() const noexcept { return config_; }
  DType compute_dtype() const noexcept { return options_.compute_dtype; }
  bool resident() const noexcept { return options_.resident; }
  std::uint32_t ranks() const noexcept { return agreement_.ranks(); }
  /// If ranks meet within passes, all call this where backward is done with a use of the unit. If
  /// on all of them no use is left (`complete`), its gradients are sent to the owners of the
  /// shares. Errors: those of Gradients::add; Invalid: another rank has refused its batch, or is
  /// elsewhere.
  Result<void> send_gradients(std::uint32_t unit, bool complete);
  /// True if ranks meet within passes, too: Note [Where ranks meet].
  bool meets_in_passes() const noexcept { return meets() && placement().params_cut; }
  /// True if step() completes the update, so that nothing of it is pending afterwards.
  bool completes_update() const noexcept { return options_.resident || meets(); }
  /// True if other ranks wait for the end of the current micro-batch.
  bool is_awaited() const noexcept { return awaited_ == Awaited::BehindBackward; }
  const Budgets& budgets() const noexcept { return options_.budgets; }
  const Placement& placement() const noexcept { return state_->placement(); }
  const Layout& layout() const noexcept { return state_->layout(); }
  ModelState& state() noexcept { return *state_; }
  PassCounters& counters() noexcept { return counters_; }
  Timeline* timeline() const noexcept { return options_.timeline; }
  std::uint64_t micro_batches() const noexcept { return micro_batches_; }
  /// The number of updates of the parameter, including a pending one.
  std::uint64_t update_count(std::uint32_t parameter) const noexcept {
    return optimizer_->update_count(parameter);
  }
  const std::vector<bool>& units_under_backward() const noexcept {
    return under_backward_->units();
  }
  std::string describe_io() const;
  /// Totals since the state was created.
  std::uint64_t bytes_nvme_read() const { return figures_->mark().counters.bytes_nvme_read; }
  std::vector<SwapPathUse> path_use() const { return state_->path_use(); }
  /// Drains and removes the swap files. Drops a pending update together with the weights. Errors:
  /// Io, Timeout.
  Result<void> close();
  /// True if close() has given up waiting for a disk: then the core, the executor and the device
  /// must not be destroyed.
  bool stalled() const noexcept { return stalled_; }

 private:
  StepCore(ModelShape shape, const Config& config, const StepCoreOptions& options,
           Executor& executor);
  Result<void> build();
  Result<void> lay_out();
  Result<void> agree();
  /// Gives all ranks the same outcome: comm::Group::agree.
  template <typename T>
  Result<void> agree_on(const Result<T>& own, const char* what) {
    Result<void> outcome = own.has_value() ? Result<void>() : Result<void>(Error(own.error()));
    return options_.group == nullptr ? std::move(outcome)
                                     : options_.group->agree(std::move(outcome), {what});
  }
  Result<void> check_ranks() const;
  bool separate_device() const noexcept {
    return options_.device != nullptr && !options_.device->host_accessible();
  }
  /// True if each rank has all parameters. Those of separate devices are divided only if the
  /// devices can gather them from each other.
  bool whole_params() const noexcept {
    return config_.zero.stage < 3 || (separate_device() && options_.device_group == nullptr);
  }
  /// False if the model only evaluates; then any rank may do so alone, and has all of it.
  bool trains() const noexcept {
    const auto& all = shape_.parameters;
    return std::any_of(all.begin(), all.end(), [](const auto& each) { return each.trainable; });
  }
  /// See Note [Where ranks meet].
  bool meets() const noexcept { return options_.hooked && options_.group != nullptr; }
  void see_losses(std::span<const double> losses);
  Result<void> meet_behind_backward();
  Result<void> meet_behind_evaluation(bool refused);
  Result<void> give_micro_batch_up();
  void take_forward_back() noexcept;
  Result<Placement> place() const;
  Result<void> create_state(Placement placement);
  Error fail(Error error);
  void sum_ahead(std::size_t stage) noexcept;
  std::string advice(StepCall call) const;
  void begin_step();
  StepConstants step_constants(double learning_rate, double multiplier) const;
  double rate_of(const StepRequest& request) const;
  bool is_as_begun(const StepRequest& request) const;
  double scheduled_rate() const noexcept;
  Result<void> become_ready();
  Result<void> check_not_saving(const char* call) const;
  Result<void> end_former_save();
  Result<CheckpointChoice> choose_checkpoint(const std::string& directory);
  Result<LoadedCheckpoint> load_one(const LoadRequest& request,
                                    const Optimizer::Progress& progress);
  Result<void> open_for(const SaveRequest& request);
  void copy_what_is_made();
  void copy_ahead();
  void give_up_checkpoint(Error cause);
  Result<void> copy_rest();
  FileSystem& files() const noexcept {
    return options_.files != nullptr ? *options_.files : system_files();
  }
  TrainingState training_state() const;
  std::vector<SavedGroup> saved_groups() const;
  void restore(const CheckpointLoad& load);
  Result<void> begin_update_under_backward(const BackwardRequest& request);
  Result<void> take_step_back();
  Result<void> bring_rows_to_host();
  Result<void> add_kept_rows();
  Result<StepResult> finish_step(const StepRequest& request);
  StepVerdict judge(const GradientNorm& norm, const StepRequest& request, StepResult& result);
  Result<void> begin_update(const StepRequest& request, const StepResult& result);

  friend StepFlow;  // the class that this one is a player of
  Prefetcher& prefetcher() noexcept { return *prefetcher_; }
  Optimizer& update() noexcept { return *optimizer_; }
  UnderBackward& under_backward() noexcept { return *under_backward_; }
  Result<void> update_before_use(std::uint32_t unit);
  Result<void> gather_shares(const AccessOrder::Access& units);
  Result<void> begin_gather(std::uint32_t unit);
  Result<void> settle_shares();
  Result<void> gather_persistent_shares();
  Result<void> give_pass_up(const AccessOrder::Access& units, Error refused);
  Result<void> finish_pending();
  Result<void> gradients_are_added(std::size_t stage);
  Result<void> update_final(std::size_t stage);
  Result<void> complete_gradients();

  void set_update_order(const std::vector<std::uint32_t>& uses);
  StepFigure figure_of(const MeasuredStep& measured) const;
  template <typename Work>
  Result<void> go_on_updating(const Work& work);
  template <typename Work>
  Result<void> timed_gradients(const Work& work);
  template <typename Read>
  auto of_no_step(const Read& read);
  Result<void> complete_pending();

  const ModelShape shape_;
  const Config config_;
  StepCoreOptions options_;  // with the budgets of the rank with the least memory
  Executor& executor_;
  std::unique_ptr<aio::Engine> io_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<tiering::Residency> residency_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::optional<Bus> bus_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<UnderBackward> under_backward_;
  std::unique_ptr<StepFigures> figures_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::vector<std::vector<std::uint32_t>> final_by_stage_;  // see plan/units_under_backward.h
  PassCounters counters_;
  LossScaler scaler_;
  StepGuard guard_;

  StepState step_state_ = StepState::Unfilled;
  std::optional<Error> end_;  // why the run ended
  bool stalled_ = false;      // transfers are in flight, and the disk does not answer

  Agreement agreement_;
  std::uint64_t run_id_;
  std::optional<CheckpointLink> last_link_;  // parent of the next checkpoint

  std::uint64_t step_ = 0;           // steps done, skipped ones included
  std::uint64_t updates_ = 0;        // steps that made an update
  std::optional<double> last_rate_;  // learning rate of the last update
  // For the current step:
  std::uint64_t micro_batches_ = 0;  // micro-batches whose forward and backward are done
  std::uint64_t tokens_ = 0;
  double loss_sum_ = 0.0;
  // The prefetcher's position at the beginning of the open forward.
  std::size_t forward_position_ = 0;
  std::vector<double> losses_pending_;     // losses of all ranks, from a forward until its backward
  std::size_t micro_batches_pending_ = 0;  // micro-batches in this forward
  std::vector<std::uint32_t> looked_up_;   // trained parameters that are looked up, in order
  std::vector<RowGradients> rows_;
  /// Where the other ranks wait for this one, and must be told if it gives up: nowhere; at a unit,
  /// or the end of the forward; at the end of the backward, or at a unit before.
  enum class Awaited : std::uint8_t { Nowhere, InPass, BehindBackward };
  Awaited awaited_ = Awaited::Nowhere;
  bool last_backward_ = false;                // this is the step's last backward
  std::vector<AccessOrder::Access> entered_;  // accesses that were entered and not yet left
  // Order of the units in the first forward.
  std::optional<std::vector<std::uint32_t>> first_uses_{std::in_place};
  std::optional<double> rate_begun_;      // learning rate of an update begun under backward; and
  std::vector<GroupStep> groups_begun_;   // its groups' constants
  std::uint64_t under_backward_ns_ = 0;   // time spent updating
  std::uint64_t backward_begin_ns_ = 0;   // start of the open backward
  std::uint64_t backward_ns_ = 0;         // duration from beginning to end
  StepFigures::Mark evaluation_begin_{};  // start of the open evaluation
  bool evaluating_ = false;               // an evaluation is open
  bool given_up_ = false;                 // the pass, with another rank that has refused its batch
  struct Gather {                         // other ranks' shares of a unit, being gathered
    std::uint32_t unit = 0;
    std::unique_ptr<comm::Group::Begun> begun;  // null if they have arrived
  };
  std::vector<Gather> gathers_;
  // For the previous step, whose update is pending:
  std::optional<StepResult> updating_;
  std::optional<StepResult> completed_;
  // Error of an update between operators, returned by the next call.
  std::optional<Error> failed_ahead_;
  MeasuredStep measured_;  // for choosing the share of the update under backward
};

}  // namespace artesian::zero3
