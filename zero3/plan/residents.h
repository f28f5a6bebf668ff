// Residents: which shards of those whose home would be NVMe get one in host memory instead. What is
// worth most comes first: the bytes that a step would move to and from NVMe, per byte of memory.
// But where all gradients fit they come before anything else: they never touch NVMe while memory
// allows, and with none there the update may begin under backward. A pure function.
//
// Note [More memory, never more bytes]: candidates are taken in order of their worth, each that
// still fits. Given more room, the first candidate to be taken in addition is larger than all the
// room that was left there, and nothing after it is worth more: so the bytes saved never shrink.
// The one exception is the memory in which all gradients first fit: they may take the place of what
// is worth more.
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
  std::uint64_t sub_group = 0;  // sub-group of optimizer state; place of an input (kept_inputs.h)
  std::uint64_t bytes = 0;
  std::uint64_t moves = 0;     // how often a step moves each of its bytes, if it is on NVMe
  std::uint64_t elements = 0;  // elements that count towards `elements_max`: of parameters only
};

struct ResidentLimits {
  std::uint64_t bytes = 0;
  std::uint64_t elements_max = 0;  // offload_param.max_in_cpu
};

/// Returns the bytes of all gradients among them.
std::uint64_t gradient_bytes(const std::vector<Candidate>& candidates);

/// The candidates that stay in host memory: gradients if all fit, then most worth first. Of equal
/// worth, they come in the order of their kinds; else in the given order.
std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits);

/// The places of `count` things in an order of which every beginning is spread evenly over all of
/// them: what comes first, some of it in memory, is then never far from what comes from the disk.
std::vector<std::uint64_t> spread_order(std::uint64_t count);

/// How often a step of one micro-batch moves each byte of a unit's state on
/// NVMe.
struct UnitMoves {
  std::uint64_t fetches = 0;  // of parameters: not in forward, where the update of the step before
                              // fills the slot; persistent units: 0
  std::uint64_t gradient = 0;
};

/// By unit, by plan_step.
std::vector<UnitMoves> moves_of_a_pass(Placement placement, const std::vector<StageSpec>& stages,
                                       const PrefetchLimits& limits);

}  // namespace artesian::zero3
