// UnderBackwardFlow: what of a step's update its last backward takes: which units that is, when a
// gradient is final, when a norm that gets too large stops it, and what is rolled back where the
// step turns out to be another one. An Update (flow/update_flow.h) makes it; Gradients have:
//
//   std::optional<double> sum_final(unit);   the sum of squares of a gradient that is final; none
//                                            where one is not finite
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
  /// model, and the order of final gradients is taken from the step before.
  UnderBackwardFlow(std::size_t units, bool speculative, bool hooked, Gradients& gradients,
                    Update& update)
      : gradients_(gradients),
        update_(update),
        speculative_(speculative),
        hooked_(hooked),
        units_(units, false),
        gradient_order_(units) {}

  /// By unit: it is updated under backward. `final_by_stage`: [stages] the units whose gradients
  /// are final after that stage's backward.
  void choose(std::vector<bool> units, std::vector<std::vector<std::uint32_t>> final_by_stage) {
    ARTESIAN_CHECK(units.size() == units_.size(), units.size(), units_.size());
    units_ = std::move(units);
    by_stage_ = std::move(final_by_stage);
    for (auto& stage : by_stage_) {
      std::erase_if(stage, [this](std::uint32_t unit) { return !units_[unit]; });
    }
  }
  const std::vector<bool>& units() const noexcept { return units_; }

  /// The last backward of the step begins, and all losses are finite. A sum of squares above that
  /// is clipped. Returns the units in the order in which they will be final.
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
  /// Nothing is added to the unit's gradient any more, says the driver of a hooked model.
  void complete(std::uint32_t unit) { gradient_order_.complete(unit); }
  bool is_complete(std::uint32_t unit) const noexcept { return gradient_order_.is_complete(unit); }
  /// It was wrong, and something is about to be added: give_up() follows.
  void added_late(std::uint32_t unit) noexcept { gradient_order_.added_late(unit); }
  /// A stage's gradients are all added: updates units that need no waiting. A gradient that is not
  /// finite, or too large, stops that for the rest of the step. Errors: the update's, as of all.
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
  /// True if the step under way has begun its update, and cannot roll it back.
  bool begun() const noexcept { return update_.under_backward() && !update_.speculative(); }
  /// Rolls the step's update back, as far as it has begun one that may be.
  Result<void> take_back() { return update_.speculative() ? update_.take_back() : Result<void>(); }
  /// Abandons the step: rolls back tried updates, and returns memory borrowed for reading ahead.
  Result<void> abandon() {
    ARTESIAN_TRY_VOID(take_back());
    return update_.skip();
  }
  /// The backward was not the step's last one, or the caller needs the values before the update: as
  /// abandon(), and the next step does not try.
  Result<void> give_up() {
    given_up_ = true;
    gradient_order_.give_up();
    return abandon();
  }
  /// All gradients are known; `as_begun`: the step is updated with the constants with which it
  /// began. If not, rolls that back. `skipped`: it is not updated.
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
  double sum_squares_max_ = 0.0;  // limit of that sum above which the step is clipped
  std::vector<bool> units_;
  std::vector<std::vector<std::uint32_t>> by_stage_;  // units of units_ that are final there
  GradientOrder gradient_order_;
};

}  // namespace artesian::zero3
