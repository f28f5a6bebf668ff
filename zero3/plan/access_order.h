// AccessOrder: the order in which a step uses its units. Training steps repeat, so the order of one
// step predicts the next. Queries take time logarithmic in its length, as a step may have thousands
// of accesses, each with a query.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace artesian::zero3 {

class AccessOrder {
 public:
  using Access = std::vector<std::uint32_t>;  // the units that one stage needs, each once

  static constexpr std::uint64_t never = ~std::uint64_t{0};

  /// Shape: numel: [units], elements of each unit.
  explicit AccessOrder(std::vector<std::uint64_t> numel)
      : numel_(std::move(numel)), uses_(numel_.size()) {}

  /// Adds the next access while recording.
  void record(const Access& access);
  /// Forgets all accesses from `size` on.
  void truncate(std::size_t size);
  std::size_t size() const noexcept { return accesses_.size(); }
  const Access& at(std::size_t index) const noexcept {
    ARTESIAN_CHECK(index < accesses_.size(), index, accesses_.size());
    return accesses_[index];
  }
  static constexpr std::size_t nowhere = ~std::size_t{0};
  /// Returns the index of the first of the accesses [first, end) that equals `access`; `nowhere` if
  /// none does.
  std::size_t find(const Access& access, std::size_t first, std::size_t end) const noexcept;

  /// Number of accesses from `index` (exclusive) until the unit's next use, continuing at the
  /// step's beginning after its end; `never` if the order does not use the unit. An index of -1 is
  /// before the first access.
  std::uint64_t next_use(std::size_t index, std::uint32_t unit) const noexcept;
  /// Parameter elements touched between access `index` and the unit's next use, both exclusive.
  std::uint64_t reuse_distance(std::size_t index, std::uint32_t unit) const noexcept;

 private:
  const std::vector<std::uint64_t> numel_;  // elements of each unit
  std::vector<Access> accesses_;
  std::vector<std::uint64_t> touched_{
      0};  // elements of all accesses before each access, and the total
  std::vector<std::vector<std::uint64_t>> uses_;  // the accesses that use each unit, ascending
};

}  // namespace artesian::zero3
