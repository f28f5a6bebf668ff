// EvaluationPlan: the bytes that one of many successive evaluations moves (for instance one per
// generated token), computed before anything runs. As in rehearsal.h, the Prefetcher itself decides
// what is fetched and kept, run over slots that hold nothing.
#pragma once

#include <vector>

#include "base/result.h"
#include "zero3/plan/moves.h"
#include "zero3/plan/placement.h"
#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {

/// Bytes of parameters that a pass over all stages, in order, fetches once all passes are alike.
/// Errors: Exhausted, which a Placement rules out.
Result<Moved> plan_evaluation(const Placement& placement, const std::vector<StageSpec>& stages,
                              const PrefetchLimits& limits);

}  // namespace artesian::zero3
