// Residents: which shards of those whose home would be NVMe get one in host memory instead. What is
// worth most comes first: the bytes that a step would move to and from NVMe, per byte of memory. A
// pure function.
//
// Note [More memory, never more bytes]: candidates are taken in order of their worth, each that
// still fits. Given more room, the first candidate to be taken in addition is larger than all the
// room that was left there, and nothing after it is worth more: so the bytes saved never shrink.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3/layout.h"
#include "zero3/module.h"

namespace artesian::zero3 {

enum class ResidentKind : std::uint8_t { Gradient, Parameter, OptimizerState };

struct Candidate {
  ResidentKind kind = ResidentKind::OptimizerState;
  std::uint32_t unit = 0;
  std::uint64_t sub_group = 0;  // of optimizer state
  std::uint64_t bytes = 0;
  std::uint64_t moves = 0;     // how often a step moves each of its bytes, if it is on NVMe
  std::uint64_t elements = 0;  // that count towards `elements_max`: of parameters only
};

struct ResidentLimits {
  std::uint64_t bytes = 0;
  std::uint64_t elements_max = 0;  // offload_param.max_in_cpu
};

/// The candidates that stay in host memory, most worth first. Of equal worth, gradients come before
/// parameters and these before optimizer state; else in the given order.
std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits);

/// The places of `count` things in an order of which every beginning is spread evenly over all of
/// them: what comes first, some of it in memory, is then never far from what comes from the disk.
std::vector<std::uint64_t> spread_order(std::uint64_t count);

struct FetchLimits {
  std::uint64_t slots = 0;               // elements for which there is memory
  std::uint64_t live_max = 0;            // beyond which nothing is kept: stage3_max_live_parameters
  std::uint64_t reuse_distance_max = 0;  // beyond which not either: stage3_max_reuse_distance
};

/// By unit, how often a forward and backward of all stages fetches it, as the Prefetcher does once
/// it knows the step: each access, but for those that find it still gathered from the one before.
/// Look-ahead, which may push out a unit or two at the limits, is left out. Persistent units: 0.
std::vector<std::uint64_t> fetches_of_a_pass(const Layout& layout,
                                             const std::vector<StageSpec>& stages,
                                             FetchLimits limits);

}  // namespace artesian::zero3
