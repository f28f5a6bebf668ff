// Prefetcher: records a step's accesses once, and from then on knows the future: it fetches units
// ahead of their use, keeps those that are used again soon, and gives up the one whose next use is
// farthest when a demand needs room. Limits bound look-ahead and retention only, never a demand:
//   prefetch_bucket_size: elements fetched ahead and not yet used (one unit may overshoot);
//   max_live_parameters: gathered elements beyond which nothing is fetched ahead or kept;
//   max_reuse_distance: elements touched until a unit's next use beyond which it is not kept.
//
// Note [Departures]: a step need not be the one that was recorded. LayerDrop and experts leave
// units out, a branch brings others, the last step of an epoch has fewer micro-batches. So the
// order is followed, not obeyed:
//   - an access that is among the next `near` of the order skips those before it;
//   - one that is not is a stray: demanded, and the order waits where it is;
//   - after `strays_max` strays in a row the round is lost: nothing is looked ahead, as when it is
//     recorded.
// What was fetched ahead for an access that is skipped stays by the rule by which used units do.
// At its end the round changes the order. A lost one, or one of which less than a quarter was in
// the order, becomes the order. Else strays are put in where they came, and what has not been met
// in `forgotten_after` rounds in a row is left out. A round that follows the order and ends early
// cuts it there; but of a step that is said to have fewer micro-batches (StepEnd::Early) the rest
// stays, as what is skipped does.
//
// Chosen by tests/zero3/plan/prefetcher_departures_test.cpp, which prints what they give. Of 26
// layers left out at random, 0.1 and 0.2 cost no demands, 0.5 costs 5 to 11% of the accesses, and
// steps fetch 1 to 20% more than the full one. Of 32 experts a layer, one in four met, 31% are
// demands. `near` of 16 makes that 68%, as gaps between experts are longer. To forget after 4
// rounds costs layers 34% at 0.5, and saves experts a third of fetches that nobody uses. Half in
// place of a quarter has the order begin anew time and again: 37% and 71%.
//
// Evaluations are a course of their own: they may come at any place of a step and leave the step's
// future as it was. A pass is one round, a token of generate() for instance; once passes follow
// each other, the end of one looks ahead to the beginning of the next.
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

/// Elements of parameters by how an access found them. Persistent units are not counted.
struct FetchStatistics {
  std::uint64_t demand = 0;      // not there and not on their way
  std::uint64_t prefetched = 0;  // fetched ahead
  std::uint64_t reused = 0;      // kept from an earlier access
  std::uint64_t live_parameters_max = 0;
};

enum class Course : std::uint8_t { Steps, Evaluations };
/// Early: the step had fewer micro-batches than steps have otherwise.
enum class StepEnd : std::uint8_t { Whole, Early };

class Prefetcher {
 public:
  static constexpr std::size_t near = 64;               // accesses: Note [Departures]
  static constexpr std::size_t strays_max = 16;         // strays in a row that lose the round
  static constexpr std::uint32_t forgotten_after = 16;  // rounds

  Prefetcher(const Layout& layout, tiering::UnitSlots& residency, const PrefetchLimits& limits);

  /// Gathers the persistent units, once, or again after drop_all(). Errors: Io, Corrupt, Exhausted.
  Result<void> gather_persistent() noexcept;
  /// Begins a step anew, in the course of steps.
  void begin_step() noexcept;
  /// From here on, accesses are those of `course`: followed, recorded and counted apart from the
  /// other's. Of evaluations each call begins a pass. Steps go on where they were, and what comes
  /// next there is fetched ahead; nothing happens if they are under way. Errors: Io, Timeout.
  Result<void> begin_pass(Course course) noexcept;
  /// Accesses entered in this round; rewind goes back to that place, as if what followed had not
  /// been.
  std::size_t position() const noexcept { return course_->round.size(); }
  void rewind(std::size_t position) noexcept;
  /// Gathers and pins the units of one stage, then fetches ahead. Errors: Io, Corrupt, Timeout;
  /// Exhausted if the units cannot fit even alone (the placement rules that out).
  Result<void> enter(const AccessOrder::Access& units) noexcept;
  /// Unpins them; each is kept or dropped by its reuse distance.
  Result<void> leave(const AccessOrder::Access& units) noexcept;
  /// The units of the access that comes next, if the order is followed; null if none is known.
  const AccessOrder::Access* next_access() const noexcept;
  /// Pins a unit that is there or on its way, for who works on its slot before it is entered; and
  /// gives it back before anything is entered. Errors: as enter.
  Result<void> hold(std::uint32_t unit) noexcept;
  Result<void> release(std::uint32_t unit) noexcept;
  /// Learns from the round, and stops fetching.
  Result<void> end_step(StepEnd end = StepEnd::Whole) noexcept;
  /// Cancels fetches and waits for them: afterwards no unit is Fetching.
  Result<void> stop_fetching() noexcept;
  /// First byte of an entered unit's parameters.
  std::byte* data(std::uint32_t unit) noexcept { return residency_.data(unit); }
  /// Between steps, when nothing is to change the parameters any more: fetches ahead what the next
  /// step begins with. Errors: Io, Timeout.
  Result<void> look_ahead_to_next_step() noexcept;
  /// Between steps, before all homes change: evicts everything, also the persistent units. Call
  /// gather_persistent() next. Errors: Io, Timeout.
  Result<void> drop_all() noexcept;
  /// Between passes, after a unit's home has changed: evicts the unit, and gathers it anew if it is
  /// persistent. Errors: Io, Corrupt, Timeout.
  Result<void> forget(std::uint32_t unit) noexcept;
  /// The end of it all: drops everything.
  Result<void> clear() noexcept;
  /// True if a slot that the unit has in this step, before it is used for the first time, is its
  /// slot until then, going by the last 16 steps. Where units lie in each other's way, a demand
  /// gives up what was fetched ahead; whatever has filled such a slot has to be read again.
  bool stays(std::uint32_t unit) const noexcept { return doubted_[unit] == 0; }

  /// The statistics of steps; evaluations are not counted.
  const FetchStatistics& statistics() const noexcept { return courses_[0].statistics; }
  /// Resets the counts; live_parameters_max starts at what is live now.
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
    std::size_t match = AccessOrder::nowhere;  // its place in the order
    AccessOrder::Access units{};               // without a match
  };
  struct Future {  // a course's known future, and the place in it
    explicit Future(const std::vector<std::uint64_t>& numel) : order(numel) {}
    AccessOrder order;
    std::vector<Known> known;  // by access of the order
    bool recorded = false;
    bool lost = false;           // this round is lost
    bool repeats = false;        // a pass is followed by the next
    std::size_t place = 0;       // place in the order: all before it is entered or skipped
    std::vector<Entered> round;  // since its begin
    FetchStatistics statistics;

    bool followed() const noexcept { return recorded && !lost; }
    std::size_t strays_in_a_row() const noexcept;
  };

  Result<void> demand(const AccessOrder::Access& units) noexcept;
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
  Future* course_ = &courses_[0];           // the one under way
  std::size_t passes_ = 0;                  // evaluations since the last access of a step
  NextUses next_uses_;                      // next uses of streamed units in this course
  std::uint64_t accesses_before_ = 0;       // accesses in earlier rounds; time never restarts
  std::vector<Found> found_;                // how each unit's next access will be counted
  std::vector<bool> entering_;              // whether a unit belongs to the access being gathered
  std::vector<bool> used_;                  // whether a unit was used in this step
  std::vector<bool> given_up_;              // before it was used
  std::vector<std::uint32_t> doubted_;      // steps for which a unit remains doubted
  std::uint64_t live_ = 0;                  // elements Live or Fetching
  std::uint64_t ahead_ = 0;                 // elements fetched ahead and not yet used
};

}  // namespace artesian::zero3
