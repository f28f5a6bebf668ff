// The shape of a model, as the engine sees it: a list of parameters and a sequence of stages.
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
  /// The row (index along the first dimension) that starts as zeros all the same: of padding.
  std::optional<std::uint64_t> zero_row = std::nullopt;
  /// A large matrix that its stage works on in tiles, in each as it needs it: forward() gets it in
  /// the dtype in which it is stored where the host computes, and its gradient goes to
  /// Batch::gradients. So neither is whole in the compute dtype anywhere. Of a model that somebody
  /// else runs: one that UnitUses::look_up and multiply read.
  bool tiled = false;
  /// Which set of optimizer constants it is updated with: GroupOptions in step/parameter_groups.h.
  std::uint32_t group = 0;
  /// True if it is [rows, columns] between hidden layers, no embedding and no head: Muon updates it
  /// as a whole. Filters of a convolution are a matrix of [filters, elements of one].
  bool matrix = false;
  /// False: frozen. It is read and never written again: no gradient, no optimizer state, no fp32
  /// weight, but what it was initialised with, in the dtype that parameters are stored in.
  bool trainable = true;

  std::uint64_t numel() const noexcept {
    std::uint64_t count = 1;
    for (const auto extent : shape) count *= static_cast<std::uint64_t>(extent);
    return count;
  }
};

struct StageSpec {
  std::string name;                       // "h.3"; names the unit in messages and timelines
  std::vector<std::uint32_t> parameters;  // gathered for this stage: indices into parameters()
  /// The parameter, [rows, width], that is looked up by token id, and not gathered in backward; its
  /// rows' gradients are never a dense tensor. A Module has it in stage 0 alone: the engine hands
  /// the rows to forward() as `input`. Of a model that somebody else runs, UnitUses::look_up has
  /// them in any stage.
  std::optional<std::uint32_t> lookup;
};

struct ModelShape {
  std::vector<ParameterSpec> parameters;
  std::vector<StageSpec> stages;
};

/// The stage's parameters that take part in its graph: all but the looked-up one.
std::vector<std::uint32_t> graph_parameters(const StageSpec& stage);

/// The first stage with a trainable parameter: backward ends there. The number of stages, if none
/// is.
std::size_t first_trainable_stage(const std::vector<ParameterSpec>& parameters,
                                  const std::vector<StageSpec>& stages);

/// Checks that there is something to train. Errors: Invalid.
Result<void> check_trainable(const std::vector<ParameterSpec>& parameters);

/// Checks that a model of this shape can be run. Errors: Invalid, one line per fault.
Result<void> check_shape(const std::vector<ParameterSpec>& parameters,
                         const std::vector<StageSpec>& stages);

}  // namespace artesian::zero3
