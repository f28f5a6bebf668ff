// Rehearsal: runs training steps over slots that hold nothing (zero3/plan/dry_slots.h), an update
// over times (zero3/plan/dry_update.h) and a clock, in the order in which the engine runs them: the
// orders of flow/ and tiering/ring_order.h and the Prefetcher itself. So bytes, and seconds at
// given rates, are known before anything runs.
//
// Bytes are exact, 4 KiB rounding included, but for what depends on data and time: of a spilled
// table that is looked up every sub-group counts as touched, and of its rows one for each token;
// what a separate device fetches ahead of the next step counts in this one; a slot there that is
// given up before its unit is updated under backward gets no copy of that; and of an update that is
// rolled back, all that could be made counts as made. With several ranks the bytes are those of
// one, which gets its share of what the others add to a unit's gradient as often as something is
// added.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "zero3/plan/placement.h"
#include "zero3/plan/prefetcher.h"
#include "zero3/plan/step_timing.h"

namespace artesian::zero3 {

struct StepPlanRequest {
  const Placement* placement = nullptr;
  const std::vector<StageSpec>* stages = nullptr;
  PrefetchLimits limits;
  std::uint64_t micro_batches = 1;
  std::uint64_t group = 1;         // the most micro-batches that run layer by layer
  std::uint64_t tokens = 0;        // tokens of a micro-batch, for looked-up rows
  std::uint64_t lookup_width = 0;  // elements of such a row
  std::uint64_t rows = 0;          // micro-batches whose rows are added, if the real step has more
  /// By unit: whether it is updated under backward (units_under_backward); empty: none is.
  std::vector<bool> under_backward{};
  bool speculative = false;  // those updates may be rolled back
  /// Every so many steps the norm is clipped, and updates under backward are rolled back. The step
  /// after a clipped one tries none. 0: no step is clipped.
  std::uint64_t clipped_every = 0;
  /// Called with each event before it counts; may change what it moves. May be null.
  std::function<void(StepEvent& event)> see{};
};

struct StepPlan {
  std::vector<StepEvent> events;  // events of one step, in the order of the engine's thread
  MovedByKind moved;              // bytes of all events; the mean if some steps are clipped
  FetchStatistics fetched;        // elements
};

/// A steady step. Errors: Exhausted, which a Placement rules out.
Result<StepPlan> plan_step(const StepPlanRequest& request);

struct StepTimeRequest {
  StepPlanRequest step;
  StepTiming timing;
};
struct TimedStep {
  MovedByKind moved;
  StepTime time;
};

/// The same, and how long it takes. Errors: as plan_step.
Result<TimedStep> simulate_step(const StepTimeRequest& request);

}  // namespace artesian::zero3
