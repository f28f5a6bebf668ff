// The training engine: a Module, a Config and initial weights become a training run whose state
// lives in tiers. The loop is the caller's, as in PyTorch:
//
//   create, initialize or load_checkpoint              once
//     forward, backward                                for each micro-batch,
//     or forward_backward                              for several, which moves fewer bytes
//     step                                             after 1 to accumulation_steps of them; the
//                                                      update itself runs under the next forward
//     evaluate                                         at any time, but where backward has begun
//                                                      the update, which is until step(): changes
//                                                      no bit of the training
//     save_checkpoint, begin_checkpoint                between steps
//   close
//
// Exact: for the same seed, thread count and instruction set, results are the same bits whatever
// the placement, budgets, prefetch limits, I/O engine, buffers and grouping of micro-batches. A
// call out of order and a batch that the module cannot take are errors that leave the engine as it
// was, Cancelled is one that abandon_step() ends; any other error poisons it: every later call
// returns that first one, except that the weights before a step that ended the run can be read
// (weights_readable()). Used from one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/timeline.h"
#include "comm/group.h"
#include "tiering/device/device.h"
#include "tiering/disk/stripe.h"
#include "zero3/checkpoint/checkpoint_load.h"
#include "zero3/checkpoint/checkpoints.h"
#include "zero3/config/config.h"
#include "zero3/plan/make_placement.h"
#include "zero3/step/config_file.h"
#include "zero3/step/parameter_groups.h"
#include "zero3/step/step_request.h"
#include "zero3/step/step_result.h"
#include "zero3/step/weights.h"
#include "zero3/torch/module.h"

namespace artesian::zero3 {

struct EngineOptions {
  /// The model's device: "cpu", "cuda" (the first GPU that CUDA_VISIBLE_DEVICES shows) or "cuda:i".
  /// A GPU's engine is created and called with the same LibTorch stream current.
  std::string device = "cpu";
  tiering::Device* backend = nullptr;  // a device tier of the caller's, for tensors on `device`
  std::uint64_t run_id = 0;            // 0: random
  /// The ranks that train this model together, each with its own batches; null: this process alone.
  /// All call the engine alike, and get the bits of one process that runs all their micro-batches,
  /// micro-batch i of rank r as number i * ranks + r. Outlives the engine.
  comm::Group* group = nullptr;
  /// What all ranks must have alike, by name, beside what the engine looks at.
  std::vector<std::pair<std::string, std::string>> facts{};
  Timeline* timeline = nullptr;
  FileSystem* files = nullptr;  // null: the kernel's
  double wait_seconds = 60.0;   // deadline of every wait for the disk
  bool split_master = true;     // false: bf16 training with whole fp32 master weights, to compare
  bool spare_device = true;  // false: nothing that is meant for NVMe has a home there, to compare
  /// The share of the update's bytes that runs under backward, where it may (under_backward.h), 0
  /// to 1. Without it the second step's times decide.
  std::optional<double> share_under_backward{};
  /// Asked before each stage of forward and backward, but where backward has begun the update for
  /// good. True breaks the call off: it returns Cancelled, and abandon_step() comes next. With
  /// several ranks it is asked by step() alone, of all of them: StepResult::stop.
  std::function<bool()> stop{};
  /// The disks below the folders of the config's nvme_path, in the order in which it names them
  /// first. Empty: as `aio_bench tune` saved them, or else measured, where there are several.
  std::vector<tiering::PathDisk> path_disks{};
  /// For activation_checkpointing.cpu_checkpointing: elements, in the compute dtype, of what each
  /// stage gets as input of one micro-batch, at most. Empty: not known, and inputs stay where they
  /// are computed, as do larger ones.
  std::vector<std::uint64_t> input_elements{};
  /// Optimizer constants by ParameterSpec::group. Empty: one group, 0, with the config's.
  std::vector<GroupOptions> groups{};
  Unreached unreached = Unreached::GetsZeros;
};

/// How a group of micro-batches takes part in its step.
struct BackwardOptions {
  /// The weight of each micro-batch's mean loss in the step's. Nothing: 1 / accumulation_steps.
  std::optional<double> loss_weight{};
  /// The group is the step's last: its update may begin under this backward. Nothing: it is if it
  /// makes up accumulation_steps micro-batches.
  std::optional<bool> last{};
  /// The learning rate that step() will be given. Nothing: the schedule's.
  std::optional<double> learning_rate{};
};

class Engine {
 public:
  /// Plans, reserves every tier and opens the swap files. The module must outlive the engine.
  /// Errors: Exhausted (budgets), Busy, NoSpace, Invalid (paths, options), Unsupported.
  static Result<std::unique_ptr<Engine>> create(Module& module, const Config& config,
                                                const EngineOptions& options);
  /// Closes if that has not happened. If the disk does not answer any more, memory, descriptors and
  /// I/O threads are kept until the process ends: the kernel may still write.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  /// Fills the home tiers, once, before the first forward. Errors: the source's, Io, NoSpace.
  Result<void> initialize(WeightSource& weights, const Progress& progress = {});

  /// Forward of one micro-batch; returns its mean loss. The batch's memory may be reused at once.
  /// Errors: Invalid: out of order, or a batch that the module cannot take; Exhausted; Io, Corrupt;
  /// Cancelled, by EngineOptions::stop.
  Result<double> forward(const Batch& batch);
  /// Backward of the forward before it: its gradients, times their weight, are added.
  /// Errors: as forward.
  Result<void> backward(const BackwardOptions& options = {});
  /// Forward and backward of micro-batches, layer by layer: each stage's parameters are gathered
  /// for a group of them at once. A group holds as many as artesian.activation_memory has room for,
  /// going by the most that one has taken so far: so the first runs alone, and so does each where
  /// that is not known (track_activations()); where inputs are kept in a tier, the placement says
  /// how many. Returns their losses. Errors: as forward; after one batch's fault, groups before its
  /// own stay accumulated: micro_batches() tells.
  Result<std::vector<double>> forward_backward(std::span<const Batch> batches,
                                               const BackwardOptions& options = {});
  /// Accumulated since the last step.
  std::uint64_t micro_batches() const noexcept;
  /// The optimizer step over the gradients of the micro-batches since the last one:
  /// config.accumulation_steps of them, or as many fewer as the request says. A step that must end
  /// the run, by what is not finite, is a result with `end` set (step_guard.h). The update is
  /// deferred: it is fixed and begun here, and each unit gets its share when the next forward, or
  /// anything else, comes to it; some have it since the last backward (units_under_backward()).
  /// Figures that this adds to the step are in take_completed(). Errors: Invalid (out of order,
  /// another number of micro-batches, a learning rate that the update has begun without for good);
  /// Io, Corrupt.
  Result<StepResult> step(const StepRequest& request = {});
  /// Drops the micro-batches since the last step, or what of a step was broken off, and takes back
  /// what of the update backward has begun. The last step's own update goes on. Errors: Invalid
  /// where it cannot be taken back, which ends the run; Io, Timeout.
  Result<void> abandon_step();
  /// Completes the update that the last step began. Errors: Io, Corrupt, NoSpace.
  Result<void> finish_update();
  /// The last step whose update is complete, with all its figures; each step once.
  std::optional<StepResult> take_completed() noexcept;
  /// Forward without gradients, also between micro-batches, and between a forward and its backward.
  /// Returns what the module's last stage returned: its loss, or what it gives in evaluations.
  /// Not counted in StepResult, except in the peaks. Errors: as forward; out of order between the
  /// last backward and step(), where the update has begun.
  Result<at::Tensor> evaluate(const Batch& batch);

  /// XXH3-128 over names, master weights and moments in parameter order, hex. Not counted in
  /// StepResult. Errors: Io, Corrupt, Timeout; out of order as evaluate.
  Result<std::string> digest();
  /// True if read_master() has weights to hand out: all of one step. Those before a step that ended
  /// the run by what is not finite are such, unless it had begun an update that cannot be taken
  /// back. Not after any other error.
  bool weights_readable() const noexcept;
  /// Hands out a parameter's master weights as fp32, in row-major order, in pieces: for export. Not
  /// counted in StepResult. Errors: as digest, and the sink's, which poison nothing.
  Result<void> read_master(std::uint32_t parameter,
                           const std::function<Result<void>(std::span<const float>)>& sink);

  /// A folder for save_checkpoint() without one: room for a checkpoint is kept there, and so many
  /// of the newest stay. Errors: Busy (another process saves there), NoSpace, Io, Invalid, Timeout;
  /// they end nothing.
  Result<void> open_checkpoints(const CheckpointPlace& place);
  /// Bytes a second that the disks of the optimizer state, or else of the parameters, take
  /// together, as probed at the start; 0: neither is on NVMe.
  double disk_write_rate() const noexcept;
  /// The folder's state: checkpoints found at the start, bytes of one checkpoint.
  const Checkpoints& checkpoints() const noexcept;
  /// Saves the training as it is after the last step: weights, moments, counts, loss scale, what
  /// LibTorch's default generators are at, the caller's files. Returns when it is durable; the
  /// former checkpoint stays until then. Between steps alone. A fault of the folder or its disk is
  /// an error that changes nothing, and the training may go on. Errors: Invalid (out of order, tag,
  /// names, no folder), Busy, NoSpace, Io, Timeout; those of the tiers, which end the run.
  Result<SavedCheckpoint> save_checkpoint(SaveRequest request);
  /// The step under way will be saved, by begin_checkpoint() or save_checkpoint() after it: what is
  /// updated under its last backward, which has not begun, is copied there, and not read again. Of
  /// the request folder and tag alone count, and are those of the save. Errors: as
  /// begin_checkpoint().
  Result<void> expect_checkpoint(const SaveRequest& request = {});
  /// save_checkpoint() beside the training, in three calls. begin_checkpoint(), between steps,
  /// takes down what is to be saved; state of the last step is copied as its update makes it, under
  /// the next forward, and what is left is read before the next backward. Errors: Invalid (out of
  /// order, no folder), Busy (one is being saved), those of open_checkpoints(); they end nothing.
  Result<void> begin_checkpoint(SaveRequest request);
  /// Starts to make it durable and returns, any time later; best after the next forward, for before
  /// it completes the update. `trainer`: in place of the request's. Errors: Invalid (none has
  /// begun); those of the tiers, which end the run.
  Result<void> commit_checkpoint(std::optional<SavedTrainer> trainer = {});
  /// Waits so many seconds until it is durable. Nothing: there is none. Errors: Timeout: not yet,
  /// ask again; what the save failed by, as save_checkpoint(), which ends nothing.
  Result<std::optional<SavedCheckpoint>> finish_checkpoint(double seconds);
  /// Becomes what was saved, whatever placement, budgets and precision there are now: in place of
  /// initialize(), or between steps. The next step gives the bits that it would have given there,
  /// on the same machine with as many threads. Errors: Invalid (no such checkpoint, names, shapes),
  /// Corrupt, Unsupported: of the checkpoint, found before anything changes; Corrupt, Io: found
  /// while reading it, after which there are no weights, for another load or initialize(); those of
  /// the tiers, which end the run.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request,
                                           const Progress& progress = {});

  const Placement& placement() const noexcept;
  const Config& config() const noexcept;
  /// By unit: it is updated under backward. Of steps from here on, until the share is decided.
  const std::vector<bool>& units_under_backward() const noexcept;
  /// Returns how bytes moved from and to NVMe so far; zero3/step/io_engine.h.
  std::string describe_io() const;
  /// Returns what each folder of nvme_path has carried since the start.
  std::vector<SwapPathUse> path_use() const;
  /// Drains and removes the swap files. An update that is not complete is dropped with the weights.
  /// Errors: Io, Timeout.
  Result<void> close();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Starts counting the bytes that LibTorch allocates on the CPU (activations and temporaries), and
/// lets its tensors use again what earlier ones had (pinned/arena.h). Call once, before the first
/// tensor; without it peak_activations stays 0, and a step on the CPU takes longer.
void track_activations();

/// The dtype to compute in: the config's, else the parameters' where the device multiplies in it
/// natively (`native`), else fp32: elsewhere 16-bit GEMM is 4 to 10 times slower. Errors: Invalid
/// if the choice is neither fp32 nor the parameter dtype.
Result<DType> choose_compute_dtype(const Config& config, bool native = false);

/// Logs the chosen dtype, unless it is fp32 by default.
void tell_compute_dtype(const Config& config, DType chosen);

/// Bytes that the activations of a step are planned to take within these budgets, of which the
/// device's is not known yet (models/activation_bytes.h).
using PlannedActivations = std::function<Result<std::uint64_t>(const Budgets& budgets)>;

/// The config's budgets, or shares of what this machine and the device have left.
/// On a GPU the device tier gets what is free of its memory beside these activations and what CUDA
/// takes (cuda_bytes), but a tenth of it at least; without `planned`, nine tenths. `engines`: how
/// many of the process share the machine's memory, this one included. Errors: those of opening the
/// device, where it is asked for its memory.
Result<Budgets> choose_budgets(const Config& config, const std::string& device = "cpu",
                               const PlannedActivations& planned = {}, std::uint64_t engines = 1);

}  // namespace artesian::zero3
