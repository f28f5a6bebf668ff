// What the engine asks of a model: a list of parameters and a sequence of stages. The engine owns
// the order of everything: it gathers each stage's parameters, calls the stage on a detached input,
// and later asks autograd for that stage's gradients alone (unit-local graphs; no hooks).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace at {
class Tensor;
}

namespace artesian::zero3 {

enum class Initial : std::uint8_t { Zeros, Ones, Normal };

struct ParameterSpec {
  std::string name;  // unique; for Hugging Face models as in the checkpoint, without prefix
  std::vector<std::int64_t> shape;
  Initial initial = Initial::Normal;
  double standard_deviation = 0.02;  // for Initial::Normal, mean 0
  /// The row (index along the first dimension) that starts as zeros all the same: of padding.
  std::optional<std::uint64_t> zero_row = std::nullopt;
  /// A large matrix that its stage works on in tiles, in each as it needs it: forward() gets it in
  /// the dtype in which it is stored where the host computes, and its gradient goes to
  /// Batch::gradients. So neither is whole in the compute dtype anywhere.
  bool tiled = false;

  std::uint64_t numel() const noexcept {
    std::uint64_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
  }
};

struct StageSpec {
  std::string name;                       // "h.3"; names the unit in messages and timelines
  std::vector<std::uint32_t> parameters;  // gathered for this stage: indices into parameters()
  /// Stage 0 only: the parameter, [rows, width], that is looked up by token id. The engine gathers
  /// it, hands its rows to forward() as `input`, and adds the rows' gradients by itself, never as a
  /// dense tensor.
  std::optional<std::uint32_t> lookup;
};

/// The stage's parameters that take part in its graph: all but the looked-up one.
std::vector<std::uint32_t> graph_parameters(const StageSpec& stage);

/// Takes gradients of tiled parameters part by part, while they are in cache.
class GradientSink {
 public:
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;
  virtual ~GradientSink() = default;
  /// Of the parameter at `position` in what forward() got, elements [first, first + part.numel()).
  /// In backward of that stage alone; each element once, or none of the parameter at all.
  virtual void add(std::size_t position, std::int64_t first, const at::Tensor& part) = 0;

 protected:
  GradientSink() = default;
};

/// One micro-batch: two CPU tensors of any shape and dtype. The engine gives `targets` through to
/// the stages and never looks at them; they may be undefined.
struct Batch {
  const at::Tensor& input;    // of stage 0; token ids, int64, where stage 0 looks up
  const at::Tensor& targets;  // what the last stage compares with
  /// Set by the engine: where backward gives the gradients of tiled parameters, in place of
  /// returning them to autograd. Null: they are returned. Outlives the graph.
  GradientSink* gradients = nullptr;
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

/// Whether an engine can drive a module of this shape. Errors: Invalid, one line per fault.
Result<void> check_module(const std::vector<ParameterSpec>& parameters,
                          const std::vector<StageSpec>& stages);

}  // namespace artesian::zero3
