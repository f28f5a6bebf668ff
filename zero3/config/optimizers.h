// The optimizers, each described once: what it is called, what it keeps of each element, which
// parameters it has, and by which rule of kernels/update.h it steps. Placements, checkpoints, plans
// and the Python package go by this table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "zero3/config/config.h"

namespace artesian::zero3 {

/// What an optimizer keeps of each element besides its weight, by the names of torch.optim; empty
/// where it keeps none. An average may be negative, squares are not.
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
  std::string_view name;    // as optimizer.type has it
  Moments moments;          // the most that it keeps
  std::string_view params;  // keys of optimizer.params, '|' between them
  double lr = 1e-3;         // defaults
  double eps = 1e-8;
  double beta2 = 0.999;
};

/// All of them; Adam stands twice, for its two names.
std::span<const OptimizerForm> optimizer_forms() noexcept;
/// The one of this name, in any case; null: there is none.
const OptimizerForm* find_optimizer(std::string_view name) noexcept;

/// What Muon keeps of each element of a matrix.
inline constexpr Moments matrix_moments{.average = "momentum_buffer", .squares = ""};

/// What an optimizer keeps under this configuration. RMSprop has an average if it has momentum.
Moments moments_of(const OptimizerConfig& config) noexcept;
/// "AdamW" or "Adam" by the kind of decay, "SGD": as optimizer.type has it.
std::string_view type_name(const OptimizerConfig& config) noexcept;
/// "adamw", "adam", "sgd": what manifests of checkpoints call it.
std::string saved_name(const OptimizerConfig& config) noexcept;
/// True if it has two betas, which a schedule may cycle.
bool has_betas(const OptimizerConfig& config) noexcept;

}  // namespace artesian::zero3
