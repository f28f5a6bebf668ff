// HookedEngine: trains a model that the caller runs. It adopts the model's parameters, follows its
// modules through hooks (UnitUses), and keeps the state in tiers, in a StepCore. It works on the
// CPU, or on an accelerator that LibTorch supports.
#pragma once

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tiering/device/device.h"
#include "zero3/config/config.h"
#include "zero3/step/step_core.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/parameter_tensors.h"
#include "zero3/torch/torch_executor.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

struct HookedEngineOptions {
  std::string device = "cpu";          // as for open_accelerator()
  std::vector<GroupOptions> groups{};  // as StepCoreOptions::groups
  Unreached unreached = Unreached::IsSkipped;
  /// Number of engines on this machine, including this one, that share default budgets.
  std::uint64_t engines = 1;
  bool divides_own_losses = false;       // UnitUses::divide_own_losses
  std::shared_ptr<comm::Group> group{};  // the ranks that train together; null: one rank
  /// By parameter this rank's share, as for DividedWeights, whose memory the engine frees;
  /// undefined if the tensor has all values. Empty: all have.
  std::vector<at::Tensor> shares{};
  UnitUses::Constants constants{};  // called on the thread that requests gradients
};

class HookedEngine {
 public:
  /// Makes the plan, fills the home tiers from the tensors, and adopts these, on its device:
  /// tensors[i] is parameter i of the shape, which is trainable if the tensor requires a gradient;
  /// `others` are the model's other tensors. With several ranks, all get rank 0's values. After an
  /// error the model is unchanged. Errors: those of StepCore::create and initialize; of
  /// check_adoptable.
  static Result<std::unique_ptr<HookedEngine>> create(ModelShape shape, const Config& config,
                                                      const HookedEngineOptions& options,
                                                      std::span<const at::Tensor> tensors,
                                                      std::span<const NamedTensor> others);
  /// Closes, unless close() was called.
  ~HookedEngine();
  HookedEngine(const HookedEngine&) = delete;
  HookedEngine& operator=(const HookedEngine&) = delete;

  /// Returns the uses of an engine that is open. Errors: Invalid, once it is closed; in a forked
  /// child.
  Result<UnitUses*> uses();
  StepCore& core() noexcept { return *core_; }
  c10::Device device() const noexcept { return device_.torch; }
  /// Sets a tensor on all ranks to that of rank `root`; it must be contiguous, on the CPU. Every
  /// rank must call it. Errors: the group's.
  Result<void> broadcast(const at::Tensor& tensor, std::uint32_t root);
  /// Returns a parameter's master weights or a moment, in its shape: in `target`, a contiguous
  /// tensor of any dtype, or in a new fp32 tensor. Errors: as StepCore::read_state; Invalid.
  Result<at::Tensor> read_state(std::uint32_t parameter, StateKind kind,
                                const at::Tensor& target = {});
  /// Does this rank's part of a read_state() of the other ranks. Errors: as there.
  Result<void> help_read_state(std::uint32_t parameter, StateKind kind);
  /// Replaces a parameter's master weights or a moment. Shape: that of the parameter, fp32,
  /// contiguous, on the CPU. Drops a forward without a backward. Errors: as StepCore::write_state;
  /// Invalid (wrong tensor).
  Result<void> write_state(std::uint32_t parameter, StateKind kind, const at::Tensor& values);
  /// Below stage 3: the parameters whose values or memory the caller has changed since the last
  /// check. Errors: as uses().
  Result<std::vector<std::uint32_t>> changed(LookFor look);
  /// Takes the parameters' memory back after the caller has written valid values there. Errors:
  /// Invalid (another shape or dtype).
  Result<void> accept(std::span<const std::uint32_t> parameters);
  /// A parameter's gradient since the last step, without the loss scale, fp32, in its shape; an
  /// undefined tensor if there is none. Errors: as StepCore::read_gradient.
  Result<at::Tensor> read_gradient(std::uint32_t parameter);
  /// Replaces the parameter's gradient of the step so far, rounded to the parameters' dtype;
  /// without the loss scale. Shape: that of the parameter, fp32, contiguous, on the CPU. Returns
  /// false without writing if there was no backward since the last step. Errors: as
  /// StepCore::write_gradient.
  Result<bool> write_gradient(std::uint32_t parameter, const at::Tensor& values);
  /// XXH3-128 over names, master weights and moments. Errors: as StepCore::digest.
  Result<std::string> digest();
  /// StepCore::save_checkpoint, with LibTorch's generators and facts, and the modules' buffers,
  /// which must be contiguous and on the CPU. A forward without a backward is dropped. Errors:
  /// those of StepCore; Invalid (a buffer's elements; a pass is open).
  Result<SavedCheckpoint> save_checkpoint(SaveRequest request,
                                          std::span<const NamedTensor> buffers);
  /// StepCore::load_checkpoint; parameters that the checkpoint lacks are unchanged. With optimizer
  /// states, the random generators are restored, too. Errors: those of StepCore.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request);
  /// Drains, and leaves nothing on the disk; reading the parameters stays an error. Errors: Io,
  /// Timeout.
  Result<void> close();

 private:
  HookedEngine() = default;
  Result<void> take_first_values(std::span<const at::Tensor> tensors,
                                 std::span<const NamedTensor> others,
                                 const std::vector<at::Tensor>& shares);
  Result<void> initialize(std::span<const at::Tensor> tensors,
                          const std::vector<at::Tensor>& shares);
  Result<void> add_generators_of_ranks(SaveRequest& request);
  void take_generator_of_rank(std::map<std::string, std::string>& random) const;
  Result<UnitUses*> uses_for(std::uint32_t parameter, const char* call);
  Result<void> check_values(std::uint32_t parameter, const at::Tensor& values,
                            const char* call) const;
  Result<void> build(ModelShape shape, const Config& config, const HookedEngineOptions& options,
                     std::span<const at::Tensor> tensors, std::span<const NamedTensor> others);

  const pid_t process_ = getpid();
  std::shared_ptr<comm::Group> group_;  // must outlive the core
  std::unique_ptr<TorchExecutor> executor_ = std::make_unique<TorchExecutor>();
  ComputeDevice device_;  // must outlive the core
  std::unique_ptr<StepCore> core_;
  std::unique_ptr<ParameterTensors> tensors_;
  std::unique_ptr<UnitUses> uses_;
};

}  // namespace artesian::zero3
