// NextUses: when each unit that can be fetched and evicted is needed next, and which units are
// evictable or absent. In logarithmic time, instead of scanning all units at each access, it
// answers: which unit is needed last, when is the first absent unit needed, how much could be
// evicted.
//
// Time is an ordinal: accesses are counted from 1, without restarting. At any moment all next uses
// lie within one round of the trace, so a use's ordinal modulo the round is its slot. Nothing is
// allocated after `reset`, except for a longer round. Transfers are not known here.
#pragma once

#include <cstdint>
#include <vector>

namespace artesian::zero3 {

enum class Holding : std::uint8_t {
  Ignored,   // in use, or never moved
  Absent,    // must be fetched before use
  Evictable  // may be evicted
};

class NextUses {
 public:
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  /// Shape: numel: [units], elements of each unit. All are Ignored.
  explicit NextUses(const std::vector<std::uint64_t>& numel);

  /// Makes all units Ignored. `round`: number of accesses in the trace; from now on the ordinals of
  /// next uses lie within `round` of each other.
  void reset(std::uint64_t round);
  /// `ordinal`: of the unit's next use, or `never`.
  void set(std::uint32_t unit, Holding holding, std::uint64_t ordinal) noexcept;

  struct Use {
    std::uint32_t unit = 0;
    std::uint64_t ordinal = 0;  // 0 if there is no such unit
  };
  /// The Evictable unit that is needed last; among equals (or units never needed), the first.
  Use farthest() const noexcept { return evictable_[1]; }
  /// When the first Absent unit is needed: an ordinal, or `never`.
  std::uint64_t first_absent() const noexcept { return absent_[1]; }
  /// Elements of Evictable units that are needed after `ordinal`. `now`: the ordinal of the last
  /// access, at most `ordinal` and at most a round before it.
  std::uint64_t evictable_after(std::uint64_t now, std::uint64_t ordinal) const noexcept;

 private:
  void set_absent(std::uint32_t unit, std::uint64_t ordinal) noexcept;
  void set_evictable(std::uint32_t unit, std::uint64_t ordinal) noexcept;
  void add(std::uint64_t ordinal, std::uint64_t elements) noexcept;
  std::uint64_t before_slot(std::uint64_t slot) const noexcept;

  struct Entry {
    Holding holding = Holding::Ignored;
    std::uint64_t ordinal = 0;
  };
  std::vector<std::uint64_t> numel_;  // elements of each unit
  std::vector<Entry> entries_;        // one for each unit
  std::size_t leaves_ = 0;
  // Tournament trees: node i holds the winner of nodes 2i and 2i + 1; the last `leaves_` nodes are
  // the units.
  std::vector<std::uint64_t> absent_;   // the least ordinal
  std::vector<Use> evictable_;          // the greatest ordinal; among equals, the first unit
  std::vector<std::uint64_t> by_slot_;  // Fenwick tree: elements of Evictable units by slot
  std::uint64_t evictable_elements_ = 0;
};

}  // namespace artesian::zero3
