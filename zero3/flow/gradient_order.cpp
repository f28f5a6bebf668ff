#include "zero3/flow/gradient_order.h"

#include <algorithm>
#include <utility>

namespace artesian::zero3 {

void GradientOrder::begin(std::vector<std::uint32_t> expected) {
  if (!came_.empty()) before_ = std::exchange(came_, {});
  std::fill(complete_.begin(), complete_.end(), false);
  expected_ = std::move(expected);
  handed_out_ = 0;
}

void GradientOrder::give_up() noexcept {
  std::fill(complete_.begin(), complete_.end(), false);
  expected_.clear();
  came_.clear();
  handed_out_ = 0;
}

void GradientOrder::complete(std::uint32_t unit) {
  ARTESIAN_CHECK(!is_complete(unit), unit);
  if (added_late_[unit]) return;
  complete_[unit] = true;
  came_.push_back(unit);
}

std::optional<std::uint32_t> GradientOrder::next() {
  if (handed_out_ == expected_.size() || !complete_[expected_[handed_out_]]) return std::nullopt;
  return expected_[handed_out_++];
}

std::vector<std::uint32_t> GradientOrder::as_before(const std::vector<bool>& chosen) const {
  std::vector<std::uint32_t> units = came_.empty() ? before_ : came_;
  std::erase_if(units, [&](std::uint32_t unit) { return !chosen[unit] || added_late_[unit]; });
  return units;
}

}  // namespace artesian::zero3
