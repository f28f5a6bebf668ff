// StepPlan: what one steady training step does, event by event, with the bytes that each moves: the
// answer to "how many bytes per step" before anything runs. Nothing here decides: homes come from
// the Placement, and what is fetched, kept and given up from the Prefetcher itself, run over slots
// that hold nothing (zero3/plan/dry_slots.h). The update that a step leaves to the next one's
// forward is the one that it finds there. Bytes are exact, 4 KiB rounding included, but for what
// depends on data and time: of a spilled table that is looked up every sub-group counts as touched,
// and of its rows one for each token; what a separate device fetches ahead of the next step counts
// in this one; a slot there that is given up before its unit is updated under backward gets no copy
// of that. With several ranks the bytes are those of one, which gets its share of what the others
// add to a unit's gradient as often as something is added.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "zero3/plan/placement.h"
#include "zero3/plan/prefetcher.h"
#include "zero3/plan/step_accesses.h"

namespace artesian::zero3 {

struct Moved {  // bytes
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_write = 0;
  std::uint64_t to_device = 0;  // host to device; on a CPU what is cast or copied, aliased is 0
  std::uint64_t to_host = 0;
  std::uint64_t bus = 0;  // what one rank receives from the others

  Moved& operator+=(const Moved& other) noexcept;
  bool operator==(const Moved&) const = default;
};

struct MovedByKind {
  Moved param;
  Moved grad;
  Moved optimizer;
  Moved input;  // of stages, kept for backward (kept_inputs.h)

  MovedByKind& operator+=(const MovedByKind& other) noexcept;
  Moved total() const noexcept;
  bool operator==(const MovedByKind&) const = default;
};

/// Moves of the optimizer's pass over one unit. `live`: its slot holds parameters, which follow.
MovedByKind update_moves(const Placement& plan, std::uint32_t unit, bool live);

struct StepEvent {
  enum class Kind : std::uint8_t {
    Fetch,      // the transfers of `unit` start
    Await,      // they are waited for, and what came is made ready
    Compute,    // `stage`, in `direction`
    Input,      // of `stage`: after forward those of the group go to a tier; they come for backward
    Gradients,  // `numel` elements of `unit` join its accumulator
    Rows,       // those of looked-up rows, after the last micro-batch
    Zero,       // `unit` got no gradient: one of zeros
    Norm,       // of `unit`'s accumulated gradient
    Update,     // the optimizer, all sub-groups of `unit`: of the step before, its slot is filled;
                // or, `under_backward`, of this step
  };
  Kind kind = Kind::Compute;
  std::uint32_t unit = 0;
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  bool ahead = false;               // a Fetch that was not waited for
  std::uint32_t updated_ahead = 0;  // of Compute: units below may be updated in the meantime
  bool under_backward = false;      // an Update that may begin here and ends with the step
  std::uint64_t micro_batches = 1;  // of Compute and Gradients: so many, one after the other
  std::uint64_t numel = 0;          // of gradients, of one micro-batch
  bool sets = false;                // of Gradients: the first of the step, added to nothing
  MovedByKind moved = {};
};

struct StepPlanRequest {
  const Placement* placement = nullptr;
  const std::vector<StageSpec>* stages = nullptr;
  PrefetchLimits limits;
  std::uint64_t micro_batches = 1;
  std::uint64_t group = 1;         // that many at most run layer by layer
  std::uint64_t tokens = 0;        // of a micro-batch: rows that are looked up
  std::uint64_t lookup_width = 0;  // elements of such a row
  std::uint64_t rows = 0;          // of the step that these stand for, if it has more micro-batches
  /// By unit: it is updated under backward (units_under_backward); none where it is empty.
  std::vector<bool> under_backward{};
  bool speculative = false;  // that may be taken back, but is not
};

struct StepPlan {
  std::vector<StepEvent> events;  // in the order of the engine's thread
  MovedByKind moved;              // of all events
  FetchStatistics fetched;        // elements
};

/// The third step; those after it are alike. Errors: Exhausted, which a Placement rules out.
Result<StepPlan> plan_step(const StepPlanRequest& request);

}  // namespace artesian::zero3
