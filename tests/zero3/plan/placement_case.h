// A model with a configuration and budgets, to be placed; the smallest budget that works; and the
// bytes that a placement takes in tiers and moves on NVMe, added up anew.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/zero3/small_model.h"
#include "zero3/plan/make_placement.h"

namespace artesian::zero3 {

using tiering::Tier;

struct PlacementCase {
  SmallModel model = make_small_model(1000, 32, 3);
  Config config;
  std::uint64_t device = std::uint64_t{1} << 40;
  std::uint64_t host = std::uint64_t{1} << 40;
  std::uint64_t ranks = 1;
  bool separate = false;
  bool joined = false;  // the ranks' devices reach each other
  bool hooked = false;
  bool split_master = true;
  bool spare_device = true;
  DType compute = DType::Float32;

  Result<Placement> place() const {
    return make_placement({.parameters = &model.parameters,
                           .stages = &model.stages,
                           .config = &config,
                           .compute_dtype = compute,
                           .separate_device = separate,
                           .device_bytes = device,
                           .host_bytes = host,
                           .ranks = ranks,
                           .device_group = joined,
                           .hooked = hooked,
                           .split_master = split_master,
                           .spare_device = spare_device});
  }
};

inline PlacementCase make_case(DType dtype, Offload param, Offload optimizer) {
  PlacementCase made;
  made.config.param_dtype = made.config.grad_accum_dtype = dtype;
  made.config.accumulation_steps = 1;
  made.config.zero.stage = 3;
  made.config.zero.offload_param = {.device = param, .nvme_paths = {"/p"}, .max_in_cpu = 0};
  made.config.zero.offload_optimizer = {.device = optimizer, .nvme_paths = {"/o"}};
  made.config.zero.param_persistence_threshold = 100;
  return made;
}

/// Bytes of the plan in a tier, added up anew from its units.
inline std::uint64_t bytes_in(const Placement& plan, Tier tier) {
  std::uint64_t bytes = 0;
  for (std::uint32_t index = 0; index < plan.units.size(); ++index) {
    const std::uint64_t image = plan.layout.units[index].image;
    const std::uint64_t cut = plan.params_cut ? plan.ranks : 1;
    if (plan.units[index].param == tier) bytes += image / cut * dtype_size(plan.param_dtype);
    if (plan.units[index].grad == tier) bytes += image / plan.ranks * dtype_size(plan.grad_dtype);
    for (std::uint64_t group = 0; group < plan.sub_group_count(index); ++group) {
      if (plan.optimizer_home(index, group) != tier) continue;
      bytes += plan.record_bytes(index, group);
    }
  }
  if (tier == Tier::Host) {
    bytes += plan.ring_count * plan.ring_item_bytes + plan.grad_buffer_bytes;
    bytes += plan.old_state_bytes;
    bytes += plan.staging_bytes * (plan.param_staging_count + plan.grad_staging_count);
  }
  if (tier == Tier::Device) {
    bytes += plan.expansion_bytes + plan.grad_scratch_bytes + plan.exchange.device_bytes();
  }
  return bytes;
}

inline void expect_within(const PlacementCase& given, const Placement& plan) {
  EXPECT_LE(plan.device_pool_bytes + plan.device_gradient_bytes, given.device);
  EXPECT_LE(plan.host_pool_bytes, given.host);
  EXPECT_LE(bytes_in(plan, Tier::Device), plan.device_pool_bytes);
  EXPECT_LE(bytes_in(plan, Tier::Host), plan.host_pool_bytes);
  EXPECT_EQ(bytes_in(plan, Tier::Nvme), plan.nvme_param_bytes + plan.nvme_optimizer_bytes);
  EXPECT_EQ(plan.sub_group % image_alignment, 0u);
}

/// The smallest value of `budget` for which the case fits.
inline std::uint64_t smallest(PlacementCase given, std::uint64_t PlacementCase::*budget) {
  std::uint64_t low = 0;
  std::uint64_t high = std::uint64_t{1} << 40;
  while (high - low > 1) {
    given.*budget = low + (high - low) / 2;
    (given.place().has_value() ? high : low) = given.*budget;
  }
  return high;
}

/// Returns the form of master weights that all units have.
inline Master master_of(const Placement& plan) {
  for (const UnitPlacement& unit : plan.units) EXPECT_EQ(unit.master, plan.units[0].master);
  return plan.units[0].master;
}

/// Bytes of optimizer state in a tier.
inline std::uint64_t state_in(const Placement& plan, Tier tier) {
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) {
    for (std::uint64_t group = 0; group < plan.sub_group_count(unit); ++group) {
      if (plan.optimizer_home(unit, group) == tier) bytes += plan.record_bytes(unit, group);
    }
  }
  return bytes;
}

/// How often a forward and backward use each unit, at least. If nothing is kept gathered, each use
/// is a fetch.
inline std::vector<std::uint64_t> uses(const PlacementCase& given, const Placement& plan) {
  std::vector<std::uint64_t> count(plan.units.size(), 0);
  for (std::size_t stage = 0; stage < given.model.stages.size(); ++stage) {
    for (const auto unit : plan.layout.stages[stage]) {
      const auto& lookup = given.model.stages[stage].lookup;
      const bool looked_up = lookup.has_value() && plan.layout.places[*lookup].unit == unit;
      if (!plan.layout.units[unit].persistent) count[unit] += looked_up ? 1 : 2;
    }
  }
  return count;
}

/// True if the unit's table is looked up in the first stage, and computed with in the last.
inline bool tied_table(const PlacementCase& given, const Placement& plan, std::uint32_t unit) {
  const auto& last = plan.layout.stages.back();
  const bool in_last = std::find(last.begin(), last.end(), unit) != last.end();
  return in_last && plan.layout.places[*given.model.stages.front().lookup].unit == unit;
}

/// Bytes that a step moves to and from NVMe if no parameter stays gathered.
inline std::uint64_t nvme_traffic(const PlacementCase& given, const Placement& plan) {
  const auto fetches = uses(given, plan);
  std::uint64_t bytes = 0;
  for (std::uint32_t index = 0; index < plan.units.size(); ++index) {
    const UnitPlacement& place = plan.units[index];
    const std::uint64_t image = plan.layout.units[index].image;
    if (place.param == Tier::Nvme) {
      const std::uint64_t by_update = plan.update_reads_param(index) ? 2 : 1;
      // The first forward gets its parameters from the update.
      bytes += image * dtype_size(plan.param_dtype) * (fetches[index] - 1 + by_update);
    }
    if (place.grad == Tier::Nvme) {
      // Written once and read by the update. A tied table's rows are added last: read and written
      // once more.
      const bool tied = tied_table(given, plan, index);
      bytes += image * dtype_size(plan.grad_dtype) * (tied ? 4 : 2);
    }
    for (std::uint64_t group = 0; group < plan.sub_group_count(index); ++group) {
      if (plan.optimizer_home(index, group) != Tier::Nvme) continue;
      bytes += plan.record_bytes(index, group) * 2;
    }
  }
  return bytes;
}

}  // namespace artesian::zero3
