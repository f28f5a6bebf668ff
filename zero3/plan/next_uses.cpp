#include "zero3/plan/next_uses.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace artesian::zero3 {

NextUses::NextUses(const std::vector<std::uint64_t>& numel)
    : numel_(numel), entries_(numel.size()), leaves_(std::bit_ceil(numel.size())) {
  reset(0);
}

void NextUses::reset(std::uint64_t round) {
  std::fill(entries_.begin(), entries_.end(), Entry{});
  absent_.assign(2 * leaves_, never);
  evictable_.assign(2 * leaves_, Use{});
  by_slot_.assign(static_cast<std::size_t>(round), 0);
  evictable_elements_ = 0;
}

void NextUses::set(std::uint32_t unit, Holding holding, std::uint64_t ordinal) noexcept {
  ARTESIAN_CHECK(unit < entries_.size(), unit, entries_.size());
  Entry& entry = entries_[unit];
  if (entry.holding == Holding::Evictable) add(entry.ordinal, 0 - numel_[unit]);
  if (holding == Holding::Evictable) add(ordinal, numel_[unit]);
  set_absent(unit, holding == Holding::Absent ? ordinal : never);
  set_evictable(unit, holding == Holding::Evictable ? ordinal : 0);
  entry = {holding, ordinal};
  ARTESIAN_CHECK(evictable_[1].ordinal != 0 || evictable_elements_ == 0, unit, evictable_elements_);
}

void NextUses::set_absent(std::uint32_t unit, std::uint64_t ordinal) noexcept {
  std::size_t node = leaves_ + unit;
  absent_[node] = ordinal;
  while ((node /= 2) != 0) absent_[node] = std::min(absent_[2 * node], absent_[2 * node + 1]);
}

void NextUses::set_evictable(std::uint32_t unit, std::uint64_t ordinal) noexcept {
  std::size_t node = leaves_ + unit;
  evictable_[node] = {unit, ordinal};
  while ((node /= 2) != 0) {
    const Use& left = evictable_[2 * node];
    const Use& right = evictable_[2 * node + 1];
    evictable_[node] = right.ordinal > left.ordinal ? right : left;
  }
}

/// Sums wrap around modulo 2^64, so adding 0 - x subtracts x.
void NextUses::add(std::uint64_t ordinal, std::uint64_t elements) noexcept {
  evictable_elements_ += elements;
  if (ordinal == never) return;
  ARTESIAN_CHECK(!by_slot_.empty());
  for (std::size_t slot = ordinal % by_slot_.size() + 1; slot <= by_slot_.size();
       slot += slot & (0 - slot)) {
    by_slot_[slot - 1] += elements;
  }
}

/// Elements in the slots [0, slot).
std::uint64_t NextUses::before_slot(std::uint64_t slot) const noexcept {
  ARTESIAN_CHECK(slot <= by_slot_.size(), slot, by_slot_.size());
  std::uint64_t sum = 0;
  for (auto end = static_cast<std::size_t>(slot); end != 0; end -= end & (0 - end)) {
    sum += by_slot_[end - 1];
  }
  return sum;
}

std::uint64_t NextUses::evictable_after(std::uint64_t now, std::uint64_t ordinal) const noexcept {
  const std::uint64_t round = by_slot_.size();
  ARTESIAN_CHECK(now <= ordinal && ordinal - now <= round, now, ordinal, round);
  if (round == 0) return evictable_elements_;
  if (ordinal - now == round) {  // all except those that are never needed
    return evictable_elements_ - before_slot(round);
  }
  const std::uint64_t begin = (now + 1) % round;
  const std::uint64_t end = (ordinal + 1) % round;
  std::uint64_t sooner = before_slot(end) - before_slot(begin);  // those needed in (now, ordinal]
  if (end < begin) sooner += before_slot(round);
  ARTESIAN_CHECK(sooner <= evictable_elements_, sooner, evictable_elements_);
  return evictable_elements_ - sooner;
}

}  // namespace artesian::zero3
