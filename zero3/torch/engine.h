// The training engine: a Module, a Config and initial weights become a training run whose state
// lives in tiers. The loop is the caller's, as in PyTorch:
//
//   create, initialize or load_checkpoint              once
//     forward, backward                                for each micro-batch,
//     or forward_backward                              for several, which moves fewer bytes
//     step                                             after 1 to accumulation_steps of them; the
//                                                      update itself runs under the next forward
//     evaluate                                         at any time, except between a backward that
//                                                      has begun the update and step(); does not
//                                                      change the training
//     save_checkpoint, begin_checkpoint                between steps
//   close
//
// Exact: for the same seed, thread count and instruction set, results are the same bits whatever
// the placement, budgets, prefetch limits, I/O engine, buffers and grouping of micro-batches. Calls
// out of order and invalid batches are errors that change nothing; after Cancelled, call
// abandon_step(). Any other error ends the run: every later call returns that first error, except
// that the weights from before a step that ended the run can be read (weights_readable()). Used
// from one thread.
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
#include "comm/device_group.h"
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
  /// With a GPU, the engine must be created and called while the same LibTorch stream is current.
  std::string device = "cpu";
  // device tier provided by the caller, for tensors on `device`
  tiering::Device* backend = nullptr;
  std::uint64_t run_id = 0;  // 0: choose at random
  /// The ranks that train this model together, each with its own batches; null: only this process.
  /// All ranks make the same calls, and get the bits of one process that runs all micro-batches,
  /// with micro-batch i of rank r as number i * ranks + r. Must outlive the engine.
  comm::Group* group = nullptr;
  /// Between the ranks' devices. Null: on GPUs NCCL where all ranks have it, else host memory.
  comm::DeviceGroup* device_group = nullptr;
  /// Further facts that must be equal on all ranks, by name.
  std::vector<std::pair<std::string, std::string>> facts{};
  Timeline* timeline = nullptr;
  FileSystem* files = nullptr;  // null: the kernel's file system
  double wait_seconds = 60.0;   // deadline of every wait for the disk
  bool split_master = true;  // false: bf16 training with whole fp32 master weights, for comparison
  // false: state meant for NVMe never gets a home in spare device memory, for comparison
  bool spare_device = true;
  /// The share, 0 to 1, of the update's bytes that is updated under backward, if possible
  /// (under_backward.h). Absent: decided from the second step's times.
  std::optional<double> share_under_backward{};
  /// Called before each stage of forward and backward, except once backward has begun an update
  /// that cannot be rolled back. If it returns true, the engine's call returns Cancelled, and
  /// abandon_step() must follow. With several ranks only step() calls it, on all ranks:
  /// StepResult::stop.
  std::function<bool()> stop{};
  /// The disks below the folders of the config's nvme_path, in the order in which it first names
  /// them. Empty: those saved by `aio_bench tune`, or else, with several folders, measured.
  std::vector<tiering::PathDisk> path_disks{};
  /// For activation_checkpointing.cpu_checkpointing: the most elements, in the compute dtype, of
  /// each stage's input for one micro-batch. Empty: unknown, so inputs stay where they are
  /// computed; larger inputs do as well.
  std::vector<std::uint64_t> input_elements{};
  /// Optimizer constants by ParameterSpec::group. Empty: only group 0, with the config's constants.
  std::vector<GroupOptions> groups{};
  Unreached unreached = Unreached::GetsZeros;
};

/// The role of a group of micro-batches in its step.
struct BackwardOptions {
  /// The weight of each micro-batch's mean loss in the step's loss. Absent: 1 / accumulation_steps.
  std::optional<double> loss_weight{};
  /// True if the group is the step's last, so that its update may begin under this backward.
  /// Absent: true if it completes accumulation_steps micro-batches.
  std::optional<bool> last{};
  /// The learning rate that step() will be given. Absent: the schedule's.
  std::optional<double> learning_rate{};
};

class Engine {
 public:
  /// Plans, reserves every tier and opens the swap files. The module must outlive the engine.
  /// Errors: Exhausted (budgets), Busy, NoSpace, Invalid (paths, options), Unsupported.
  static Result<std::unique_ptr<Engine>> create(Module& module, const Config& config,
                                                const EngineOptions& options);
  /// Closes, unless close() was called. If the disk does not answer any more, memory, descriptors
  /// and I/O threads are kept until the process ends, as the kernel may still write.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  /// Fills the homes of all state, once, before the first forward. Errors: the source's, Io,
  /// NoSpace.
  Result<void> initialize(WeightSource& weights, const Progress& progress = {});

  /// Forward of one micro-batch; returns its mean loss. The batch's memory may be reused at once.
  /// Errors: Invalid: out of order, or a batch that the module cannot take; Exhausted; Io, Corrupt;
  /// Cancelled, by EngineOptions::stop.
  Result<double> forward(const Batch& batch);
  /// Backward of the preceding forward: adds its gradients, times their weight. Errors: as forward.
  Result<void> backward(const BackwardOptions& options = {});
  /// Forward and backward of micro-batches, layer by layer: each stage's parameters are gathered
  /// for a group of them at once. A group has as many micro-batches as fit in
  /// artesian.activation_memory, judged by the largest so far. So the first one runs alone, and
  /// each does if this is unknown (track_activations()); if inputs are kept in a tier, the
  /// placement decides the number. Returns the losses. Errors: as forward; after a fault of one
  /// batch, earlier groups remain accumulated: see micro_batches().
  Result<std::vector<double>> forward_backward(std::span<const Batch> batches,
                                               const BackwardOptions& options = {});
  /// Number of micro-batches accumulated since the last step.
  std::uint64_t micro_batches() const noexcept;
  /// The optimizer step over the gradients of the micro-batches since the last one:
  /// config.accumulation_steps of them, or as many fewer as the request says. If values that are
  /// not finite must end the run, the result has `end` set (step_guard.h). The update is deferred:
  /// it is fixed and begun here, and applied to each unit when the next forward, or anything else,
  /// needs it; some units were already updated under the last backward (units_under_backward()).
  /// take_completed() returns the step's final figures. Errors: Invalid (out of order, wrong number
  /// of micro-batches, a learning rate that differs from that of an update that cannot be rolled
  /// back); Io, Corrupt.
  Result<StepResult> step(const StepRequest& request = {});
  /// Drops the micro-batches since the last step, or an interrupted step, and rolls back the part
  /// of the update begun under backward. The last step's own pending update is not affected.
  /// Errors: Invalid if it cannot be rolled back, which ends the run; Io, Timeout.
  Result<void> abandon_step();
  /// Completes the update that the last step began. Errors: Io, Corrupt, NoSpace.
  Result<void> finish_update();
  /// Returns the last step whose update is complete, with all its figures; each step once.
  std::optional<StepResult> take_completed() noexcept;
  /// Forward without gradients, also between micro-batches, and between a forward and its backward.
  /// Returns the result of the module's last stage: its loss, or another tensor in evaluations. Not
  /// counted in StepResult, except in the peaks. Errors: as forward; out of order between the last
  /// backward and step() if the update has begun.
  Result<at::Tensor> evaluate(const Batch& batch);

  /// XXH3-128 over names, master weights and moments in parameter order, hex. Not counted in
  /// StepResult. Errors: Io, Corrupt, Timeout; out of order as evaluate.
  Result<std::string> digest();
  /// True if read_master() can return consistent weights of one step. This holds after a step that
  /// ended the run because of values that are not finite, unless it had begun an update that cannot
  /// be rolled back; not after any other error.
  bool weights_readable() const noexcept;
  /// Passes a parameter's master weights to the sink as fp32, in row-major order, in pieces, for
  /// export. Not counted in StepResult. Errors: as digest, and the sink's, which do not end the
  /// run.
  Result<void> read_master(std::uint32_t parameter,
                           const std::function<Result<void>(std::span<const float>)>& sink);

  /// Opens a folder for save_checkpoint() calls that name none: it reserves space for one
  /// checkpoint there, and keeps the given number of newest ones. Errors: Busy (another process
  /// saves there), NoSpace, Io, Invalid, Timeout; they do not end the run.
  Result<void> open_checkpoints(const CheckpointPlace& place);
  /// Combined write rate, in bytes per second as probed at the start, of the disks of the optimizer
  /// state, or else of the parameters; 0: neither is on NVMe.
  double disk_write_rate() const noexcept;
  /// The folder's state: checkpoints found at the start, bytes of one checkpoint.
  const Checkpoints& checkpoints() const noexcept;
  /// Saves the training as it is after the last step: weights, moments, counts, loss scale, the
  /// states of LibTorch's default generators, the caller's files. Returns when the checkpoint is
  /// durable; the previous one remains until then. Only between steps. A fault of the folder or its
  /// disk is an error that changes nothing, and the training may continue. Errors: Invalid (out of
  /// order, tag, names, no folder), Busy, NoSpace, Io, Timeout; those of the tiers, which end the
  /// run.
  Result<SavedCheckpoint> save_checkpoint(SaveRequest request);
  /// Announces that the current step will be saved by begin_checkpoint() or save_checkpoint() after
  /// it. State updated under its last backward, which must not have begun, is then copied at once
  /// instead of being read later. Only the request's folder and tag are used, and must be those of
  /// the save. Errors: as begin_checkpoint().
  Result<void> expect_checkpoint(const SaveRequest& request = {});
  /// Three calls do what save_checkpoint() does, but in the background of training.
  /// begin_checkpoint(), between steps, records what is to be saved. The last step's state is
  /// copied when its update writes it, under the next forward, and the rest is read before the next
  /// backward. Errors: Invalid (out of order, no folder), Busy (a save is under way), those of
  /// open_checkpoints(); they do not end the run.
  Result<void> begin_checkpoint(SaveRequest request);
  /// Starts to make the checkpoint durable, and returns. Call it at any later time, best after the
  /// next forward; before that, it completes the update itself. `trainer`: replaces the request's.
  /// Errors: Invalid (none has begun); those of the tiers, which end the run.
  Result<void> commit_checkpoint(std::optional<SavedTrainer> trainer = {});
  /// Waits up to this many seconds until the checkpoint is durable. Returns nothing if there is
  /// none. Errors: Timeout: not yet, call again; those of the save, as for save_checkpoint(), which
  /// do not end the run.
  Result<std::optional<SavedCheckpoint>> finish_checkpoint(double seconds);
  /// Loads a saved state into any placement, budgets and precision: instead of initialize(), or
  /// between steps. On the same machine with the same number of threads, the next step gives the
  /// same bits as in the saved run. Errors: Invalid (no such checkpoint, names, shapes), Corrupt,
  /// Unsupported: faults of the checkpoint that are found before anything changes; Corrupt, Io:
  /// faults found while reading it, after which there are no weights, and another load or
  /// initialize() must follow; those of the tiers, which end the run.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request,
                                           const Progress& progress = {});

  const Placement& placement() const noexcept;
  const Config& config() const noexcept;
  /// For each unit, whether it is updated under backward: in steps from now on, until the share is
  /// decided.
  const std::vector<bool>& units_under_backward() const noexcept;
  /// Describes how bytes were moved from and to NVMe so far; see zero3/step/io_engine.h.
  std::string describe_io() const;
  /// Returns the bytes moved by each folder of nvme_path since the start.
  std::vector<SwapPathUse> path_use() const;
  /// Drains and removes the swap files. A pending update is dropped together with the weights.
  /// Errors: Io, Timeout.
  Result<void> close();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Starts counting the bytes that LibTorch allocates on the CPU (activations and temporaries), and
/// lets its tensors reuse the memory of earlier ones (pinned/arena.h). Call once, before the first
/// tensor; without it peak_activations stays 0, and a step on the CPU takes longer.
void track_activations();

/// The compute dtype: the config's, else the parameters' dtype if the device multiplies in it
/// natively (`native`), else fp32, as 16-bit GEMM is 4 to 10 times slower without native support.
/// Errors: Invalid if the choice is neither fp32 nor the parameter dtype.
Result<DType> choose_compute_dtype(const Config& config, bool native = false);

/// Logs the chosen dtype, unless it is fp32 by default.
void tell_compute_dtype(const Config& config, DType chosen);

/// Returns the planned bytes of a step's activations within these budgets, of which the device's is
/// not known yet (models/activation_bytes.h).
using PlannedActivations = std::function<Result<std::uint64_t>(const Budgets& budgets)>;

/// The config's budgets, or else shares of the free memory of this machine and the device. On a GPU
/// the device tier gets the free memory minus the planned activations and CUDA's own use
/// (cuda_bytes), but at least a tenth of it; without `planned`, nine tenths. `engines`: number of
/// engines on this machine that share its memory, including this one. Errors: those of
/// opening the device to query its memory.
Result<Budgets> choose_budgets(const Config& config, const std::string& device = "cpu",
                               const PlannedActivations& planned = {}, std::uint64_t engines = 1);

}  // namespace artesian::zero3
