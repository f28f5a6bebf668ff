// The interface of a model: a list of parameters and a sequence of stages. The engine controls the
// order: it gathers each stage's parameters, calls the stage on a detached input, and later asks
// autograd for that stage's gradients only (unit-local graphs; no hooks).
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
  /// Adds elements [first, first + part.numel()) of the gradient of forward()'s parameter number
  /// `position`. Call it only in backward of that stage; either each element once, or none of the
  /// parameter.
  virtual void add(std::size_t position, std::int64_t first, const at::Tensor& part) = 0;

 protected:
  GradientSink() = default;
};

/// One micro-batch: two CPU tensors of any shape and dtype. The engine passes `targets` to the
/// stages unchanged; they may be undefined.
struct Batch {
  const at::Tensor& input;    // input of stage 0; int64 token ids if it looks up
  const at::Tensor& targets;  // targets for the last stage's loss
  /// Set by the engine: the sink to which backward passes the gradients of tiled parameters,
  /// instead of returning them to autograd. Null: they are returned. It outlives the graph.
  GradientSink* gradients = nullptr;
  /// Set by the engine: the factor by which backward will multiply the loss. A module that computes
  /// the loss's gradient in forward, in a narrow dtype, may include this factor.
  double loss_multiplier = 1.0;
};

class Module {
 public:
  virtual ~Module() = default;
  /// Both must not change during the module's life. A parameter may belong to several stages (a
  /// tied weight), and must belong to at least one.
  virtual const std::vector<ParameterSpec>& parameters() const noexcept = 0;
  virtual const std::vector<StageSpec>& stages() const noexcept = 0;
  /// Runs stage `stage`. Must be deterministic for the same thread count. May throw LibTorch's
  /// exceptions: the batch is then refused, and the engine remains usable. Shape: input: for stage
  /// 0, batch.input, or its rows [..., width] if the stage looks up; else the previous stage's
  /// result. parameters: in the order of stages()[stage].parameters, without the looked-up one, in
  /// the compute dtype (but see ParameterSpec::tiled); valid only during the call. Returns the next
  /// stage's input. The last stage returns the batch's mean loss, a scalar in fp32; in an
  /// evaluation (at::GradMode is off) it may return any tensor.
  virtual at::Tensor forward(std::size_t stage, const at::Tensor& input,
                             const std::vector<at::Tensor>& parameters, const Batch& batch) = 0;
};

}  // namespace artesian::zero3
