// GradientAdditions: decides what each addition does to a step's gradients. The first addition to a
// parameter sets its elements, later ones add to them, and elements without an addition become zero
// at the end of the step. Additions to spilled units are made in a buffer in host memory; this
// class decides which sub-groups enter it and leave it. The first time in a step all sub-groups of
// the unit enter as zeros, without a read; later, only those that receive an addition.
// Pure: step/gradients plays it, and so does the plan's rehearsal.
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

  /// Begins a step: there is no addition yet, and the buffer is empty.
  void begin_step();
  /// True if the parameter's gradient has had an addition in this step.
  bool reached(std::uint32_t parameter) const noexcept {
    ARTESIAN_CHECK(parameter < reached_.size(), parameter, reached_.size());
    return reached_[parameter];
  }
  /// True if the next addition to the parameter sets its elements.
  bool sets(std::uint32_t parameter) const noexcept { return !set_[parameter]; }
  /// True if a separate device may sum the parameter's gradients of several micro-batches, run
  /// layer by layer, and send the sum to the host, where it sets the elements.
  bool sums_on_device(std::uint32_t parameter) const noexcept {
    return !reached(parameter) && plan_.sums_on_device(plan_.layout.places[parameter].unit);
  }
  /// Number of additions to the accumulator for this many micro-batches, run layer by layer.
  std::uint64_t additions(std::uint32_t parameter, std::uint64_t micro_batches) const noexcept {
    return sums_on_device(parameter) ? 1 : micro_batches;
  }
  /// Records an addition to all elements of the parameter.
  void added(std::uint32_t parameter) noexcept { reached_[parameter] = set_[parameter] = true; }
  /// Records an addition to rows of the parameter, all of whose elements are set.
  void added_rows(std::uint32_t parameter) noexcept { reached_[parameter] = true; }
  /// Lets the next addition to the parameter replace its gradient.
  void replace(std::uint32_t parameter) noexcept { set_[parameter] = false; }

  struct Zeros {
    bool in_buffer = false;                // a spilled unit must enter() the buffer, as zeros
    std::vector<std::uint32_t> in_memory;  // parameters whose accumulators become zero
  };
  /// Makes the unit's elements without an addition zero. Returns what that takes.
  Zeros zero_rest(std::uint32_t unit);
  /// Undoes zero_rest(): the next addition to these elements sets them.
  void undo_zeros(std::uint32_t unit) noexcept;
  /// True if all elements of the unit are set in this step.
  bool is_whole(std::uint32_t unit) const noexcept;

  struct Entry {
    bool as_zeros = false;            // the whole unit enters as zeros
    std::vector<std::uint64_t> read;  // sub-groups to read
  };
  /// Called before these pieces are added to a spilled unit; returns what enters the buffer. Each
  /// piece has `first` and `count`, in elements of this rank's share.
  template <typename Pieces>
  Entry enter(std::uint32_t unit, const Pieces& pieces) {
    Entry entry{.as_zeros = begin(unit), .read = {}};
    if (entry.as_zeros) return entry;
    for (const auto& piece : pieces) touch(unit, piece.first, piece.count, entry.read);
    return entry;
  }
  /// Called when the unit leaves the buffer; returns the sub-groups to write.
  std::vector<std::uint64_t> leave(std::uint32_t unit);

 private:
  bool spilled(std::uint32_t unit) const noexcept {
    return plan_.units[unit].grad == tiering::Tier::Nvme;
  }
  bool begin(std::uint32_t unit);
  void touch(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
             std::vector<std::uint64_t>& missing);

  const Placement& plan_;
  std::vector<bool> reached_;             // by parameter: it has had an addition
  std::vector<bool> set_;                 // by parameter: its elements are set
  std::vector<bool> begun_;               // by spilled unit: it has entered the buffer
  std::vector<std::vector<bool>> there_;  // by unit and sub-group: it is in the buffer
};

}  // namespace artesian::zero3
