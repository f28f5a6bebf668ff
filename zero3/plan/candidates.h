// Candidates: what of a plan could be on NVMe or, while memory lasts, in memory. residents.h
// chooses among them.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/make_placement.h"
#include "zero3/plan/residents.h"

namespace artesian::zero3 {

/// The most parameters' elements of a unit that any rank holds.
std::uint64_t elements_of_a_share(const Placement& plan, const Unit& unit) noexcept;

/// All candidates but optimizer state, in the order of the update. `moves`: by unit.
std::vector<Candidate> candidates_but_state(const Placement& plan, const Config& config,
                                            const std::vector<UnitMoves>& moves);

/// Kept inputs alone, those worth most first.
std::vector<Candidate> input_candidates(const KeptInputs& inputs, const Config& config);

/// The optimizer state that is meant for NVMe, by sub-groups, those first that are best in memory:
/// spread over the update; where backward may take a part of it, by whole units, as it does, and
/// first what is left to the beginning of forward, with little to hide it.
std::vector<Candidate> state_candidates(const Placement& plan, const PlacementRequest& request,
                                        bool gradients_spill);

/// The fewest bytes that a step moves, whichever of `candidates` and of the state meant for NVMe
/// are in `room`: device memory has all the state that `device_spare` has room for, and of the
/// residents the last one is cut. Sub-groups of state, of which a large model has millions, need
/// not be looked at for that.
std::uint64_t bytes_left(const Placement& plan, std::vector<Candidate> candidates,
                         std::uint64_t room, std::uint64_t device_spare);

}  // namespace artesian::zero3
