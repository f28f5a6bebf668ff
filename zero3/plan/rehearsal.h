// Rehearsal: simulates training steps over slots that hold nothing (zero3/plan/dry_slots.h), with a
// simulated update (zero3/plan/dry_update.h) and a simulated clock. The order of operations is the
// engine's own: flow/, tiering/ring_order.h and the Prefetcher itself. So the bytes of a step, and
// its seconds at given rates, are known before anything runs.
//
// Bytes are exact, 4 KiB rounding included, except where they depend on data and time. For a
// looked-up table whose gradients spill, every sub-group counts as used, and one row per token.
// Prefetches of a separate device for the next step count in this step. A slot on such a device
// that is evicted before its unit is updated under backward gets no copy of the update. For an
// update that is rolled back, everything that could have been done counts as done. With several
// ranks the bytes are those of one rank, which receives its share of the others' gradients each
// time a gradient is added.
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
  std::uint64_t tokens = 0;        // tokens of a micro-batch, for rows that are looked up
  std::uint64_t lookup_width = 0;  // elements of such a row
  std::uint64_t rows = 0;          // micro-batches whose rows are added, if the real step has more
  /// For each unit, whether it is updated under backward (units_under_backward); empty: none is.
  std::vector<bool> under_backward{};
  bool speculative = false;  // updates under backward may be rolled back
  /// One in this many steps is clipped, and its updates under backward are rolled back. The step
  /// after a clipped one makes no speculative update. 0: no step is clipped.
  std::uint64_t clipped_every = 0;
  /// Called with each event before it is counted; may change its bytes. May be null.
  std::function<void(StepEvent& event)> see{};
};

struct StepPlan {
  std::vector<StepEvent> events;  // events of one step, in the order of the engine's thread
  MovedByKind moved;              // bytes of all events; the mean if some steps are clipped
  FetchStatistics fetched;        // elements
};

/// Plans a steady step. Errors: Exhausted, which a Placement rules out.
Result<StepPlan> plan_step(const StepPlanRequest& request);

struct StepTimeRequest {
  StepPlanRequest step;
  StepTiming timing;
};
struct TimedStep {
  MovedByKind moved;
  StepTime time;
};

/// As plan_step, with the time that the step takes. Errors: as plan_step.
Result<TimedStep> simulate_step(const StepTimeRequest& request);

}  // namespace artesian::zero3
