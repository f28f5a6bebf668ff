// The shape of a model as the engine needs it: a list of parameters and a sequence of stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::zero3 {

enum class Initial : std::uint8_t { Zeros, Ones, Normal };

struct ParameterSpec {
  std::string name;  // unique; for Hugging Face models as in the checkpoint, without prefix
  std::vector<std::int64_t> shape;
  Initial initial = Initial::Normal;
  double standard_deviation = 0.02;  // for Initial::Normal, mean 0
  /// Index, along the first dimension, of a padding row, which starts as zeros.
  std::optional<std::uint64_t> zero_row = std::nullopt;
  /// A large matrix that its stage processes in tiles. If the host computes, forward() gets it in
  /// its stored dtype, and its gradient goes to Batch::gradients; so neither ever exists completely
  /// in the compute dtype. In a hooked model: a matrix that is read by UnitUses::look_up and
  /// multiply.
  bool tiled = false;
  /// The set of optimizer constants that updates it: GroupOptions in step/parameter_groups.h.
  std::uint32_t group = 0;
  /// True for a [rows, columns] matrix between hidden layers (neither embedding nor head), which
  /// Muon updates as a whole. Convolution filters count as a matrix of [filters, elements of one
  /// filter].
  bool matrix = false;
  /// False: frozen. The parameter keeps its initial value, stored in the parameters' dtype, and has
  /// no gradient, no optimizer state and no fp32 weight.
  bool trainable = true;

  std::uint64_t numel() const noexcept {
    std::uint64_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
  }
};

struct StageSpec {
  std::string name;  // "h.3"; names the unit in messages and timelines
  std::vector<std::uint32_t>
      parameters;  // parameters gathered for this stage: indices into parameters()
  /// The parameter, [rows, width], that is looked up by token id. It is not gathered in backward,
  /// and its gradients exist only for the rows used. A Module may have one only in stage 0: the
  /// engine passes the rows to forward() as `input`. In a hooked model any stage may use
  /// UnitUses::look_up.
  std::optional<std::uint32_t> lookup;
};

struct ModelShape {
  std::vector<ParameterSpec> parameters;
  std::vector<StageSpec> stages;
};

/// The stage's parameters that are in its autograd graph: all but the looked-up one.
std::vector<std::uint32_t> graph_parameters(const StageSpec& stage);

/// The first stage with a trainable parameter, where backward ends. If there is none, the number of
/// stages.
std::size_t first_trainable_stage(const std::vector<ParameterSpec>& parameters,
                                  const std::vector<StageSpec>& stages);

/// Checks that there is something to train. Errors: Invalid.
Result<void> check_trainable(const std::vector<ParameterSpec>& parameters);

/// Checks that a model of this shape can be run. Errors: Invalid, one line per fault.
Result<void> check_shape(const std::vector<ParameterSpec>& parameters,
                         const std::vector<StageSpec>& stages);

}  // namespace artesian::zero3
