// Muon's update of a unit that is one matrix, in one sub-group: the momentum in slices, then
// orthogonalization of the whole matrix, then the step in slices. In between the matrix is in
// ModelState::matrix_buffer(). So all placements give the same bits, and an update under backward
// is rolled back like any other.
#include <algorithm>
#include <cmath>

#include "kernels/cast.h"
#include "zero3/step/float_moments.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// The matrix; the iteration's workspace follows it.
float* Optimizer::matrix_of(const SubGroup& group) const noexcept {
  const std::uint64_t bytes = state_.layout().units[group.unit].image * sizeof(float);
  ARTESIAN_CHECK(group.index == 0 && bytes <= state_.matrix_buffer().size(), group.unit, bytes);
  return reinterpret_cast<float*>(state_.matrix_buffer().data());
}

/// Updates elements [begin, end) of the momentum, and adds the gradient for the step.
void Optimizer::momentum_slice(const SubGroup& group, std::uint64_t begin,
                               std::uint64_t end) noexcept {
  const Part part = part_at(group, begin, end);
  ARTESIAN_CHECK(part.end == end && group.grad != nullptr, group.unit, begin, end);
  if (!part.constants.has_value()) return;
  const DType dtype = state_.placement().grad_dtype;
  const FloatMoments moments(group, begin, end - begin);
  kernels::muon_direction(group.grad + begin * dtype_size(dtype), dtype, end - begin,
                          *part.constants, moments.average().data(), matrix_of(group) + begin);
  moments.store();
}

Result<void> Optimizer::orthogonalize(const SubGroup& group) noexcept {
  const Unit& unit = state_.layout().units[group.unit];
  if (!part_at(group, 0, group.count).constants.has_value()) return {};
  const auto bytes = static_cast<std::size_t>(unit.image * sizeof(float));
  return options_.orthogonalize({.values = matrix_of(group),
                                 .rows = unit.rows,
                                 .columns = unit.numel / unit.rows,
                                 .method = constants_.newton_schulz,
                                 .workspace = state_.matrix_buffer().subspan(bytes)});
}

void Optimizer::step_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept {
  const Placement& plan = state_.placement();
  const Unit& unit = plan.layout.units[group.unit];
  const Part part = part_at(group, begin, end);
  if (part.constants.has_value()) {
    kernels::UpdateStep step = *part.constants;
    step.constants.grad_multiplier = static_cast<float>(std::sqrt(std::max(1.0, unit.aspect)));
    auto arrays = weights_of(group, begin);
    arrays.grad = matrix_of(group) + begin;  // padding must remain zero
    arrays.grad_dtype = DType::Float32;
    kernels::update(arrays, end - begin, step);
  } else {
    keep_param(group, begin, end);
  }
  refresh_slice(group, begin, end);
}

}  // namespace artesian::zero3
