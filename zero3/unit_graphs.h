// Unit-local graphs: each stage runs on a detached input and keeps a graph of its own; backward
// asks autograd for one stage at a time, in reverse. So the order of gathering, gradients and
// release is ours, and no hook is needed.
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
  /// All must outlive it. Shape: batches are [samples, length].
  UnitGraphs(Module& module, const Layout& layout, ParameterTensors& tensors,
             Prefetcher& prefetcher, Gradients& gradients, Timeline* timeline, std::int64_t samples,
             std::int64_t length);

  /// Forward and backward of one micro-batch; weight gradients of loss * loss_multiplier join the
  /// accumulators. Returns the loss. Errors: those of gathering and accumulating; Invalid from
  /// LibTorch.
  Result<double> run(std::span<const std::int64_t> ids, std::span<const std::int64_t> targets,
                     double loss_multiplier);
  /// After the last micro-batch: adds the looked-up rows' gradients, once, in canonical order.
  Result<void> finish_gradients();

  double forward_seconds() const noexcept { return static_cast<double>(forward_ns_) * 1e-9; }
  double backward_seconds() const noexcept { return static_cast<double>(backward_ns_) * 1e-9; }
  /// Bytes of gradients rounded into the accumulators so far.
  std::uint64_t bytes_to_host() const noexcept { return bytes_to_host_; }

 private:
  struct StageGraph {
    at::Tensor input;
    at::Tensor output;
  };
  struct RowGradients {   // of one micro-batch
    at::Tensor rows;      // [samples * length] int64
    at::Tensor gradient;  // [samples * length, width] fp32
  };
  Result<void> enter(const Trace::Access& units);
  Result<void> leave(const Trace::Access& units);
  Result<void> forward(const Batch& batch);
  Result<void> backward(const Batch& batch, double loss_multiplier);
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
  const std::int64_t samples_;
  const std::int64_t length_;
  std::vector<StageGraph> graphs_;
  std::vector<RowGradients> row_gradients_;
  std::uint64_t forward_ns_ = 0;
  std::uint64_t backward_ns_ = 0;
  std::uint64_t bytes_to_host_ = 0;
};

}  // namespace artesian::zero3
