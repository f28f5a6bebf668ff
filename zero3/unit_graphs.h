// Unit-local graphs: each stage runs on a detached input and keeps a graph of its own; backward
// asks autograd for one stage at a time, in reverse. So the order of gathering, gradients and
// release is ours, and no hook is needed.
//
// Two kinds of failure: the tiers' (Io, Corrupt, ...) end the run; what LibTorch or the module
// makes of a batch concerns that batch alone, if nothing of it has been accumulated. So forward and
// evaluate return a Result within a Result: the inner one is the batch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/timeline.h"
#include "zero3/gradients.h"
#include "zero3/module.h"
#include "zero3/parameter_tensors.h"
#include "zero3/prefetcher.h"

namespace artesian::zero3 {

class UnitGraphs {
 public:
  /// All must outlive it.
  UnitGraphs(Module& module, const Layout& layout, ParameterTensors& tensors,
             Prefetcher& prefetcher, Gradients& gradients, Timeline* timeline);

  /// Runs all stages and keeps their graphs and a copy of the batch. Returns the loss.
  /// Errors: those of gathering; inner: Invalid and Exhausted, after which nothing is kept.
  Result<Result<double>> forward(const Batch& batch);
  /// Backward over the kept graphs: weight gradients of loss * loss_multiplier join the
  /// accumulators. Errors: those of gathering and accumulating; Invalid from LibTorch.
  Result<void> backward(double loss_multiplier);
  /// Runs all stages without gradients, on the prefetcher's evaluation course; returns what the
  /// last one returned. Kept graphs stay. Errors: as forward.
  Result<Result<at::Tensor>> evaluate(const Batch& batch);
  /// After the last micro-batch: adds the looked-up rows' gradients, once, in canonical order.
  Result<void> finish_gradients();

  bool backward_pending() const noexcept { return pending_; }
  /// Of the last forward: token ids where stage 0 looks them up, else samples (the first extent).
  std::uint64_t tokens() const noexcept { return tokens_; }
  double forward_seconds() const noexcept { return static_cast<double>(forward_ns_) * 1e-9; }
  double backward_seconds() const noexcept { return static_cast<double>(backward_ns_) * 1e-9; }
  /// Bytes of gradients rounded into the accumulators so far.
  std::uint64_t bytes_to_host() const noexcept { return bytes_to_host_; }

 private:
  enum class Keep : std::uint8_t { Graphs, Nothing };
  struct StageGraph {
    at::Tensor input;
    at::Tensor output;
  };
  struct RowGradients {   // of one micro-batch
    at::Tensor rows;      // [ids] int64
    at::Tensor gradient;  // [ids, width] fp32
  };
  Result<void> enter(const Trace::Access& units);
  Result<void> leave(const Trace::Access& units);
  Result<Result<at::Tensor>> run_stages(const Batch& batch, Keep keep);
  Result<at::Tensor> run_stage(std::size_t stage, const at::Tensor& before, const Batch& batch,
                               Keep keep);
  void forget();
  Result<void> backward_stage(std::size_t stage, at::Tensor& gradient);
  Result<void> accumulate(const std::vector<std::uint32_t>& parameters,
                          const std::vector<at::Tensor>& gradients);
  std::vector<std::uint32_t> graph_parameters(std::size_t stage) const;
  std::vector<at::Tensor> tensors_of(const std::vector<std::uint32_t>& parameters) const;
  Trace::Access backward_units(std::size_t stage) const;
  void span(const char* direction, std::size_t stage, std::uint64_t begin_ns);

  Module& module_;
  const Layout& layout_;
  ParameterTensors& tensors_;
  Prefetcher& prefetcher_;
  Gradients& gradients_;
  Timeline* timeline_;
  std::vector<StageGraph> graphs_;
  bool pending_ = false;  // graphs_ are of a forward that has no backward yet
  at::Tensor input_;      // of that forward
  at::Tensor targets_;
  std::uint64_t tokens_ = 0;
  std::vector<RowGradients> row_gradients_;
  std::uint64_t forward_ns_ = 0;
  std::uint64_t backward_ns_ = 0;
  std::uint64_t bytes_to_host_ = 0;
};

}  // namespace artesian::zero3
