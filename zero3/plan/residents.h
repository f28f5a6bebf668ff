// Residents: shards that would be on NVMe but get a home in host memory instead. The most valuable
// are chosen first: those with the most NVMe traffic per step for each byte of memory. But if all
// gradients fit, they take precedence: gradients then never use NVMe, and the update may begin
// under backward. A pure function.
//
// Note [More memory, never more bytes]: candidates are taken in order of their value, each one that
// still fits. With more room, the first additional candidate is larger than all the room that was
// left before, and nothing after it is more valuable; so the bytes saved never shrink. The one
// exception is the amount of memory at which all gradients first fit: they may displace more
// valuable candidates.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/plan/placement.h"
#include "zero3/plan/prefetcher.h"

namespace artesian::zero3 {

enum class ResidentKind : std::uint8_t { Gradient, Parameter, Input, OptimizerState };

struct Candidate {
  ResidentKind kind = ResidentKind::OptimizerState;
  std::uint32_t unit = 0;
  // sub-group of optimizer state, or place of an input (kept_inputs.h)
  std::uint64_t sub_group = 0;
  std::uint64_t bytes = 0;
  std::uint64_t moves = 0;  // how often a step moves each of its bytes if it is on NVMe
  // elements that count towards `elements_max`: only those of parameters
  std::uint64_t elements = 0;
};

struct ResidentLimits {
  std::uint64_t bytes = 0;
  std::uint64_t elements_max = 0;  // offload_param.max_in_cpu
};

/// Returns the bytes of all gradients among the candidates.
std::uint64_t gradient_bytes(const std::vector<Candidate>& candidates);

/// Returns the candidates that are kept in host memory: gradients if all fit, then the most
/// valuable first. Equal values are ordered by kind, then as given.
std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits);

/// The indices 0 to `count` - 1 in an order of which every prefix is spread evenly over the range.
/// If a prefix is kept in memory, items in memory and items on the disk then alternate.
std::vector<std::uint64_t> spread_order(std::uint64_t count);

/// How often a step with one micro-batch moves each byte of a unit's state on NVMe.
struct UnitMoves {
  std::uint64_t fetches = 0;  // reads of parameters; not those in forward if the previous step's
                              // update fills the slot; 0 for persistent units
  std::uint64_t gradient = 0;
};

/// For each unit, from plan_step.
std::vector<UnitMoves> moves_of_a_pass(Placement placement, const std::vector<StageSpec>& stages,
                                       const PrefetchLimits& limits);

}  // namespace artesian::zero3
