// Prefetcher: records a step's accesses once, and from then on knows the future: it fetches units
// ahead of their use, keeps those that are used again soon, and gives up the one whose next use is
// farthest when a demand needs room. Limits bound look-ahead and retention only, never a demand:
//   prefetch_bucket_size: elements fetched ahead and not yet used (one unit may overshoot);
//   max_live_parameters: gathered elements beyond which nothing is fetched ahead or kept;
//   max_reuse_distance: elements touched until a unit's next use beyond which it is not kept.
// A step that departs from the trace costs demand fetches and is recorded anew from there; one that
// ends early cuts the trace. Evaluation has a trace of its own: it may come at any place of a step
// and leaves the step's future as it was.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "tiering/unit_slots.h"
#include "zero3/plan/access_order.h"
#include "zero3/plan/layout.h"
#include "zero3/plan/next_uses.h"

namespace artesian::zero3 {

struct ZeroConfig;

struct PrefetchLimits {
  std::uint64_t prefetch_bucket_size = 0;  // elements, as all of these
  std::uint64_t max_live_parameters = 0;
  std::uint64_t max_reuse_distance = 0;

  static PrefetchLimits of(const ZeroConfig& zero) noexcept;
};

/// Elements of parameters by how an access found them. Persistent units are not counted.
struct FetchStatistics {
  std::uint64_t demand = 0;      // not there and not on their way
  std::uint64_t prefetched = 0;  // fetched ahead
  std::uint64_t reused = 0;      // kept from an earlier access
  std::uint64_t live_parameters_max = 0;
};

class Prefetcher {
 public:
  Prefetcher(const Layout& layout, tiering::UnitSlots& residency, const PrefetchLimits& limits);

  /// Gathers the persistent units, once. Errors: Io, Corrupt, Exhausted.
  Result<void> gather_persistent() noexcept;
  void begin_step() noexcept { to_begin(); }
  /// From here to end_evaluation, accesses are those of an evaluation: followed, recorded and
  /// counted apart from the step's.
  void begin_evaluation() noexcept;
  /// Back to the step: fetches ahead what comes next in it. Errors: Io, Timeout.
  Result<void> end_evaluation() noexcept;
  /// Accesses entered so far; rewind goes back to that place, as if what followed had not been.
  std::size_t position() const noexcept { return course_->position; }
  void rewind(std::size_t position) noexcept;
  /// Gathers and pins the units of one stage, then fetches ahead. Errors: Io, Corrupt, Timeout;
  /// Exhausted if the units cannot fit even alone (the placement rules that out).
  Result<void> enter(const Trace::Access& units) noexcept;
  /// Unpins them; each is kept or dropped by its reuse distance.
  Result<void> leave(const Trace::Access& units) noexcept;
  /// Closes the recording, and stops fetching.
  Result<void> end_step() noexcept;
  /// Gives up what is on its way, and waits for that: nothing is Fetching afterwards.
  Result<void> stop_fetching() noexcept;
  /// First byte of an entered unit's parameters.
  std::byte* data(std::uint32_t unit) noexcept { return residency_.data(unit); }
  /// Between steps, when nothing is to change the parameters any more: fetches ahead what the next
  /// step begins with. Errors: Io, Timeout.
  Result<void> look_ahead_to_next_step() noexcept;
  /// Drops everything, also the persistent units.
  Result<void> clear() noexcept;
  /// Whether a slot that the unit has in this step, before it is used for the first time, is its
  /// slot until then, going by the last 16 steps. Where units lie in each other's way, a demand
  /// gives up what was fetched ahead; whatever has filled such a slot has to be read again.
  bool stays(std::uint32_t unit) const noexcept { return doubted_[unit] == 0; }

  /// Of steps; evaluations are not counted.
  const FetchStatistics& statistics() const noexcept { return courses_[0].statistics; }
  /// Starts counting anew; live_parameters_max starts at what is live now.
  void reset_statistics() noexcept;

 private:
  enum class Found : std::uint8_t { Demand, Prefetched, Reused };
  struct Course {  // one mode's known future, and how far it has come
    explicit Course(const std::vector<std::uint64_t>& numel) : trace(numel) {}
    Trace trace;
    bool recording = true;
    std::size_t position = 0;  // accesses entered so far
    FetchStatistics statistics;
  };

  Result<void> demand(const Trace::Access& units) noexcept;
  Result<bool> make_room(std::uint64_t next_use_min) noexcept;
  Result<bool> start_with_room(std::uint32_t unit, aio::Priority priority,
                               std::uint64_t next_use_min) noexcept;
  Result<bool> drop_to_max_live(std::uint32_t one_more, std::uint64_t next_use) noexcept;
  Result<void> look_ahead() noexcept;
  Result<void> drop(std::uint32_t unit) noexcept;
  void count_live() noexcept;
  bool close_recording() noexcept;
  void learn_what_stays() noexcept;
  void to_begin() noexcept;
  void follow(std::uint32_t unit) noexcept;
  void follow_all() noexcept;
  std::uint64_t now() const noexcept { return accesses_before_ + course_->position; }
  bool streamed(std::uint32_t unit) const noexcept { return !layout_.units[unit].persistent; }

  const Layout& layout_;
  tiering::UnitSlots& residency_;
  const PrefetchLimits limits_;
  const std::vector<std::uint64_t> numel_;  // by unit
  std::array<Course, 2> courses_;           // of steps, of evaluations
  Course* course_ = &courses_[0];           // the one under way
  NextUses next_uses_;                  // of the streamed units, in this course, at every moment
  std::uint64_t accesses_before_ = 0;   // of earlier rounds of the trace: time goes on
  std::vector<Found> found_;            // by unit: how its next access will be counted
  std::vector<bool> entering_;          // by unit: of the access that is being gathered
  std::vector<bool> used_;              // by unit: in this step, as what follows
  std::vector<bool> given_up_;          // before it was used
  std::vector<std::uint32_t> doubted_;  // for so many steps more
  std::uint64_t live_ = 0;              // elements Live or Fetching
  std::uint64_t ahead_ = 0;             // elements fetched ahead and not yet used
};

}  // namespace artesian::zero3
