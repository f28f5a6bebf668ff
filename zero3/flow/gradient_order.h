// GradientOrder: which gradients are final in a step's last backward. The driver says when nothing
// is added to a unit's gradient any more. Units that are updated under backward are handed out in
// the order that was expected when it began, because the optimizer reads their state in that order
// ahead of time; one that is complete early waits for those before it.
//
// A driver that knows the model's stages knows that order. Of a model that somebody else runs
// nobody does: then the units that were complete in the last backward of the step before are
// expected, in the order in which they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace artesian::zero3 {

class GradientOrder {
 public:
  explicit GradientOrder(std::size_t units) : complete_(units, false), added_late_(units, false) {}

  /// A step's last backward begins; these units are expected, in this order.
  void begin(std::vector<std::uint32_t> expected);
  /// It has become no last backward after all: nothing is complete.
  void give_up() noexcept;
  /// Nothing is added to the unit's gradient any more, the driver says. Once a backward. It is not
  /// believed of a unit of which it was wrong before.
  void complete(std::uint32_t unit);
  bool is_complete(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < complete_.size(), unit, complete_.size());
    return complete_[unit];
  }
  /// The driver was wrong: something is added to a unit that was complete.
  void added_late(std::uint32_t unit) noexcept { added_late_[unit] = true; }
  /// The next of the units that are expected, if it is complete; each once.
  std::optional<std::uint32_t> next();
  /// Returns the units of `chosen` that were complete in the last backward of the step before, in
  /// that order: the order to expect.
  std::vector<std::uint32_t> as_before(const std::vector<bool>& chosen) const;

 private:
  std::vector<std::uint32_t> expected_;
  std::size_t handed_out_ = 0;  // how many of these were handed out
  std::vector<bool> complete_;  // whether a unit's gradient is complete
  std::vector<bool> added_late_;
  std::vector<std::uint32_t> came_;    // complete, in this order
  std::vector<std::uint32_t> before_;  // order of the step before's last backward
};

}  // namespace artesian::zero3
