// EvaluationPlan: what one of many evaluations in a row moves, one for each token of a generation
// say, before anything runs. As in rehearsal.h, what is fetched and kept comes from the Prefetcher
// itself, run over slots that hold nothing.
#pragma once

#include <vector>

#include "base/result.h"
#include "zero3/plan/moves.h"
#include "zero3/plan/placement.h"
#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {

/// Bytes of the parameters that a pass over all stages, in their order, fetches, once passes are
/// alike. Errors: Exhausted, which a Placement rules out.
Result<Moved> plan_evaluation(const Placement& placement, const std::vector<StageSpec>& stages,
                              const PrefetchLimits& limits);

}  // namespace artesian::zero3
