// What the engine asks of a model: a list of parameters and a sequence of stages. The engine owns
// the order of everything: it gathers each stage's parameters, calls the stage on a detached input,
// and later asks autograd for that stage's gradients alone (unit-local graphs; no hooks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero3/plan/model_shape.h"

namespace at {
class Tensor;
}

namespace artesian::zero3 {

/// Takes gradients of tiled parameters part by part, while they are in cache.
class GradientSink {
 public:
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;
  virtual ~GradientSink() = default;
  /// Adds elements [first, first + part.numel()) of parameter `position` in what forward() got. In
  /// backward of that stage alone; each element once, or none of the parameter at all.
  virtual void add(std::size_t position, std::int64_t first, const at::Tensor& part) = 0;

 protected:
  GradientSink() = default;
};

/// One micro-batch: two CPU tensors of any shape and dtype. The engine gives `targets` through to
/// the stages and never looks at them; they may be undefined.
struct Batch {
  const at::Tensor& input;    // input of stage 0; int64 token ids if it looks up
  const at::Tensor& targets;  // what the last stage compares with
  /// Set by the engine: where backward gives the gradients of tiled parameters, in place of
  /// returning them to autograd. Null: they are returned. Outlives the graph.
  GradientSink* gradients = nullptr;
  /// Set by the engine: what backward will multiply the loss by. A module that makes the loss's
  /// gradient in forward, in a narrow dtype, may do so with this factor in it.
  double loss_multiplier = 1.0;
};

class Module {
 public:
  virtual ~Module() = default;
  /// Both are fixed for the module's life. A parameter may belong to several stages (a tied
  /// weight); each belongs to at least one.
  virtual const std::vector<ParameterSpec>& parameters() const noexcept = 0;
  virtual const std::vector<StageSpec>& stages() const noexcept = 0;
  /// Runs stage `stage`. Deterministic for the same thread count. May throw what LibTorch throws:
  /// the batch is then refused, and the engine lives on.
  /// Shape: input: stage 0: batch.input, or its rows [..., width] where it looks up; else what the
  /// stage before returned. parameters: in the order of stages()[stage].parameters, without the
  /// looked-up one, in the compute dtype (but see ParameterSpec::tiled); valid during the call
  /// alone. Returns the next stage's input. The last stage returns the batch's mean loss, a scalar
  /// in fp32; in an evaluation (at::GradMode is off) it may return any tensor.
  virtual at::Tensor forward(std::size_t stage, const at::Tensor& input,
                             const std::vector<at::Tensor>& parameters, const Batch& batch) = 0;
};

}  // namespace artesian::zero3
