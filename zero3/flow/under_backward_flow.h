// UnderBackwardFlow: the part of a step's update that is made under its last backward: which units
// are updated, when their gradients are final, when a too large norm stops it, and what is rolled
// back if the assumptions about the step were wrong. An Update (flow/update_flow.h) makes the
// updates. The Gradients class has:
//
//   std::optional<double> sum_final(unit);   sum of squares of a final gradient; none
//                                            if an element is not finite
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "zero3/flow/gradient_order.h"

namespace artesian::zero3 {

template <typename Gradients, typename Update>
class UnderBackwardFlow {
 public:
  /// Both must outlive it. `speculative`: updates may be rolled back. `hooked`: the caller runs the
  /// model, and the order of final gradients is taken from the previous step.
  UnderBackwardFlow(std::size_t units, bool speculative, bool hooked, Gradients& gradients,
                    Update& update)
      : gradients_(gradients),
        update_(update),
        speculative_(speculative),
        hooked_(hooked),
        units_(units, false),
        gradient_order_(units) {}

  /// `units`: for each unit, whether it is updated under backward. `final_by_stage`: [stages] the
  /// units whose gradients are final after that stage's backward.
  void choose(std::vector<bool> units, std::vector<std::vector<std::uint32_t>> final_by_stage) {
    ARTESIAN_CHECK(units.size() == units_.size(), units.size(), units_.size());
    units_ = std::move(units);
    by_stage_ = std::move(final_by_stage);
    for (auto& stage : by_stage_) {
      std::erase_if(stage, [this](std::uint32_t unit) { return !units_[unit]; });
    }
  }
  const std::vector<bool>& units() const noexcept { return units_; }

  /// Begins the last backward of the step; all losses must be finite. The step is clipped if its
  /// sum of squares exceeds `sum_squares_max`. Returns the units in the order in which they will be
  /// final.
  std::vector<std::uint32_t> begin(double sum_squares_max) {
    stopped_ = given_up_ = false;
    sum_squares_ = 0.0;
    sum_squares_max_ = sum_squares_max;
    std::vector<std::uint32_t> expected;
    if (hooked_) expected = gradient_order_.as_before(units_);
    for (auto stage = by_stage_.rbegin(); !hooked_ && stage != by_stage_.rend(); ++stage) {
      expected.insert(expected.end(), stage->begin(), stage->end());
    }
    gradient_order_.begin(expected);
    return expected;
  }
  /// The driver of a hooked model reports that nothing more is added to the unit's gradient.
  void complete(std::uint32_t unit) { gradient_order_.complete(unit); }
  bool is_complete(std::uint32_t unit) const noexcept { return gradient_order_.is_complete(unit); }
  /// Such a report was wrong, and a gradient is about to be added: give_up() follows.
  void added_late(std::uint32_t unit) noexcept { gradient_order_.added_late(unit); }
  /// All gradients of a stage are added: updates units that need no waiting. A gradient that is not
  /// finite, or a too large norm, stops this for the rest of the step. Errors, here and below: the
  /// update's.
  Result<void> accumulated(std::size_t stage) {
    if (!update_.under_backward() || stopped_) return {};
    ARTESIAN_CHECK(stage < by_stage_.size(), stage, by_stage_.size());
    if (!hooked_) {
      for (const std::uint32_t unit : by_stage_[stage]) gradient_order_.complete(unit);
    }
    while (const auto unit = gradient_order_.next()) {
      const auto sum_squares = gradients_.sum_final(*unit);
      sum_squares_ += sum_squares.value_or(0.0);
      stopped_ = !sum_squares.has_value() || (speculative_ && sum_squares_ > sum_squares_max_);
      if (stopped_) return {};
      update_.gradient_is_final(*unit);
    }
    return update_.update_ahead();
  }
  /// True if the step has begun its update and cannot roll it back.
  bool begun() const noexcept { return update_.under_backward() && !update_.speculative(); }
  /// Rolls back the step's update, as far as one was begun speculatively.
  Result<void> take_back() { return update_.speculative() ? update_.take_back() : Result<void>(); }
  /// Abandons the step: rolls back speculative updates, and returns memory borrowed for reading
  /// ahead.
  Result<void> abandon() {
    ARTESIAN_TRY_VOID(take_back());
    return update_.skip();
  }
  /// The backward was not the step's last one, or the caller needs the values from before the
  /// update: as abandon(), and the next step makes no speculative update.
  Result<void> give_up() {
    given_up_ = true;
    gradient_order_.give_up();
    return abandon();
  }
  /// All gradients are known. `as_begun`: the update uses the constants with which it was begun;
  /// otherwise it is rolled back. `skipped`: the step makes no update.
  Result<void> judged(bool as_begun, bool skipped) {
    ARTESIAN_CHECK(!as_begun || !skipped);
    update_.judged(as_begun && !given_up_);
    if (!as_begun) ARTESIAN_TRY_VOID(take_back());
    return skipped ? update_.skip() : Result<void>();
  }

 private:
  Gradients& gradients_;
  Update& update_;
  const bool speculative_;
  const bool hooked_;
  bool stopped_ = false;
  bool given_up_ = false;         // the update begun for this step was given up
  double sum_squares_ = 0.0;      // sum of squares of final gradients
  double sum_squares_max_ = 0.0;  // limit of that sum; above it the step is clipped
  std::vector<bool> units_;
  std::vector<std::vector<std::uint32_t>>
      by_stage_;  // by stage: units of units_ whose gradients are final there
  GradientOrder gradient_order_;
};

}  // namespace artesian::zero3
