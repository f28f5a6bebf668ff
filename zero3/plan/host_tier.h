// The host tier: the last pass of a placement (draft.h). Its budget holds first the homes that the
// configuration asks for and the gradients, then the buffers, then residents: state that would
// otherwise be on NVMe.
#pragma once

#include <cstdint>
#include <optional>

#include "zero3/plan/draft.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

struct HostTier {
  Draft draft;
  /// The draft has no residents and is no placement, as it could not have cost less than `to_beat`.
  bool beaten = false;
  /// The largest host budget with a smaller ring, if the memory saved might be worth more for
  /// residents.
  std::optional<std::uint64_t> budget_of_a_smaller_ring = std::nullopt;
};

/// `draft`: the result of place_in_device(). With `to_beat`, a plan that cannot cost less is not
/// made. Errors: Exhausted.
Result<HostTier> place_in_host(const PlacementRequest& request, Draft draft,
                               std::optional<Cost> to_beat = std::nullopt);

/// Without NVMe, up to `host_room` bytes of inputs do not count as activations.
KeptInputs inputs_within(const PlacementRequest& request, std::uint64_t host_room);

}  // namespace artesian::zero3
