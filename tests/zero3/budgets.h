// Budgets for tests that need state in a certain tier: the least host memory at which a property of
// the placement holds. More memory would take state off NVMe.
#pragma once

#include <gtest/gtest.h>

#include "zero3/plan/make_placement.h"
#include "zero3/torch/module.h"

namespace artesian::zero3 {

/// The least host budget at which `holds(placement)` is true. It must be true of all larger ones,
/// too.
template <typename Holds>
std::uint64_t least_host_budget(PlacementRequest request, const Holds& holds) {
  std::uint64_t low = 0;
  std::uint64_t high = std::uint64_t{1} << 40;
  while (high - low > 1) {
    request.host_bytes = low + (high - low) / 2;
    const auto placement = make_placement(request);
    (placement.has_value() && holds(*placement) ? high : low) = request.host_bytes;
  }
  return high;
}

/// Room for all gradients and next to nothing else: parameters and optimizer state stay on NVMe if
/// that is their home.
inline std::uint64_t host_budget_for_gradients(const Module& module, const Config& config,
                                               bool split_master = true) {
  return least_host_budget({.parameters = &module.parameters(),
                            .stages = &module.stages(),
                            .config = &config,
                            .compute_dtype = DType::Float32,
                            .device_bytes = std::uint64_t{1} << 40,
                            .split_master = split_master,
                            .spare_device = false},
                           [](const Placement& placement) { return !placement.gradients_spill(); });
}

}  // namespace artesian::zero3
