#include "zero3/flow/update_order.h"

#include <algorithm>
#include <utility>

namespace artesian::zero3 {

UpdateOrder::UpdateOrder(const Placement& placement)
    : placement_(placement),
      is_ahead_(placement.layout.units.size(), false),
      is_pending_(placement.layout.units.size(), false) {
  for (std::uint32_t unit = 0; unit < placement.layout.units.size(); ++unit) {
    if (placement.layout.units[unit].trainable) trained_.push_back(unit);
  }
  set_order({});
}

void UpdateOrder::set_order(const std::vector<std::uint32_t>& units) {
  ARTESIAN_CHECK(phase_ == UpdatePhase::Idle);
  const std::vector<std::uint32_t> others = std::exchange(trained_, {});
  turns_.assign(placement_.layout.units.size(), 0);
  const auto append = [&](const std::vector<std::uint32_t>& from) {
    for (const std::uint32_t unit : from) {
      if (!placement_.layout.units[unit].trainable || turns_[unit] != 0) continue;
      trained_.push_back(unit);
      turns_[unit] = trained_.size();
    }
  };
  append(units);
  append(others);
  ARTESIAN_CHECK(trained_.size() == others.size(), trained_.size(), others.size());
}

/// The units in order, without those updated under backward or by a separate device.
std::vector<std::uint32_t> UpdateOrder::left_to_forward() const {
  std::vector<std::uint32_t> units;
  for (const std::uint32_t unit : trained_) {
    if (!is_ahead_[unit] && !placement_.units[unit].updated_on_device()) units.push_back(unit);
  }
  return units;
}

void UpdateOrder::begin_ahead(std::vector<std::uint32_t> units, bool tried) {
  expect(UpdateCall::BeginAhead);
  ARTESIAN_CHECK(!goes_on_reading(units, tried));
  if (tried && !may_try_) units.clear();
  for (const std::uint32_t unit : units) {
    ARTESIAN_CHECK(turn(unit) != 0 && !is_ahead_[unit], unit);  // trainable, and not listed twice
    is_ahead_[unit] = true;
  }
  pass_ = std::move(units);
  ahead_ = pass_.size();
  final_ = updated_ = 0;
  if (reads_ahead()) {
    const std::vector<std::uint32_t> rest = left_to_forward();
    pass_.insert(pass_.end(), rest.begin(), rest.end());
  }
  phase_ = pass_.empty() ? UpdatePhase::Idle
           : ahead_ == 0 ? UpdatePhase::Reading
           : tried       ? UpdatePhase::Tried
                         : UpdatePhase::Begun;
}

void UpdateOrder::gradient_is_final(std::uint32_t unit) noexcept {
  expect(UpdateCall::Final);
  ARTESIAN_CHECK(final_ < ahead_ && pass_[final_] == unit, unit, final_);
  ++final_;
}

void UpdateOrder::roll_back() noexcept {
  expect(UpdateCall::RollBack);
  ARTESIAN_CHECK(updated_ <= final_ && final_ <= ahead_, updated_, final_, ahead_);
  end_pass();
}

void UpdateOrder::stop_reading() noexcept {
  expect(UpdateCall::StopReading);
  end_pass();
}

void UpdateOrder::end_pass() noexcept {
  pass_.clear();
  ahead_ = final_ = updated_ = 0;
  is_ahead_.assign(is_ahead_.size(), false);
  phase_ = UpdatePhase::Idle;
}

bool UpdateOrder::begin_deferred() {
  expect(UpdateCall::BeginDeferred);
  ARTESIAN_CHECK(updated_ == ahead_ && final_ == ahead_, updated_, final_, ahead_);
  std::vector<std::uint32_t> units = left_to_forward();
  for (const std::uint32_t unit : units) is_pending_[unit] = true;
  const bool goes_on = some_left();
  ARTESIAN_CHECK(!goes_on || left().size() == units.size(), left().size(), units.size());
  if (!goes_on) {
    end_pass();
    pass_ = std::move(units);
  }
  is_ahead_.assign(is_ahead_.size(), false);
  phase_ = UpdatePhase::Deferred;
  return goes_on;
}

void UpdateOrder::update_next() noexcept {
  expect(UpdateCall::Update);
  ARTESIAN_CHECK(phase_ == UpdatePhase::Deferred || updated_ < final_, updated_, final_);
  is_pending_[next()] = false;
  ++updated_;
}

void UpdateOrder::finish() noexcept {
  expect(UpdateCall::Finish);
  ARTESIAN_CHECK(!some_left(), updated_, pass_.size());
  end_pass();
}

}  // namespace artesian::zero3
