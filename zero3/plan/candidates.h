// Candidates: shards of a plan that could be on NVMe or, as far as memory allows, in host memory.
// residents.h chooses among them.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/make_placement.h"
#include "zero3/plan/residents.h"

namespace artesian::zero3 {

/// The most parameter elements of a unit that any rank holds.
std::uint64_t elements_of_a_share(const Placement& plan, const Unit& unit) noexcept;

/// All candidates but optimizer state, large units first, and those of one size spread evenly over
/// the model: where several in a row are in memory, the disk idles while they are used. `moves`: by
/// unit.
std::vector<Candidate> candidates_but_state(const Placement& plan, const Config& config,
                                            const std::vector<UnitMoves>& moves);

/// Only kept inputs, most valuable first.
std::vector<Candidate> input_candidates(const KeptInputs& inputs, const Config& config);

/// The optimizer state that is meant for NVMe, by sub-groups, in the order in which it should be
/// kept in memory: spread evenly over the update. If a part is updated under backward, the order is
/// by whole units, and begins with units updated at the beginning of forward, where little hides
/// the disk time.
std::vector<Candidate> state_candidates(const Placement& plan, const PlacementRequest& request,
                                        bool gradients_spill);

/// A lower bound of the bytes that a step moves, whatever part of `candidates` and of the NVMe
/// state is kept in `room`. It assumes that state fills `device_spare`, and that the last resident
/// can be cut. The millions of sub-groups of a large model need not be examined for this.
std::uint64_t bytes_left(const Placement& plan, std::vector<Candidate> candidates,
                         std::uint64_t room, std::uint64_t device_spare);

}  // namespace artesian::zero3
