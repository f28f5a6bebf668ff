// Gradients: one accumulator per unit, in grad_accum_dtype, in host memory where it fits and else
// on NVMe. Exact rules, the same wherever they live: each micro-batch's weight gradient is rounded
// to the parameter dtype and added, rounded, in micro-batch order; a looked-up parameter's row
// gradients are summed per row in fp32 in (micro-batch, position) order and added once, after
// everything else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero3/state.h"

namespace artesian::zero3 {

/// One parameter's gradient of one micro-batch: [numel] of the parameter, fp32, contiguous.
struct ParameterGradient {
  std::uint32_t parameter = 0;
  const float* data = nullptr;
};

struct GradientNorm {
  double sum_squares = 0.0;  // of all accumulated gradients, still scaled
  bool finite = true;
  std::uint32_t bad_parameter = 0;  // the first with a non-finite element, when not finite
};

class Gradients {
 public:
  explicit Gradients(ModelState& state);

  /// Forgets all accumulated gradients: the next addition to each unit replaces them.
  void begin_step() noexcept;
  /// Adds one micro-batch's gradients of parameters of one unit. All of a unit's parameters that
  /// get gradients come in one call. Errors: Io, Corrupt, Timeout (spilled units).
  Result<void> add(std::uint32_t unit, std::span<const ParameterGradient> gradients) noexcept;
  /// Adds rows: position i contributes row_gradients[i * width, ...) to row rows[i] of `parameter`.
  /// Shape: rows: [n]; row_gradients: [n, width] fp32; width divides the parameter's numel. Rows
  /// keep their order within a row index: (micro-batch, position).
  Result<void> add_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                        std::span<const float* const> row_gradients, std::uint64_t width) noexcept;
  /// The norm's sum of squares: fp64 partial sums per 64 Ki elements of each parameter, combined in
  /// parameter order. Units that got no gradient count as zero.
  Result<GradientNorm> norm() noexcept;
  /// Zeroes accumulators of units without a gradient this step, so that the optimizer may read all.
  Result<void> complete() noexcept;
  /// Bytes of one accumulated element.
  std::uint64_t element_size() const noexcept { return dtype_size(state_.placement().grad_dtype); }
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }

 private:
  struct Piece {  // a slice of a parameter within one sub-group
    std::uint64_t image_first;
    std::uint64_t count;
    const float* data;
  };
  Result<void> add_pieces(std::uint32_t unit, std::vector<Piece> pieces, bool fresh) noexcept;
  Result<void> add_spilled(std::uint32_t unit, const std::vector<Piece>& pieces,
                           bool fresh) noexcept;
  void accumulate(std::byte* target, const Piece& piece, bool fresh) noexcept;
  Result<void> start_at_zero(std::uint32_t unit) noexcept;
  Result<void> read_spilled(std::uint32_t unit, std::uint64_t group,
                            tiering::StagingItem& item) noexcept;
  void norm_of_unit_in_host(std::uint32_t unit) noexcept;
  Result<void> norm_of_spilled_unit(std::uint32_t unit) noexcept;
  void norm_of_part(std::uint32_t parameter, std::uint64_t first, std::uint64_t last,
                    const std::byte* data) noexcept;
  Result<tiering::StagingItem*> next_item() noexcept;

  ModelState& state_;
  std::vector<bool> started_;  // by unit: has a gradient this step
  struct Partial {
    double sum = 0.0;
    bool finite = true;
  };
  std::vector<std::vector<Partial>> partials_;  // by parameter, by block of 64 Ki elements
  std::vector<std::byte> block_;                // one norm block, for spilled units
  std::uint64_t wait_ns_ = 0;
};

}  // namespace artesian::zero3
