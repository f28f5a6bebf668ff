// GradientAdditions: what additions do to a step's gradients. The first to a parameter sets its
// elements, later ones add to them, and what nothing was added to becomes zero at the end. Of units
// that spill it decides which sub-groups enter the buffer in host memory, where additions are made,
// and leave it: the first time in a step all enter, as zeros, and none is read; later those that
// something is added to. Pure: played by step/gradients and by the plan's rehearsal.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

class GradientAdditions {
 public:
  /// The placement must outlive it.
  explicit GradientAdditions(const Placement& placement) : plan_(placement) { begin_step(); }

  /// A step begins: no gradient has anything of it, and the buffer is empty.
  void begin_step();
  /// True if something was added to the parameter's gradient in this step.
  bool reached(std::uint32_t parameter) const noexcept {
    ARTESIAN_CHECK(parameter < reached_.size(), parameter, reached_.size());
    return reached_[parameter];
  }
  /// True if what is added next to the parameter sets its elements.
  bool sets(std::uint32_t parameter) const noexcept { return !set_[parameter]; }
  /// True if a separate device may sum what several micro-batches, run layer by layer, add to the
  /// parameter, and send the host the sum, which sets its elements.
  bool sums_on_device(std::uint32_t parameter) const noexcept {
    return !reached(parameter) && plan_.sums_on_device(plan_.layout.places[parameter].unit);
  }
  /// How often this many micro-batches, run layer by layer, are added to the accumulator.
  std::uint64_t additions(std::uint32_t parameter, std::uint64_t micro_batches) const noexcept {
    return sums_on_device(parameter) ? 1 : micro_batches;
  }
  /// Something was added to all elements of the parameter.
  void added(std::uint32_t parameter) noexcept { reached_[parameter] = set_[parameter] = true; }
  /// Rows are added to the parameter, whose other elements are set.
  void added_rows(std::uint32_t parameter) noexcept { reached_[parameter] = true; }
  /// What is added next to the parameter replaces what it has.
  void replace(std::uint32_t parameter) noexcept { set_[parameter] = false; }

  struct Zeros {
    bool in_buffer = false;                // a spilled unit is to enter(), as zeros
    std::vector<std::uint32_t> in_memory;  // parameters whose accumulators become zero
  };
  /// The unit's elements that nothing was added to become zero.
  Zeros zero_rest(std::uint32_t unit);
  /// They may be added to again, as before zero_rest().
  void undo_zeros(std::uint32_t unit) noexcept;
  /// True if all elements of the unit are of this step.
  bool is_whole(std::uint32_t unit) const noexcept;

  struct Entry {
    bool as_zeros = false;            // all of the unit
    std::vector<std::uint64_t> read;  // sub-groups that are read
  };
  /// What of a spilled unit enters the buffer before these pieces are added, each with `first` and
  /// `count` in elements of this rank's share.
  template <typename Pieces>
  Entry enter(std::uint32_t unit, const Pieces& pieces) {
    Entry entry{.as_zeros = begin(unit), .read = {}};
    if (entry.as_zeros) return entry;
    for (const auto& piece : pieces) touch(unit, piece.first, piece.count, entry.read);
    return entry;
  }
  /// The unit leaves the buffer: returns the sub-groups that are written.
  std::vector<std::uint64_t> leave(std::uint32_t unit);

 private:
  bool spilled(std::uint32_t unit) const noexcept {
    return plan_.units[unit].grad == tiering::Tier::Nvme;
  }
  bool begin(std::uint32_t unit);
  void touch(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
             std::vector<std::uint64_t>& missing);

  const Placement& plan_;
  std::vector<bool> reached_;             // by parameter: something was added to it
  std::vector<bool> set_;                 // by parameter: its elements are of this step
  std::vector<bool> begun_;               // by unit that spills: its elements are
  std::vector<std::vector<bool>> there_;  // by unit and sub-group: it is in the buffer
};

}  // namespace artesian::zero3
