// LeafSums: sums over every trainable unit's image by leaves of 2048 elements, which norms add up
// in a fixed order: Note [Leaves of the norm] in gradients.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "comm/group.h"
#include "kernels/gradient.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

class LeafSums {
 public:
  /// Starts with zeros. The layout must outlive it.
  explicit LeafSums(const Layout& layout);

  /// The leaf sums of a unit's whole image; frozen units have none.
  std::span<double> of(std::uint32_t unit) noexcept {
    ARTESIAN_CHECK(unit + 1 < first_.size(), unit, first_.size());
    return std::span(sums_).subspan(first_[unit], first_[unit + 1] - first_[unit]);
  }
  /// The leaf sums of a parameter of a trainable unit.
  std::span<double> of(const ParameterPlace& place) noexcept {
    return of(place.unit)
        .subspan(
            static_cast<std::size_t>(place.first / kernels::norm_leaf),
            static_cast<std::size_t>((place.numel + kernels::norm_leaf - 1) / kernels::norm_leaf));
  }
  void clear() noexcept { sums_.assign(sums_.size(), 0.0); }
  /// Gathers the leaf sums of all shares from their ranks. `what` names them in errors. Errors: the
  /// group's.
  Result<void> gather(comm::Group& group, const char* what) noexcept;

 private:
  const Layout& layout_;
  std::vector<double> sums_;        // leaf sums of all images, in order
  std::vector<std::size_t> first_;  // first leaf of each unit's image, and the end
};

}  // namespace artesian::zero3
