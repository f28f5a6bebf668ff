// LeafSums: sums over every trainable unit's image by leaves of 2048 elements, of which norms are
// added in a fixed order: Note [Leaves of the norm] in gradients.h.
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
  /// Of zeros. The layout must outlive it.
  explicit LeafSums(const Layout& layout);

  /// Those of all of a unit's image; frozen units have none.
  std::span<double> of(std::uint32_t unit) noexcept {
    ARTESIAN_CHECK(unit + 1 < first_.size(), unit, first_.size());
    return std::span(sums_).subspan(first_[unit], first_[unit + 1] - first_[unit]);
  }
  /// Those of a parameter of a trainable unit.
  std::span<double> of(const ParameterPlace& place) noexcept {
    return of(place.unit)
        .subspan(
            static_cast<std::size_t>(place.first / kernels::norm_leaf),
            static_cast<std::size_t>((place.numel + kernels::norm_leaf - 1) / kernels::norm_leaf));
  }
  void clear() noexcept { sums_.assign(sums_.size(), 0.0); }
  /// Makes all shares' sums those of the ranks whose shares they are. `what` names them in errors.
  /// Errors: the group's.
  Result<void> gather(comm::Group& group, const char* what) noexcept;

 private:
  const Layout& layout_;
  std::vector<double> sums_;        // of all images, in their order
  std::vector<std::size_t> first_;  // by unit, of its image; and the end of all
};

}  // namespace artesian::zero3
