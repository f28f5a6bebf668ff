// GradientOrder: which gradients are final in a step's last backward. The driver reports when
// nothing more is added to a unit's gradient. Units that are updated under backward are handed out
// in the order expected when backward began, because the optimizer reads their state ahead in that
// order. A unit that completes early waits for those before it.
//
// A driver that knows the model's stages knows this order. For a hooked model (run by the caller's
// code) the order is unknown: then the units that completed in the previous step's last backward
// are expected, in the same order.
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

  /// Starts a step's last backward; `expected`: units in the order in which they should complete.
  void begin(std::vector<std::uint32_t> expected);
  /// Cancels that: this backward is not the last one, and nothing is complete.
  void give_up() noexcept;
  /// The driver reports that nothing more is added to the unit's gradient; once per backward. The
  /// report is ignored for a unit for which an earlier report was wrong.
  void complete(std::uint32_t unit);
  bool is_complete(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < complete_.size(), unit, complete_.size());
    return complete_[unit];
  }
  /// A report was wrong: a gradient is added to a unit that was reported complete.
  void added_late(std::uint32_t unit) noexcept { added_late_[unit] = true; }
  /// Returns the next expected unit if it is complete; each unit once.
  std::optional<std::uint32_t> next();
  /// Returns the units of `chosen` that completed in the previous step's last backward, in that
  /// order, as the order to expect.
  std::vector<std::uint32_t> as_before(const std::vector<bool>& chosen) const;

 private:
  std::vector<std::uint32_t> expected_;
  std::size_t handed_out_ = 0;  // number of expected units handed out
  std::vector<bool> complete_;  // whether a unit's gradient is complete
  std::vector<bool> added_late_;
  std::vector<std::uint32_t> came_;    // complete units, in the order of completion
  std::vector<std::uint32_t> before_;  // order of completion in the previous step's last backward
};

}  // namespace artesian::zero3
