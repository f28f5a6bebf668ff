// HookedEngine: trains a model that somebody else runs. Its parameters are adopted, its modules are
// told of by hooks (UnitUses), and the state is a StepCore's, in tiers. On the CPU, or on an
// accelerator that LibTorch knows.
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
  std::string device = "cpu";          // open_accelerator()
  std::vector<GroupOptions> groups{};  // StepCoreOptions::groups
  Unreached unreached = Unreached::IsSkipped;
  /// Of the processes on this machine, this one included: they share default budgets.
  std::uint64_t engines = 1;
  std::shared_ptr<comm::Group> group{};  // the ranks that train together; null: one
  UnitUses::Constants constants{};       // called on the thread that asks for gradients
};

class HookedEngine {
 public:
  /// Plans, fills the home tiers from the tensors, and takes them over, to its device: tensors[i]
  /// is parameter i of the shape, and trainable where that asks for a gradient; `others` are what
  /// else the model holds. With several ranks all become what rank 0 has. After an error the model
  /// is as it was. Errors: those of StepCore::create and initialize; of check_adoptable.
  static Result<std::unique_ptr<HookedEngine>> create(ModelShape shape, const Config& config,
                                                      const HookedEngineOptions& options,
                                                      std::span<const at::Tensor> tensors,
                                                      std::span<const NamedTensor> others);
  /// Closes if that has not happened.
  ~HookedEngine();
  HookedEngine(const HookedEngine&) = delete;
  HookedEngine& operator=(const HookedEngine&) = delete;

  /// Returns the uses of an engine that is open. Errors: Invalid, once it is closed; in a forked
  /// child.
  Result<UnitUses*> uses();
  StepCore& core() noexcept { return *core_; }
  c10::Device device() const noexcept { return device_.torch; }
  /// Fills a tensor on every rank with that of rank `root`; contiguous, on the CPU. Every rank must
  /// call it. Errors: the group's.
  Result<void> broadcast(const at::Tensor& tensor, std::uint32_t root);
  /// A parameter's master weights or a moment, in its shape: in `target`, a contiguous tensor of
  /// any dtype, or in a new one, fp32. Errors: as StepCore::read_state; Invalid.
  Result<at::Tensor> read_state(std::uint32_t parameter, StateKind kind,
                                const at::Tensor& target = {});
  /// Sets values: fp32, in the parameter's shape, contiguous, on the CPU. Drops a
  /// forward without a backward. Errors: as StepCore::write_state; Invalid (another
  /// tensor).
  Result<void> write_state(std::uint32_t parameter, StateKind kind, const at::Tensor& values);
  /// Below stage 3: the parameters whose values the caller has changed in place, or given by other
  /// memory, since the engine last looked. Errors: as uses().
  Result<std::vector<std::uint32_t>> changed(LookFor look);
  /// Takes the parameters' memory back after the caller has written valid values there. Errors:
  /// Invalid (another shape or dtype).
  Result<void> accept(std::span<const std::uint32_t> parameters);
  /// A parameter's gradient since the last step, not multiplied by the loss scale, fp32, in its
  /// shape; an undefined tensor: there is none. Errors: as StepCore::read_gradient.
  Result<at::Tensor> read_gradient(std::uint32_t parameter);
  /// The parameter's gradient of the step so far becomes this one, rounded to the dtype of
  /// parameters; without the loss scale. Shape: that of the parameter, fp32, contiguous, on the
  /// CPU. False, and nothing is written: no backward has come since the last step. Errors: as
  /// StepCore::write_gradient.
  Result<bool> write_gradient(std::uint32_t parameter, const at::Tensor& values);
  /// XXH3-128 over names, master weights and moments. Errors: as StepCore::digest.
  Result<std::string> digest();
  /// StepCore::save_checkpoint, with LibTorch's generators and facts, and the modules' buffers,
  /// which must be contiguous and on the CPU. A forward that nobody has asked a gradient of is
  /// forgotten. Errors: its; Invalid (a buffer's elements; a pass is open).
  Result<SavedCheckpoint> save_checkpoint(SaveRequest request,
                                          std::span<const NamedTensor> buffers);
  /// StepCore::load_checkpoint; what the checkpoint does not have stays as it is. With optimizer
  /// states generators go on, too. Errors: its.
  Result<LoadedCheckpoint> load_checkpoint(const LoadRequest& request);
  /// Drains, and leaves nothing on the disk; parameters stay refused. Errors: Io, Timeout.
  Result<void> close();

 private:
  HookedEngine() = default;
  Result<void> take_first_values(std::span<const at::Tensor> tensors,
                                 std::span<const NamedTensor> others);
  Result<void> add_generators_of_ranks(SaveRequest& request);
  void take_generator_of_rank(std::map<std::string, std::string>& random) const;
  Result<UnitUses*> uses_for(std::uint32_t parameter, const char* call);
  Result<void> check_values(std::uint32_t parameter, const at::Tensor& values,
                            const char* call) const;
  Result<void> build(ModelShape shape, const Config& config, const HookedEngineOptions& options,
                     std::span<const at::Tensor> tensors, std::span<const NamedTensor> others);

  const pid_t process_ = getpid();
  std::shared_ptr<comm::Group> group_;  // outlives the core
  std::unique_ptr<TorchExecutor> executor_ = std::make_unique<TorchExecutor>();
  ComputeDevice device_;  // outlives the core
  std::unique_ptr<StepCore> core_;
  std::unique_ptr<ParameterTensors> tensors_;
  std::unique_ptr<UnitUses> uses_;
};

}  // namespace artesian::zero3
