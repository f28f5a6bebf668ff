// Trace: the order in which a step touches its units. A training step repeats, so the trace of one
// step is the future of the next.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace artesian::zero3 {

class Trace {
 public:
  using Access = std::vector<std::uint32_t>;  // the units that one stage needs

  static constexpr std::uint64_t never = ~std::uint64_t{0};

  /// Adds the next access while recording.
  void record(const Access& access) { accesses_.push_back(access); }
  /// Forgets all accesses from `size` on.
  void truncate(std::size_t size) {
    if (size < accesses_.size()) accesses_.resize(size);
  }
  std::size_t size() const noexcept { return accesses_.size(); }
  const Access& at(std::size_t index) const noexcept { return accesses_[index]; }
  bool matches(std::size_t index, const Access& access) const noexcept {
    return index < accesses_.size() && accesses_[index] == access;
  }

  /// Number of accesses from `index` (exclusive) until the unit's next use, going round the end of
  /// the step; `never` if the trace does not use it.
  std::uint64_t next_use(std::size_t index, std::uint32_t unit) const noexcept;
  /// Parameter elements touched between access `index` and the unit's next use, both exclusive.
  /// Shape: numel: [units], elements of each unit.
  std::uint64_t reuse_distance(std::size_t index, std::uint32_t unit,
                               const std::vector<std::uint64_t>& numel) const noexcept;

 private:
  std::vector<Access> accesses_;
};

}  // namespace artesian::zero3
