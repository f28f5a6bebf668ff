// What the engine asks of a model: a list of parameters and a sequence of stages. The engine owns
// the order of everything: it gathers each stage's parameters, calls the stage on a detached input,
// and later asks autograd for that stage's gradients alone (unit-local graphs; no hooks).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace artesian::zero3 {

enum class Initial : std::uint8_t { Zeros, Ones, Normal };

struct ParameterSpec {
  std::string name;  // as in the Hugging Face checkpoint, without prefix
  std::vector<std::int64_t> shape;
  Initial initial = Initial::Normal;
  double standard_deviation = 0.02;  // for Initial::Normal, mean 0

  std::uint64_t numel() const noexcept {
    std::uint64_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
  }
};

struct StageSpec {
  std::string name;                       // "h.3"; names the unit in messages and timelines
  std::vector<std::uint32_t> parameters;  // gathered for this stage: indices into parameters()
  /// Stage 0 only: the parameter that is looked up by token id. The engine gathers it, hands its
  /// rows to forward() as `input`, and adds the rows' gradients by itself, never as a dense tensor.
  std::optional<std::uint32_t> lookup;
};

/// One micro-batch of token ids. Shape: ids, targets: [samples, length], int64.
struct Batch {
  const at::Tensor& ids;
  const at::Tensor& targets;
};

class Module {
 public:
  virtual ~Module() = default;
  virtual const std::vector<ParameterSpec>& parameters() const noexcept = 0;
  virtual const std::vector<StageSpec>& stages() const noexcept = 0;
  /// Runs stage `stage`. Deterministic for the same thread count.
  /// Shape: input: stage 0: the looked-up rows [samples, length, hidden]; else what the stage
  /// before returned. parameters: in the order of stages()[stage].parameters, without the looked-up
  /// one, in the compute dtype. Returns the next stage's input; the last stage returns the mean
  /// cross entropy over all targets of the batch, a scalar in fp32.
  virtual at::Tensor forward(std::size_t stage, const at::Tensor& input,
                             const std::vector<at::Tensor>& parameters, const Batch& batch) = 0;
};

}  // namespace artesian::zero3
