// The table of optimizers: for each its name, its state per element, its parameters and its update
// rule in kernels/update.h. Placements, checkpoints, plans and the Python package use this table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// The state that an optimizer keeps per element besides the weight, under torch.optim's names;
/// empty if it keeps none. An average may be negative, squares may not.
struct Moments {
  std::string_view average = "exp_avg";
  std::string_view squares = "exp_avg_sq";

  constexpr std::uint64_t count() const noexcept {
    return (average.empty() ? 0u : 1u) + (squares.empty() ? 0u : 1u);
  }
  bool operator==(const Moments&) const = default;
};

struct OptimizerForm {
  OptimizerType type;
  std::string_view name;    // name in optimizer.type
  Moments moments;          // the most state that it keeps
  std::string_view params;  // keys of optimizer.params, separated by '|'
  double lr = 1e-3;         // defaults
  double eps = 1e-8;
  double beta2 = 0.999;
};

/// All optimizers; Adam is listed twice, under its two names.
std::span<const OptimizerForm> optimizer_forms() noexcept;
/// The optimizer of this name, ignoring case; null if there is none.
const OptimizerForm* find_optimizer(std::string_view name) noexcept;

/// Muon's state per element of a matrix.
inline constexpr Moments matrix_moments{.average = "momentum_buffer", .squares = ""};

/// The state that an optimizer keeps under this configuration. RMSprop has an average only with
/// momentum.
Moments moments_of(const OptimizerConfig& config) noexcept;
/// The name in optimizer.type: "SGD", and "AdamW" or "Adam" by the kind of weight decay.
std::string_view type_name(const OptimizerConfig& config) noexcept;
/// The name in checkpoint manifests: "adamw", "adam", "sgd".
std::string saved_name(const OptimizerConfig& config) noexcept;
/// True if the optimizer has two betas, which a schedule may cycle.
bool has_betas(const OptimizerConfig& config) noexcept;

}  // namespace artesian::zero3
