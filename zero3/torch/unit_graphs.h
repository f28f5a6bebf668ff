// Unit-local graphs: each stage runs on a detached input and keeps a graph of its own; backward
// asks autograd for one stage at a time, in reverse. So this class controls the order of gathering,
// gradients and release, and needs no hooks. It is a driver of StepCore; its caller opens and ends
// the passes.
//
// Two kinds of failure: those of the tiers (Io, Corrupt, ...) end the run; errors of LibTorch or
// the module concern only the batch, if none of its gradients has been accumulated. After a failed
// forward or evaluation, refused() tells them apart.
//
// Several micro-batches run layer by layer: each stage for all of them while its parameters are
// gathered, in forward and in backward, gradients added in micro-batch order. The bits are those of
// one micro-batch after the other, unless a parameter is in the graphs of two stages (keeps_order()
// in step_accesses.h).
//
// No gradients are computed for frozen parameters, and if all earlier stages are frozen, a stage
// gets no backward for its input: the graph ends where no input needs a gradient.
//
// On a separate device only the loss is waited for. A stage's gradients are copied to the host
// after the backward of the next stage has been enqueued for all micro-batches, so that both
// overlap; they are kept until then. Gradients of micro-batches that run layer by layer are first
// summed on the device, in the same order and with the same roundings, and copied once. This is
// done only for the first additions of a step, as a sum of sums would round differently.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "zero3/step/step_core.h"
#include "zero3/torch/input_keeper.h"
#include "zero3/torch/module.h"
#include "zero3/torch/parameter_tensors.h"

namespace artesian::zero3 {

struct UnitGraphsOptions {
  c10::Device device = c10::kCPU;  // device of all tensors
  /// Keep only the stages' inputs in forward; backward recomputes each stage. Inputs for which the
  /// placement has a tier are stored there (input_keeper.h).
  bool activation_checkpointing = false;
  /// Number of ranks that train together: each adds its gradients of all parameters of a stage at
  /// once.
  std::uint32_t ranks = 1;
  /// Called before each stage of a training pass: true interrupts the pass. Null: never.
  std::function<bool()> stop{};
};

class UnitGraphs {
 public:
  /// All must outlive it.
  UnitGraphs(Module& module, StepCore& core, ParameterTensors& tensors,
             const UnitGraphsOptions& options);

  /// Runs all stages, each on every micro-batch, and keeps what backward needs, with copies of the
  /// batches. Returns their losses. Errors: those of gathering; if refused(): Invalid and
  /// Exhausted, the fault of one batch, after which nothing is kept of any batch.
  /// `loss_multiplier`: the factor, passed to modules, by which backward will multiply the losses.
  Result<std::vector<double>> forward(std::span<const Batch> batches, double loss_multiplier);
  /// Backward of the preceding forward: adds the gradients of each loss * loss_multiplier to the
  /// accumulators; gradients of looked-up rows are added at the step. Errors: those of gathering
  /// and accumulating; Invalid from LibTorch.
  Result<void> backward(double loss_multiplier);
  /// Runs all stages without gradients, on the prefetcher's evaluation course; returns the last
  /// stage's result. Does not affect kept graphs. Errors: as forward.
  Result<at::Tensor> evaluate(const Batch& batch);
  /// True if the last forward or evaluation failed only because of its batch.
  bool refused() const noexcept { return refused_; }

  /// Frees the graphs and batches of the last forward, and leaves all entered units.
  Result<void> forget();
  /// True if `stop` interrupted the last pass, until forget().
  bool stopped() const noexcept { return stopped_; }
  /// Number of the last forward's token ids if stage 0 looks them up, else of samples (first
  /// extent).
  std::uint64_t tokens() const noexcept { return tokens_; }

 private:
  enum class Keep : std::uint8_t { Graphs, Inputs, Nothing };
  struct StageGraph {
    at::Tensor input;             // undefined while it is in a tier
    at::Tensor output;            // with Keep::Inputs only for the last stage, until recomputed
    bool whole = false;           // backward needs no recomputation
    bool differentiable = false;  // the output depends on parameters
    bool away = false;            // the input is stored in a tier
  };
  struct MicroBatch {
    at::Tensor input;
    at::Tensor targets;
    at::Tensor ids;  // ids of stage 0's look-up, on the CPU
    std::vector<StageGraph> graphs;
    at::Tensor gradient;  // in backward: gradient of the output of the next stage to run
  };
  /// Rounds parts of tiled gradients into their accumulators. Throws c10::Error.
  class PartSink final : public GradientSink {
   public:
    explicit PartSink(UnitGraphs& graphs) : graphs_(graphs) {}
    void add(std::size_t position, std::int64_t first, const at::Tensor& part) override;
    std::vector<std::uint32_t> parameters;  // parameters of the stage whose backward runs

   private:
    UnitGraphs& graphs_;
  };
  struct StageGradients {  // gradients computed but not accumulated yet
    std::size_t stage = 0;
    std::map<std::uint32_t, std::map<std::uint32_t, at::Tensor>>
        by_unit;  // by unit, then by parameter
    tiering::DeviceFence written;
  };
  Result<void> enter(const AccessOrder::Access& units);
  Result<void> leave(const AccessOrder::Access& units);
  Result<MicroBatch> copy_of(const Batch& batch) const;
  Error refuse(Error error) noexcept;
  Result<std::vector<double>> run_forward(std::span<const Batch> batches);
  Result<std::vector<at::Tensor>> run_stages(std::vector<MicroBatch>& group, Keep keep);
  Result<void> take_part(std::size_t first);
  Result<at::Tensor> run_stage(std::size_t stage, const at::Tensor& before, MicroBatch& micro,
                               Keep keep);
  bool keeps_head() const noexcept;
  Result<void> put_away(std::size_t stage, std::size_t index, StageGraph& graph);
  Result<at::Tensor> call_module(std::size_t stage, const at::Tensor& input,
                                 const MicroBatch& micro);
  Result<void> backward_stages(double loss_multiplier);
  Result<void> backward_stage(std::size_t stage);
  Result<void> backward_micro_batch(std::size_t stage, std::size_t index);
  Result<void> ask_to_stop();
  bool trainable(std::uint32_t parameter) const {
    return module_.parameters()[parameter].trainable;
  }
  std::vector<std::uint32_t> trained_parameters(std::size_t stage) const;
  bool in_parts(std::uint32_t parameter) const;
  Result<void> begin_parts(const std::vector<std::uint32_t>& parameters);
  Result<void> end_parts();
  Result<std::vector<at::Tensor>> differentiate(std::size_t stage,
                                                const std::vector<std::uint32_t>& trained,
                                                MicroBatch& micro);
  Result<StageGradients> collect(std::size_t stage, const std::vector<std::uint32_t>& parameters,
                                 const std::vector<at::Tensor>& gradients);
  StageGradients take_apart(StageGradients& made) const;
  Result<void> sum_on_device(StageGradients& before, StageGradients& made);
  Result<void> accumulate_late(StageGradients made);
  Result<void> accumulate_complete();
  Result<void> accumulate(const StageGradients& made);
  Result<tiering::DeviceFence> written();
  void keep_rows(std::uint32_t parameter, const MicroBatch& micro);
  std::vector<at::Tensor> tensors_of(const std::vector<std::uint32_t>& parameters) const;
  void span(const char* direction, std::size_t stage, std::uint64_t begin_ns);
  void work_between_operators();

  Module& module_;
  StepCore& core_;
  ModelState& state_;
  const Layout& layout_;
  ParameterTensors& tensors_;
  const UnitGraphsOptions options_;
  InputKeeper keeper_;
  std::vector<MicroBatch> group_;           // micro-batches of a forward before its backward
  std::optional<StageGradients> late_;      // gradients of the previous backward, or their sum
  std::optional<StageGradients> complete_;  // gradients of the stage after that
  PartSink sink_{*this};
  double told_multiplier_ = 1.0;  // `loss_multiplier` of their forward
  bool stopped_ = false;
  bool refused_ = false;
  std::uint64_t tokens_ = 0;
  std::function<void()> between_;  // work between operators; empty on a separate device
  std::uint64_t between_ns_ = 0;
};

}  // namespace artesian::zero3
