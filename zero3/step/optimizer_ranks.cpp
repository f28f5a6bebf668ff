// The part of Optimizer in which ranks bring each other first values and updated shares.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "zero3/step/group_blocks.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// After an error of its own a rank still does its part for the others' units.
Result<void> Optimizer::fill_by_unit(const std::vector<std::uint32_t>& units, StateSource& source,
                                     const SubGroupStream::SlicedBody& body) noexcept {
  Result<void> filled;
  for (const std::uint32_t unit : units) {
    ARTESIAN_TRY_VOID(source.begin(unit));
    if (filled.has_value()) filled = stream_.run({unit}, {.write_state = true}, body);
  }
  return filled;
}

/// Copies elements [first, end) of an image, newly written to its home at `fresh`, into the slot
/// that follows it.
Result<void> Optimizer::follow_others(std::uint32_t unit, std::uint64_t first, std::uint64_t end,
                                      const std::byte* fresh) noexcept {
  if (first == end || !residency_.refreshes(unit)) return {};  // or this is the first filling
  if (ends_at_device(state_.placement().units[unit].gather)) {
    return residency_.refresh_by_copy(tiering::Queue::ToDevice, unit, first, end - first, fresh);
  }
  const std::uint64_t size = dtype_size(state_.placement().param_dtype);
  constexpr std::uint64_t slice = GroupBlocks::slice;
  const std::uint64_t slices = (end - first + slice - 1) / slice;
  state_.executor().parallel_for(slices, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (; from < to; ++from) {
      const std::uint64_t begin = from * slice;
      residency_.refresh(unit, first + begin, std::min(slice, end - first - begin),
                         fresh + begin * size);
    }
  });
  return {};
}

/// Gathers the other ranks' updated shares of a unit's parameters into this rank's home and the
/// slot that follows it.
Result<void> Optimizer::gather_shares(std::uint32_t unit) noexcept {
  const Placement& plan = state_.placement();
  if (options_.group == nullptr || plan.params_cut) return {};  // gathered when it is used
  const Unit& described = plan.layout.units[unit];
  if (!described.is_cut()) return {};
  const std::uint64_t size = dtype_size(plan.param_dtype);
  ARTESIAN_CHECK(plan.units[unit].param != tiering::Tier::Nvme, unit);
  if (plan.host_route(plan.units[unit].param) == tiering::Route::Queues) {
    return options_.bus != nullptr ? gather_over_bus(unit) : gather_on_device(unit);
  }
  std::byte* const home = state_.store().memory(state_.param(unit));
  ARTESIAN_TRY_VOID(
      options_.group->all_gather(std::span(home, static_cast<std::size_t>(described.image * size)),
                                 {"parameters of", described.name}));
  const std::uint64_t own = state_.share_begin(unit);
  const std::uint64_t behind = own + described.share;
  ARTESIAN_TRY_VOID(follow_others(unit, 0, own, home));
  return follow_others(unit, behind, described.image, home + behind * size);
}

/// The same for a home on a separate device, from device to device.
Result<void> Optimizer::gather_over_bus(std::uint32_t unit) noexcept {
  const Placement& plan = state_.placement();
  const Unit& described = plan.layout.units[unit];
  tiering::Device& device = state_.device();
  const std::uint64_t size = dtype_size(plan.param_dtype);
  std::byte* const home = state_.store().memory(state_.param(unit));
  ARTESIAN_TRY(updated, device.record(tiering::Queue::ToDevice));
  ARTESIAN_TRY_VOID(device.wait(tiering::Queue::Bus, updated));
  const bool there = plan.units[unit].updated_on_device();
  if (there) {
    ARTESIAN_TRY(done, device.record(tiering::Queue::Compute));
    ARTESIAN_TRY_VOID(device.wait(tiering::Queue::Bus, done));
  }
  ARTESIAN_TRY_VOID(
      options_.bus->all_gather({home, static_cast<std::size_t>(described.image * size)}, unit,
                               {"parameters of", described.name}));
  const bool follows = there || residency_.refreshes(unit);
  if (!follows || plan.units[unit].aliased()) return {};
  const std::uint64_t own = state_.share_begin(unit);
  const std::uint64_t behind = own + described.share;
  const auto expand = [&](std::uint64_t first, std::uint64_t end) {
    return first == end ? Result<void>()
                        : residency_.refresh_by_copy(tiering::Queue::Compute, unit, first,
                                                     end - first, home + first * size);
  };
  ARTESIAN_TRY_VOID(expand(0, own));
  ARTESIAN_TRY_VOID(expand(behind, described.image));
  ARTESIAN_TRY(expanded, device.record(tiering::Queue::Compute));
  // The slot may be evicted before it is used.
  return device.wait(tiering::Queue::ToDevice, expanded);
}

/// The same for a home on a separate device: one slice of every share at a time, through host
/// memory.
Result<void> Optimizer::gather_on_device(std::uint32_t unit) noexcept {
  const Placement& plan = state_.placement();
  const Unit& described = plan.layout.units[unit];
  comm::Group& group = *options_.group;
  tiering::Device& device = state_.device();
  const std::uint64_t size = dtype_size(plan.param_dtype);
  std::byte* const home = state_.store().memory(state_.param(unit));
  ARTESIAN_TRY(updated, device.record(tiering::Queue::ToDevice));
  for (std::uint64_t first = 0; first < described.share; first += plan.exchange.slice) {
    const std::uint64_t count = std::min(plan.exchange.slice, described.share - first);
    const auto bytes = static_cast<std::size_t>(count * size);
    const std::span<std::byte> slices = state_.exchange_buffer().first(group.ranks() * bytes);
    const auto image_first = [&](std::uint32_t rank) { return rank * described.share + first; };
    ARTESIAN_TRY_VOID(state_.reader().read_into(slices.data() + group.rank() * bytes,
                                                {home + image_first(group.rank()) * size, bytes},
                                                updated));
    ARTESIAN_TRY_VOID(group.all_gather(slices, {"parameters of", described.name}));
    for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
      if (rank == group.rank()) continue;
      const std::byte* const fresh = slices.data() + rank * bytes;
      const std::uint64_t begin = image_first(rank);
      ARTESIAN_TRY_VOID(device.copy_to_device(home + begin * size, fresh, bytes));
      ARTESIAN_TRY_VOID(follow_others(unit, begin, begin + count, fresh));
    }
    ARTESIAN_TRY(copied, device.record(tiering::Queue::ToDevice));
    ARTESIAN_TRY_VOID(device.finish(copied));  // the buffers are reused for the next slices
  }
  return {};
}

}  // namespace artesian::zero3
