// Placement: where every byte of a run lives, as make_placement.h has decided it before anything is
// allocated; and sums over it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tiering/route.h"
#include "tiering/tier.h"
#include "zero3/config/optimizers.h"
#include "zero3/plan/exchange_buffers.h"
#include "zero3/plan/kept_inputs.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

/// Says what keeps the fp32 weights that the optimizer works on.
enum class Master : std::uint8_t {
  Own,        // the optimizer state has all of them
  Parameter,  // fp32 parameters are the master weights
  Split,      // bf16 parameters are their upper halves (kernels/split_master.h)
  None,       // frozen: there are none, and no other optimizer state
};

/// The homes of one unit's state. A frozen one has parameters alone; its other homes mean nothing.
/// Any sub-groups of optimizer state that is meant for NVMe may be in memory.
struct UnitPlacement {
  tiering::Tier param = tiering::Tier::Nvme;
  tiering::Tier grad = tiering::Tier::Host;
  tiering::Tier optimizer = tiering::Tier::Nvme;
  std::vector<tiering::Tier> optimizer_homes;  // by sub-group; empty: all in `optimizer`
  Master master = Master::Own;
  DType computed = DType::Float32;  // dtype of its gathered parameters
  // How parameters get to where compute reads them, and gradients from there to their accumulator:
  // with_routes() derives them. An update is made on a separate device, or else by the host, which
  // gets at all else by host_route().
  tiering::Route gather = tiering::Route::Disk;
  tiering::Route gradient = tiering::Route::InPlace;
  tiering::Route update = tiering::Route::InPlace;

  /// Compute reads the parameters' home itself: the same dtype, in memory that it reaches.
  bool aliased() const noexcept { return tiering::stays(gather); }
  /// Parameters, gradients and optimizer state are all on a separate device, and so is the update.
  bool updated_on_device() const noexcept { return update == tiering::Route::OnDevice; }
};

struct Placement {
  /// The host cannot reach the device's memory; other members follow from this one.
  bool separate_device = false;
  Layout layout;
  std::vector<UnitPlacement> units;
  // Gradients and optimizer state are cut among the ranks, whatever the stage of ZeRO: each has its
  // share of every image. Stage 3 cuts the parameters, too.
  std::uint64_t ranks = 1;
  bool params_cut = false;               // among several ranks
  DType param_dtype = DType::Float32;    // of parameter shards
  DType grad_dtype = DType::Float32;     // of gradient accumulators
  DType compute_dtype = DType::Float32;  // of activations, and of most gathered parameters
  Moments moments{};                     // what the optimizer keeps beside weights
  DType moment_dtype = DType::Float32;   // Float32 or BFloat16
  bool measures = false;                 // the update's first pass only reads: LAMB's norms
  std::uint64_t sub_group = 0;           // elements, multiple of 2048: also the checksum grain
  std::uint64_t device_pool_bytes = 0;   // homes and slots
  // Gradients held by autograd: one stage's; of a separate device also the stage's before it, which
  // are on their way to host memory, or the sum of micro-batches: or both.
  std::uint64_t device_gradient_bytes = 0;
  std::uint64_t host_pool_bytes = 0;
  std::uint64_t grad_buffer_bytes = 0;  // one stage's gradients, where some spill: gradients.h
  // Host memory in which the largest matrix is updated as a whole, 0 without any: matrix_bytes().
  std::uint64_t matrix_buffer_bytes = 0;
  ExchangeBuffers exchange;  // with the other ranks
  // Host memory that nothing else takes, beside a separate device: what units that are updated
  // ahead of the norm were, until it is known (Note [Speculation] in units_under_backward.h).
  std::uint64_t old_state_bytes = 0;
  std::uint64_t ring_item_bytes = 0;  // 0: no ring
  std::uint32_t ring_count = 0;
  // Of a separate device, 0 without one: the pinned buffers through which parameters come from NVMe
  // and gradients to the host, and its own buffers for pieces to expand and for gradient kernels.
  std::uint64_t staging_bytes = 0;  // of one pinned buffer, a multiple of every shard's blocks
  std::uint32_t param_staging_count = 0;
  std::uint32_t grad_staging_count = 0;
  std::uint64_t expansion_bytes = 0;
  std::uint64_t grad_scratch_bytes = 0;
  std::uint64_t nvme_param_bytes = 0;  // on offload_param.nvme_path: params, spilled gradients
  std::uint64_t nvme_optimizer_bytes = 0;
  KeptInputs inputs;               // stage inputs kept for backward in a tier
  std::vector<std::string> notes;  // what was cut to the budgets

  /// Number of sub-groups of this rank's share of a unit, and the elements of one of them.
  /// A frozen unit is cut alike, for its checksums, and has no records.
  std::uint64_t sub_group_count(std::uint32_t unit) const noexcept;
  /// The optimizer's moments of a unit, and the most elements of its sub-groups: all of a matrix
  /// that is updated as a whole.
  const Moments& moments_of(std::uint32_t unit) const noexcept {
    return layout.units[unit].rows != 0 ? matrix_moments : moments;
  }
  std::uint64_t sub_group_of(std::uint32_t unit) const noexcept {
    return layout.units[unit].rows != 0 ? layout.units[unit].image : sub_group;
  }
  /// The most elements of any sub-group, and bytes of any record, were others of `size` elements.
  std::uint64_t sub_group_max(std::uint64_t size) const noexcept;
  std::uint64_t record_bytes_max(std::uint64_t size) const noexcept;
  std::uint64_t sub_group_numel(std::uint32_t unit, std::uint64_t index) const noexcept;
  /// Elements of what a rank has of a unit's parameters: all of its image, or a share of it.
  std::uint64_t param_numel(const Unit& unit) const noexcept {
    return params_cut ? unit.share : unit.image;
  }
  /// Bytes of what a rank has of a unit, wherever it lives. Frozen ones have parameters alone.
  std::uint64_t param_bytes(std::uint32_t unit) const noexcept;
  std::uint64_t grad_bytes(std::uint32_t unit) const noexcept;
  std::uint64_t optimizer_bytes(std::uint32_t unit) const noexcept;
  /// The part of it that lives in a tier.
  std::uint64_t optimizer_bytes_in(tiering::Tier tier, std::uint32_t unit) const noexcept;
  /// Bytes of gradients of the stage with most, of those that are not on a separate device.
  std::uint64_t largest_stage_grad_bytes() const noexcept;
  /// Bytes of optimizer state for each element, of a unit and the most of any; and those of one
  /// sub-group's record: [average, squares, what is kept of the master weights].
  std::uint64_t state_size(std::uint32_t unit) const noexcept;
  std::uint64_t state_size_max() const noexcept;
  std::uint64_t record_bytes(std::uint32_t unit, std::uint64_t index) const noexcept;
  /// How the host gets at state whose home is in that tier.
  tiering::Route host_route(tiering::Tier home) const noexcept {
    if (home == tiering::Tier::Nvme) return tiering::Route::Disk;
    const bool apart = separate_device && home == tiering::Tier::Device;
    return apart ? tiering::Route::Queues : tiering::Route::InPlace;
  }
  /// True if the update finds every gradient where this process reads it, without a transfer.
  bool gradients_in_memory() const noexcept {
    return std::all_of(units.begin(), units.end(), [this](const UnitPlacement& unit) {
      return host_route(unit.grad) == tiering::Route::InPlace;
    });
  }
  /// True if some unit's gradients are on NVMe.
  bool gradients_spill() const noexcept {
    return std::any_of(units.begin(), units.end(),
                       [](const UnitPlacement& unit) { return unit.grad == tiering::Tier::Nvme; });
  }
  /// True if the update needs the old parameters, too.
  bool update_reads_param(std::uint32_t unit) const noexcept {
    return units[unit].master == Master::Parameter || units[unit].master == Master::Split;
  }
  /// True if the sum of several micro-batches' gradients may take the place of one of them: they
  /// have the dtype of the accumulator, and there is one rank.
  bool sums_as_accumulated() const noexcept { return grad_dtype == param_dtype && ranks == 1; }
  /// True if a separate device may sum a unit's gradients and send the host only the sum.
  bool sums_on_device(std::uint32_t unit) const noexcept {
    return units[unit].gradient == tiering::Route::Queues && sums_as_accumulated();
  }
  /// The bytes of homes and buffers on the device: all of the pool but slots.
  std::uint64_t device_homes() const noexcept;
  /// Returns where the optimizer state of a sub-group lives.
  tiering::Tier optimizer_home(std::uint32_t unit, std::uint64_t index) const noexcept;
};

/// The bytes that a matrix's update takes: itself and what its iteration works on, in fp32.
std::uint64_t matrix_bytes(const Unit& unit) noexcept;

/// The same plan with every unit's routes, by the homes that it has now.
Placement with_routes(Placement plan);

}  // namespace artesian::zero3
