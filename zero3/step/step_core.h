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
// then ranks also meet where one of them lacks others' shares of a unit, and at the end of an
// evaluation, and all of them enter the same units in the same order. A rank that gives a pass up
// tells the others where they meet next.
#pragma once

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
  std::uint64_t run_id = 0;           // 0: random
  comm::Group* group = nullptr;       // the ranks that train together; null: one
  Orthogonalize orthogonalize{};      // matrix product for Muon, from the driver
  Agreement::Facts facts{};           // facts of the driver that must be equal on all ranks
  Timeline* timeline = nullptr;
  FileSystem* files = nullptr;  // null: the kernel's
  double wait_seconds = 60.0;   // deadline of every wait for the disk
  /// Asked by step(): StepResult::stop. Null: never.
  std::function<bool()> stop{};
  bool split_master = true;  // false: bf16 training with whole fp32 master weights, to compare
  bool spare_device = true;  // false: nothing that is meant for NVMe has a home there
  bool resident = false;     // PlacementRequest::resident
  std::optional<double> share_under_backward{};
  std::vector<tiering::PathDisk> path_disks{};
  std::vector<std::uint64_t> input_elements{};
  std::vector<GroupOptions>
      groups{};  // parameter_groups.h; empty: one, with the config's constants
  Unreached unreached = Unreached::GetsZeros;
  /// Somebody else runs the model: the driver finds out what is used when, says complete() of
  /// units, and takes the update back before anything that should not see it. With several ranks
  /// each may run another graph, and they meet at two places: Note [Where ranks meet].
  bool hooked = false;
  /// FigureSources::memory_beside_tiers.
  std::function<Result<MemoryBesideTiers>(std::uint64_t tiers)> memory_beside_tiers{};
};

struct BackwardRequest {
  /// The group's micro-batches are the step's last: its update may begin under this backward.
  /// Nothing: they are if they make up config.accumulation_steps.
  std::optional<bool> last{};
  /// The learning rate that step() will be given. Nothing: the schedule's.
  std::optional<double> learning_rate{};
  /// StepRequest::groups that step() will be given.
  std::vector<GroupStep> groups{};
  /// Losses of the micro-batches, from a driver that did not know them at end_forward().
  std::span<const double> losses{};
};

/// One look-up's gradients: row i of `gradient` belongs to row rows[i] of the parameter.
struct RowGradients {
  std::uint32_t parameter = 0;
  std::span<const std::int64_t> rows;
  const float* gradient = nullptr;   // [rows, width]; in the device's memory where that is separate
  std::uint64_t width = 0;           // divides the parameter's numel
  std::shared_ptr<const void> keep;  // owns both
};

class StepCore : public StepFlow<StepCore> {
 public:
  /// Plans, reserves every tier and opens the swap files. The executor must outlive the core.
  /// Errors: Exhausted (budgets), Busy, NoSpace, Invalid (paths, options), Unsupported.
  static Result<std::unique_ptr<StepCore>> create(ModelShape shape, const Config& config,
                                                  const StepCoreOptions& options,
                                                  Executor& executor);
  /// Closes if that has not happened. If the disk does not answer any more, memory, descriptors and
  /// I/O threads are kept until the process ends: the kernel may still write.
  ~StepCore();
  StepCore(const StepCore&) = delete;
  StepCore& operator=(const StepCore&) = delete;

  /// Fills the home tiers. Errors: the source's, Io, NoSpace.
  Result<void> initialize(WeightSource& weights, const Optimizer::Progress& progress);

  /// Checks that begin_forward() of so many micro-batches is allowed now; changes nothing.
  Result<void> check_forward(std::uint64_t micro_batches, const char* call) const;
  /// Opens the forward of a group of micro-batches, and with the first one the step. `call` is the
  /// user's name of it, for messages. Errors: Invalid (out of order; more micro-batches than the
  /// step has left).
  Result<void> begin_forward(std::uint64_t micro_batches, const char* call = "forward");
  /// Gathers the units of one access, brings their pending update, and pins them. Errors: Io,
  /// Corrupt, Timeout, Exhausted; all end the run. Also
  /// Invalid, which ends nothing: another rank has given this pass up, and this one has, too; of a
  /// step, abandon_step() comes next.
  Result<void> enter(const AccessOrder::Access& units);
  Result<void> leave(const AccessOrder::Access& units);
  /// First byte of an entered unit's gathered parameters.
  std::byte* data(std::uint32_t unit) noexcept { return prefetcher_->data(unit); }
  /// The group is run; completes the pending update, so that new gradients may come.
  /// Shape: losses: one for each micro-batch; none, if begin_backward() brings them.
  /// Errors: Io, Corrupt, NoSpace; with several ranks the group's, and Invalid where one of them
  /// has refused its batch: then this forward is refused, too, and nothing has ended.
  Result<void> end_forward(std::span<const double> losses);
  /// A batch of the group cannot be taken: as if its forward had not been tried, on all ranks.
  /// Errors: with several ranks, the group's.
  Result<void> refuse_forward() noexcept;
  /// Returns the least of the ranks' values, the same on all of them. Errors: the group's.
  Result<std::uint64_t> least_of_ranks(std::uint64_t value, const char* what) {
    return remember(agreement_.least(value, what));
  }

  /// Opens the backward of the forward before it. Errors: Invalid (out of order), Io.
  Result<void> begin_backward(const BackwardRequest& request = {});
  /// Multiplies every loss's gradient, besides the micro-batch's weight.
  double loss_scale() const noexcept { return scaler_.scale(); }
  /// Adds gradients of parameters of one unit: Gradients::add.
  Result<void> add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                   tiering::DeviceFence written = {});
  /// The accumulators, for gradients that arrive in parts.
  Gradients& gradients() noexcept { return *gradients_; }
  /// Keeps the gradients of looked-up rows until step(), which adds them in the order in which they
  /// came here.
  void add_rows(RowGradients rows) { rows_.push_back(std::move(rows)); }
  /// Called when all micro-batches of the group have added their gradients of a stage: writes back
  /// spilled ones, and updates final ones under backward. Errors: Io, Corrupt, NoSpace, Timeout.
  Result<void> stage_accumulated(std::size_t stage) { return end_stage(stage); }
  /// Notes, in the step's last backward, that nothing is added to the unit's gradient any more, as
  /// far as the driver of a hooked model knows. Before stage_accumulated().
  void complete(std::uint32_t unit) { under_backward_->complete(unit); }
  bool is_complete(std::uint32_t unit) const noexcept {
    return in_last_backward() && under_backward_->is_complete(unit);
  }
  /// The step's last backward has begun, and with it what of the update it takes.
  bool in_last_backward() const noexcept { return rate_begun_.has_value(); }
  /// Something will be added to the unit all the same, or it is used again: take_update_back()
  /// follows, and the unit is not updated under backward any more.
  void reopen(std::uint32_t unit) noexcept { under_backward_->added_late(unit); }
  /// Takes back what a hooked model's step has begun of its update, for whoever needs gradients or
  /// weights as they are before it; the backward that is open is not the last one. Errors: Io,
  /// Corrupt, Timeout.
  Result<void> take_update_back();
  /// `tokens`: of the group's micro-batches. Errors: those of updates between operators; of several
  /// ranks that meet here, the group's, and Invalid where one of them has given the micro-batch up:
  /// then this one has, too, and abandon_step() comes next.
  Result<void> end_backward(std::uint64_t tokens);

  /// The optimizer step over the micro-batches since the last one. Errors: Invalid (out of order,
  /// or another number of micro-batches than `request` says); Io, Corrupt.
  Result<StepResult> step(const StepRequest& request = {});
  /// Drops the gradients of the step under way, and takes back what of its update was begun; the
  /// update that the step before has begun goes on. After it weights are as if no forward had come
  /// since that step. Errors: Invalid where the update has begun for good; Io, Timeout; the
  /// group's, whom it tells of a micro-batch that is given up.
  Result<void> abandon_step();
  /// True if the step under way has begun its update, and cannot be abandoned any more.
  bool update_begun() const noexcept;
  /// An error that is not a tier's broke a pass off: call abandon_step() next.
  void break_pass() noexcept;
  /// Completes the update that the last step began. Errors: Io, Corrupt, NoSpace.
  Result<void> finish_update();
  /// The last step whose update is complete, with all its figures; each step once.
  std::optional<StepResult> take_completed() noexcept;
  /// Updates as much as needs no waiting: called between two of the driver's operators.
  void update_between_operators() noexcept;

  /// Opens a forward without gradients, whose bytes and time count for no step. Errors: as
  /// finish_update; Invalid (out of order).
  Result<void> begin_evaluation();
  /// `refused`: its batch could not be taken. Errors: Io, Timeout; where ranks meet here, the
  /// group's, and Invalid, which ends nothing: another one has refused its batch.
  Result<void> end_evaluation(bool refused);

  /// Checkpoints::open: where save_checkpoint() saves from now on, in place of an earlier folder.
  /// The next checkpoint descends from what is loaded before, or after. Errors: those of
  /// Checkpoints::open, and Busy: a save is under way; they end nothing.
  Result<void> open_checkpoints(const CheckpointPlace& place);
  /// Gives the folder and its lock back until the next save, so that another engine may save there.
  /// Errors: Busy, Io.
  Result<void> leave_checkpoints();
  /// Bytes a second that the disks of the optimizer state, or else of the parameters, take
  /// together, as probed at the start; 0: neither is on NVMe.
  double disk_write_rate() const noexcept;
  /// The folder's side; not open before open_checkpoints().
  const Checkpoints& checkpoints() const noexcept { return *checkpoints_; }
  /// Saves the state after the last step, between steps alone: completes its update. Returns when
  /// the checkpoint is durable. What it moves and takes is of no step. A folder that the request
  /// names is opened, unless it is the one that is; all its checkpoints are kept. Errors: Invalid
  /// (out of order, no folder); those of open_checkpoints(); Busy: a save is under way; those of
  /// Checkpoints::finish, which end nothing; Io, Corrupt, Timeout of the tiers, which end the run:
  /// state_of_step() tells.
  Result<SavedCheckpoint> save_checkpoint(const SaveRequest& request);
  /// Announces, before the last backward begins, that the step will be saved. What the update
  /// makes under that backward is then copied at once, and not read later. Of the request, folder,
  /// tag and buffers count: begin_checkpoint() or save_checkpoint() must follow the step, with the
  /// same ones. Errors: Invalid (out of order), Busy, those of open_checkpoints().
  Result<void> expect_checkpoint(const SaveRequest& request);
  /// save_checkpoint() beside training, in three calls. Begins, between steps, to save the state
  /// after the last one. The update that is still to come copies the state as it makes it: Note
  /// [Copied as it passes] in checkpoints.h. Errors: Invalid, Busy, those of open_checkpoints().
  Result<void> begin_checkpoint(const SaveRequest& request);
  /// Starts to make it durable, and returns: any time after begin_checkpoint(), at best once the
  /// next forward has completed the update; before, it does. `trainer`: in place of the request's.
  /// Errors: Invalid (none has begun); the tiers', which end the run. A save that has failed is
  /// what finish_checkpoint() says.
  Result<void> commit_checkpoint(std::optional<SavedTrainer> trainer = {});
  /// Waits so long until it is durable. Nothing: there is none to wait for. Errors: those of
  /// Checkpoints::finish, which end nothing; Timeout: not yet, ask again.
  Result<std::optional<SavedCheckpoint>> finish_checkpoint(double seconds);
  /// In place of initialize(), or between two steps: weights, moments and all that the next step
  /// depends on become those of a checkpoint. `progress` in elements. Errors: those of
  /// choose_checkpoints (where no tag is named, an older one is gone on from if one is damaged) and
  /// CheckpointLoad::open, and Busy: a save is under way, which change nothing; Io, Corrupt of the
  /// checkpoint, after which there are no weights, for another load or initialize(); those of the
  /// tiers, which end the run.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request,
                                           const Optimizer::Progress& progress = {});

  /// Optimizer::digest and Optimizer::read_state, of no step; a pending update is completed.
  /// Errors: Io, Corrupt, Timeout; Invalid (out of order); read_state also the sink's, which end
  /// nothing. `call`: as begin_forward's.
  Result<std::string> digest();
  Result<void> read_state(std::uint32_t parameter, StateKind kind,
                          const std::function<Result<void>(std::span<const float>)>& sink,
                          const char* call = "read_state");
  /// Gradients::read, once the step has had a backward and its update has not begun. False, and
  /// nothing read: no gradient of the parameter has come since the last step, or none can be read
  /// now. What comes is multiplied by the loss scale. Errors: as read_state.
  Result<bool> read_gradient(std::uint32_t parameter,
                             const std::function<Result<void>(std::span<const float>)>& sink);
  /// Gradients::replace, where write_state() is legal and once the step has had a backward: its
  /// update has this gradient. False, and nothing is written: it has had none. Errors: as
  /// read_state; Invalid: a frozen parameter.
  Result<bool> write_gradient(const ParameterGradient& gradient);
  /// Optimizer::write_state, of no step, while no group of micro-batches is under way: what is
  /// computed from here on, the update of the step under way too, has the new values. Errors: as
  /// read_state.
  Result<void> write_state(
      std::uint32_t parameter, StateKind kind,
      const std::function<void(std::uint64_t first, std::span<float> values)>& source);
  bool weights_readable() const noexcept { return is_legal(step_state_, StepCall::ReadState); }

  /// Checks that `call` is in order now; `name` is what the user calls it.
  Result<void> check(StepCall call, const char* name) const;
  /// The first error ends the run: later calls return it instead of working on damaged state.
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
  /// True if ranks meet within passes, too: Note [Where ranks meet].
  bool meets_in_passes() const noexcept { return meets() && placement().params_cut; }
  /// True if step() completes the update: nothing of it is pending behind it.
  bool completes_update() const noexcept { return options_.resident || meets(); }
  /// True if other ranks wait for the end of the micro-batch under way.
  bool is_awaited() const noexcept { return awaited_; }
  const Budgets& budgets() const noexcept { return options_.budgets; }
  const Placement& placement() const noexcept { return state_->placement(); }
  const Layout& layout() const noexcept { return state_->layout(); }
  ModelState& state() noexcept { return *state_; }
  PassCounters& counters() noexcept { return counters_; }
  Timeline* timeline() const noexcept { return options_.timeline; }
  std::uint64_t micro_batches() const noexcept { return micro_batches_; }
  /// How many updates the parameter has had, with one that is pending.
  std::uint64_t update_count(std::uint32_t parameter) const noexcept {
    return optimizer_->update_count(parameter);
  }
  const std::vector<bool>& units_under_backward() const noexcept {
    return under_backward_->units();
  }
  std::string describe_io() const;
  /// Of all that has run since the state was made.
  std::uint64_t bytes_nvme_read() const { return figures_->mark().counters.bytes_nvme_read; }
  std::vector<SwapPathUse> path_use() const { return state_->path_use(); }
  /// Drains and removes the swap files. A pending update is dropped with the weights.
  /// Errors: Io, Timeout.
  Result<void> close();
  /// True if close() has given up on a disk that does not answer: then the core, the executor and
  /// the device must not be destroyed.
  bool stalled() const noexcept { return stalled_; }

 private:
  StepCore(ModelShape shape, const Config& config, const StepCoreOptions& options,
           Executor& executor);
  Result<void> build();
  Result<void> lay_out();
  Result<void> agree();
  /// One outcome for all ranks: comm::Group::agree.
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
  /// Each rank has all parameters: what is divided is gathered where the host reaches it.
  bool whole_params() const noexcept { return config_.zero.stage < 3 || separate_device(); }
  /// Note [Where ranks meet].
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

  friend StepFlow;  // which this class plays
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
  StepCoreOptions options_;  // budgets are those of the rank with least memory
  Executor& executor_;
  std::unique_ptr<aio::Engine> io_;
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<tiering::Residency> residency_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<Gradients> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<UnderBackward> under_backward_;
  std::unique_ptr<StepFigures> figures_;
  std::unique_ptr<Checkpoints> checkpoints_;
  std::vector<std::vector<std::uint32_t>> final_by_stage_;  // plan/units_under_backward.h
  PassCounters counters_;
  LossScaler scaler_;
  StepGuard guard_;

  StepState step_state_ = StepState::Unfilled;
  std::optional<Error> end_;  // why the run ended
  bool stalled_ = false;      // transfers are still in flight, and the disk does not answer

  Agreement agreement_;
  std::uint64_t run_id_;
  std::optional<CheckpointLink> last_link_;  // what the next checkpoint descends from

  std::uint64_t step_ = 0;           // steps done, skipped ones included
  std::uint64_t updates_ = 0;        // steps that were not skipped
  std::optional<double> last_rate_;  // learning rate of the last of these
  // Of the step under way:
  std::uint64_t micro_batches_ = 0;  // forward and backward done
  std::uint64_t tokens_ = 0;
  double loss_sum_ = 0.0;
  std::size_t forward_position_ = 0;    // the prefetcher's position when the open forward began
  std::vector<double> losses_pending_;  // losses of all ranks for the forward before its backward
  std::size_t micro_batches_pending_ = 0;  // micro-batches of this forward
  std::vector<std::uint32_t> looked_up_;   // parameters that are trained, in their order
  std::vector<RowGradients> rows_;
  bool awaited_ = false;                      // ranks must still meet after the backward
  bool awaited_in_forward_ = false;           // or at the next unit, or the forward's end
  bool last_backward_ = false;                // no more is added to a stage's gradients after it
  std::vector<AccessOrder::Access> entered_;  // and not left yet
  std::optional<std::vector<std::uint32_t>> first_uses_{std::in_place};  // of the first forward
  std::optional<double> rate_begun_;      // learning rate of an update begun under backward, or
  std::vector<GroupStep> groups_begun_;   // its groups
  std::uint64_t under_backward_ns_ = 0;   // updating
  std::uint64_t backward_begin_ns_ = 0;   // of the backward that is open
  std::uint64_t backward_ns_ = 0;         // from begin to end
  StepFigures::Mark evaluation_begin_{};  // of the evaluation that is open
  bool evaluating_ = false;               // one is
  bool given_up_ = false;                 // the pass, with another rank that has refused its batch
  struct Gather {                         // of the other ranks' shares of a unit, on their way
    std::uint32_t unit = 0;
    std::unique_ptr<comm::Group::Begun> begun;
  };
  std::vector<Gather> gathers_;
  // Of the step before, whose update is pending:
  std::optional<StepResult> updating_;
  std::optional<StepResult> completed_;
  std::optional<Error> failed_ahead_;  // error of an update between operators, for the next call
  MeasuredStep measured_;              // by which backward gets its share
};

}  // namespace artesian::zero3
