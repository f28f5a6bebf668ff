// NextUses: of the units that are fetched and given up, which can be given up, which are absent,
// and when each is needed next. Answers in logarithmic time what would otherwise be a scan of all
// units at each access: who is needed last, what is missing first, how much could be given up.
//
// Time is an ordinal: accesses are counted from 1 and never start anew. All next uses of one moment
// lie within one round of the trace, so a use's ordinal modulo the round is its slot. Nothing is
// allocated after `reset`, except for a longer round. Knows nothing of transfers.
#pragma once

#include <cstdint>
#include <vector>

namespace artesian::zero3 {

enum class Holding : std::uint8_t {
  Ignored,   // in use, or a unit that is never moved
  Absent,    // would have to be fetched
  Evictable  // could be given up
};

class NextUses {
 public:
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  /// Shape: numel: [units], elements of each unit. All are Ignored.
  explicit NextUses(const std::vector<std::uint64_t>& numel);

  /// Makes all units Ignored. `round`: accesses of the trace; the ordinals of next uses that are
  /// set from now on lie within `round` of each other.
  void reset(std::uint64_t round);
  /// `ordinal`: of the unit's next use, or `never`.
  void set(std::uint32_t unit, Holding holding, std::uint64_t ordinal) noexcept;

  struct Use {
    std::uint32_t unit = 0;
    std::uint64_t ordinal = 0;  // 0: there is no such unit
  };
  /// The Evictable unit that is needed last; the first of those that are never needed, or together.
  Use farthest() const noexcept { return evictable_[1]; }
  /// When the first of the Absent units is needed: an ordinal, or `never`.
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
  // Tournaments: node i is the winner of nodes 2i and 2i + 1, the units are the last `leaves_`.
  std::vector<std::uint64_t> absent_;   // the least ordinal
  std::vector<Use> evictable_;          // the greatest ordinal; of equal ones, the first unit
  std::vector<std::uint64_t> by_slot_;  // Fenwick tree: elements of Evictable units by slot
  std::uint64_t evictable_elements_ = 0;
};

}  // namespace artesian::zero3
