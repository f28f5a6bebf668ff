// Prefetcher: records a step's accesses once and uses them to predict later steps. It fetches units
// ahead of their use, keeps those that are used again soon, and, when a demand needs room, evicts
// the unit whose next use is farthest. Limits bound look-ahead and retention only, never a demand:
//   prefetch_bucket_size: elements fetched ahead and not yet used (one unit may overshoot);
//   max_live_parameters: gathered elements beyond which nothing is fetched ahead or kept;
//   max_reuse_distance: elements touched until a unit's next use beyond which it is not kept.
//
// Note [Departures]: a step may differ from the recorded one. LayerDrop and experts skip units,
// branches use others, and the last step of an epoch has fewer micro-batches. So the order is only
// a guide:
//   - an access that is among the next `near` of the order skips those before it;
//   - any other access is a stray: its units are demanded, and the place in the order stays;
//   - after `strays_max` strays in a row the round is lost: nothing is prefetched, as in recording.
// Units prefetched for a skipped access are kept by the same rule as used units. At its end a round
// changes the order. A lost round, or one of which less than a quarter was in the order, becomes
// the new order. Otherwise strays are inserted where they occurred, and accesses not met in
// `forgotten_after` rounds in a row are removed. A round that follows the order and ends early cuts
// the order there, unless the step is known to have fewer micro-batches (StepEnd::Early).
//
// The constants were chosen with tests/zero3/plan/prefetcher_departures_test.cpp, which prints
// their effect. With 26 layers skipped at random, a rate of 0.1 or 0.2 causes no demands, 0.5 makes
// 5 to 11% of the accesses demands, and steps fetch 1 to 20% more than a full step. With 32 experts
// per layer, of which one in four is used, 31% are demands. `near` = 16 would make that 68%, as
// gaps between experts are longer. Forgetting after 4 rounds would cost the layers 34% demands at
// 0.5, and save the experts a third of the unused fetches. A threshold of a half instead of a
// quarter would restart the order again and again: 37% and 71% demands.
//
// Evaluations have an order (course) of their own: they may occur anywhere in a step and do not
// change the step's predicted accesses. Each pass is one round, for instance one token of
// generate(). Once passes follow each other, the end of one prefetches for the beginning of the
// next.
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
  std::uint64_t prefetch_bucket_size = 0;  // elements, as are all limits
  std::uint64_t max_live_parameters = 0;
  std::uint64_t max_reuse_distance = 0;

  static PrefetchLimits of(const ZeroConfig& zero) noexcept;
};

/// Elements of parameters by where an access found them. Persistent units are not counted.
struct FetchStatistics {
  std::uint64_t demand = 0;      // neither present nor being fetched
  std::uint64_t prefetched = 0;  // prefetched
  std::uint64_t reused = 0;      // kept from an earlier access
  std::uint64_t live_parameters_max = 0;
};

enum class Course : std::uint8_t { Steps, Evaluations };
/// Early: the step had fewer micro-batches than other steps.
enum class StepEnd : std::uint8_t { Whole, Early };

class Prefetcher {
 public:
  static constexpr std::size_t near = 64;        // accesses: Note [Departures]
  static constexpr std::size_t strays_max = 16;  // strays in a row after which the round is lost
  static constexpr std::uint32_t forgotten_after = 16;  // rounds

  Prefetcher(const Layout& layout, tiering::UnitSlots& residency, const PrefetchLimits& limits);

  /// Gathers the persistent units, once, or again after drop_all(). Errors: Io, Corrupt, Exhausted.
  Result<void> gather_persistent() noexcept;
  /// Begins a new step, in the course of steps.
  void begin_step() noexcept;
  /// From here on, accesses belong to `course`; each course is followed, recorded and counted
  /// separately. For evaluations each call begins a pass. For steps the call continues where they
  /// were, and prefetches the next accesses there; it does nothing if steps are current already.
  /// Errors: Io, Timeout.
  Result<void> begin_pass(Course course) noexcept;
  /// Accesses entered in this round; rewind goes back to such a position, as if the later accesses
  /// had not happened.
  std::size_t position() const noexcept { return course_->round.size(); }
  void rewind(std::size_t position) noexcept;
  /// Gathers and pins the units of one stage, and fetches ahead. Errors: Io, Corrupt, Timeout;
  /// Exhausted if the units cannot fit even alone (a placement rules that out).
  Result<void> enter(const AccessOrder::Access& units) noexcept;
  /// Unpins them; each is kept or evicted by its reuse distance.
  Result<void> leave(const AccessOrder::Access& units) noexcept;
  /// The units of the next access if the order is being followed; null if it is unknown.
  const AccessOrder::Access* next_access() const noexcept;
  /// Pins a unit that is present or being fetched, for code that works on its slot before it is
  /// entered; unhold() must precede the next enter(). Errors: as enter.
  Result<void> hold(std::uint32_t unit) noexcept;
  Result<void> release(std::uint32_t unit) noexcept;
  /// Learns from the round, and stops prefetching.
  Result<void> end_step(StepEnd end = StepEnd::Whole) noexcept;
  /// Cancels prefetches and waits for them: afterwards no unit is Fetching.
  Result<void> stop_fetching() noexcept;
  /// First byte of an entered unit's parameters.
  std::byte* data(std::uint32_t unit) noexcept { return residency_.data(unit); }
  /// Between steps, once the parameters will not change any more: prefetches for the beginning of
  /// the next step. Errors: Io, Timeout.
  Result<void> look_ahead_to_next_step() noexcept;
  /// Between steps, before all homes change: evicts everything, also the persistent units. Call
  /// gather_persistent() next. Errors: Io, Timeout.
  Result<void> drop_all() noexcept;
  /// Between passes, after a unit's home has changed: evicts the unit, and gathers it again if it
  /// is persistent. Errors: Io, Corrupt, Timeout.
  Result<void> forget(std::uint32_t unit) noexcept;
  /// Drops everything, at the end of the run.
  Result<void> clear() noexcept;
  /// True if, judging by the last 16 steps, a slot that the unit gets before its first use in a
  /// step stays until that use. If memory is fragmented, a demand may evict prefetched units;
  /// whatever filled such a slot must then be read again.
  bool stays(std::uint32_t unit) const noexcept { return doubted_[unit] == 0; }

  /// The statistics of steps; evaluations are not counted.
  const FetchStatistics& statistics() const noexcept { return courses_[0].statistics; }
  /// Resets the counts; live_parameters_max starts at the number live now.
  void reset_statistics() noexcept;

 private:
  enum class Found : std::uint8_t { Demand, Prefetched, Reused };
  struct Known {               // facts about an access of the order
    std::uint32_t missed = 0;  // rounds in a row
  };
  struct Step {
    AccessOrder::Access units;
    Known known;
  };
  struct Entered {                             // an access of this round
    std::size_t match = AccessOrder::nowhere;  // its index in the order
    AccessOrder::Access units{};               // its units, if it has no match
  };
  struct Future {  // a course's predicted accesses, and the place in them
    explicit Future(const std::vector<std::uint64_t>& numel) : order(numel) {}
    AccessOrder order;
    std::vector<Known> known;  // for each access of the order
    bool recorded = false;
    bool lost = false;      // this round is lost
    bool repeats = false;   // passes follow each other
    std::size_t place = 0;  // index in the order: all accesses before it are entered or skipped
    std::vector<Entered> round;  // the accesses since the round began
    FetchStatistics statistics;

    bool followed() const noexcept { return recorded && !lost; }
    std::size_t strays_in_a_row() const noexcept;
  };

  Result<AccessOrder::Access> demand(const AccessOrder::Access& units) noexcept;
  Result<bool> make_room(std::uint64_t next_use_min) noexcept;
  Result<bool> start_with_room(std::uint32_t unit, aio::Priority priority,
                               std::uint64_t next_use_min) noexcept;
  Result<bool> drop_to_max_live(std::uint32_t one_more, std::uint64_t next_use) noexcept;
  Result<void> look_ahead() noexcept;
  Result<void> gather(std::uint32_t persistent) noexcept;
  Result<void> drop(std::uint32_t unit) noexcept;
  void count_live() noexcept;
  Result<void> advance(const AccessOrder::Access& units) noexcept;
  Result<void> skip_to(std::size_t index, const AccessOrder::Access& entered) noexcept;
  bool keeps(std::uint32_t unit) const noexcept;
  void leave_evaluations() noexcept;
  void end_round(StepEnd end = StepEnd::Whole) noexcept;
  bool learn(StepEnd end) noexcept;
  void record(std::vector<Step> accesses) noexcept;
  std::vector<Step> merged() noexcept;
  void learn_what_stays() noexcept;
  void to_begin() noexcept;
  void follow(std::uint32_t unit) noexcept;
  void follow_all() noexcept;
  std::uint64_t now() const noexcept { return accesses_before_ + course_->place; }
  bool in_steps() const noexcept { return course_ == &courses_[0]; }
  bool streamed(std::uint32_t unit) const noexcept { return !layout_.units[unit].persistent; }

  const Layout& layout_;
  tiering::UnitSlots& residency_;
  const PrefetchLimits limits_;
  const std::vector<std::uint64_t> numel_;  // elements of each unit
  std::array<Future, 2> courses_;           // of steps and of evaluations
  Future* course_ = &courses_[0];           // the current one
  std::size_t passes_ = 0;                  // evaluations since the last access of a step
  NextUses next_uses_;                      // next uses of streamed units in this course
  std::uint64_t accesses_before_ = 0;       // accesses in earlier rounds; time never restarts
  std::vector<Found> found_;                // how each unit's next access will be counted
  std::vector<bool> entering_;              // whether a unit belongs to the access being gathered
  std::vector<bool> used_;                  // whether a unit was used in this step
  std::vector<bool> given_up_;              // units evicted in this step before their first use
  std::vector<std::uint32_t>
      doubted_;              // number of steps for which each unit remains doubted (see stays())
  std::uint64_t live_ = 0;   // elements Live or Fetching
  std::uint64_t ahead_ = 0;  // elements fetched ahead and not yet used
};

}  // namespace artesian::zero3
