// Placement: where every byte of a run lives, as decided by make_placement.h before anything is
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

/// Where the fp32 weights are that the optimizer works on.
enum class Master : std::uint8_t {
  Own,        // all of them are in the optimizer state
  Parameter,  // the fp32 parameters themselves are the master weights
  Split,      // bf16 parameters hold their upper halves (kernels/split_master.h)
  None,       // frozen: neither master weights nor other optimizer state
};

/// The homes of one unit's state. For a frozen unit only the parameters' home has a meaning. Any
/// sub-group of optimizer state that is meant for NVMe may be in memory instead.
struct UnitPlacement {
  tiering::Tier param = tiering::Tier::Nvme;
  tiering::Tier grad = tiering::Tier::Host;
  tiering::Tier optimizer = tiering::Tier::Nvme;
  std::vector<tiering::Tier> optimizer_homes;  // by sub-group; empty: all are in `optimizer`
  Master master = Master::Own;
  DType computed = DType::Float32;  // dtype of its gathered parameters
  // The routes of parameters to compute, of gradients to their accumulator, and of the update;
  // with_routes() derives them. A separate device or the host makes the update; the host accesses
  // all other state by host_route().
  tiering::Route gather = tiering::Route::Disk;
  tiering::Route gradient = tiering::Route::InPlace;
  tiering::Route update = tiering::Route::InPlace;

  /// True if compute reads the parameters' home itself: same dtype, in memory that it can access.
  bool aliased() const noexcept { return tiering::stays(gather); }
  /// True if parameters, gradients and optimizer state are all on a separate device, which makes
  /// the update.
  bool updated_on_device() const noexcept { return update == tiering::Route::OnDevice; }
};

struct Placement {
  /// The host cannot access the device's memory; other members depend on this one.
  bool separate_device = false;
  Layout layout;
  std::vector<UnitPlacement> units;
  // Gradients and optimizer state are divided among the ranks at every ZeRO stage: each rank has
  // its share of every image. Stage 3 divides the parameters, too.
  std::uint64_t ranks = 1;
  bool params_cut = false;               // parameters are divided among several ranks
  bool device_group = false;             // bytes pass between the ranks' separate devices
  DType param_dtype = DType::Float32;    // of parameter shards
  DType grad_dtype = DType::Float32;     // of gradient accumulators
  DType compute_dtype = DType::Float32;  // of activations, and of most gathered parameters
  Moments moments{};                     // moments that the optimizer keeps beside the weights
  DType moment_dtype = DType::Float32;   // Float32 or BFloat16
  bool measures = false;  // the update has a first pass that only reads: LAMB's norms
  // elements, multiple of 2048; also the size that one checksum covers
  std::uint64_t sub_group = 0;
  std::uint64_t device_pool_bytes = 0;  // homes and slots
  // Gradients held by autograd: those of one stage. With a separate device also those of the
  // previous stage, on their way to host memory, or the sum of micro-batches, or both.
  std::uint64_t device_gradient_bytes = 0;
  std::uint64_t host_pool_bytes = 0;
  std::uint64_t grad_buffer_bytes = 0;  // one stage's gradients, if some spill: gradients.h
  // Host memory for updating the largest matrix as a whole: matrix_bytes(); 0 if there is none.
  std::uint64_t matrix_buffer_bytes = 0;
  ExchangeBuffers exchange;  // for exchanging gradients with the other ranks
  // With a separate device: host memory for the old state of units that are updated before the norm
  // is known (Note [Speculation] in units_under_backward.h).
  std::uint64_t old_state_bytes = 0;
  std::uint64_t ring_item_bytes = 0;  // 0: no ring
  std::uint32_t ring_count = 0;
  // Buffers of a separate device, 0 without one: pinned buffers for parameters from NVMe and
  // gradients to the host, and device buffers for pieces to expand and for gradient kernels.
  std::uint64_t staging_bytes = 0;  // size of one pinned buffer, a multiple of every shard's blocks
  std::uint32_t param_staging_count = 0;
  std::uint32_t grad_staging_count = 0;
  std::uint64_t expansion_bytes = 0;
  std::uint64_t grad_scratch_bytes = 0;
  // bytes on offload_param.nvme_path: parameters, spilled gradients
  std::uint64_t nvme_param_bytes = 0;
  std::uint64_t nvme_optimizer_bytes = 0;
  KeptInputs inputs;               // stage inputs kept for backward in a tier
  std::vector<std::string> notes;  // what was reduced to fit the budgets

  /// Number of sub-groups of this rank's share of a unit, and the elements of one of them. A frozen
  /// unit is divided in the same way for its checksums, but has no optimizer records.
  std::uint64_t sub_group_count(std::uint32_t unit) const noexcept;
  /// The optimizer's moments of a unit, and the most elements of its sub-groups: the whole matrix
  /// if it is updated as a whole.
  const Moments& moments_of(std::uint32_t unit) const noexcept {
    return layout.units[unit].rows != 0 ? matrix_moments : moments;
  }
  std::uint64_t sub_group_of(std::uint32_t unit) const noexcept {
    return layout.units[unit].rows != 0 ? layout.units[unit].image : sub_group;
  }
  /// The most elements of any sub-group, and the most bytes of any record, if sub-groups had `size`
  /// elements.
  std::uint64_t sub_group_max(std::uint64_t size) const noexcept;
  std::uint64_t record_bytes_max(std::uint64_t size) const noexcept;
  std::uint64_t sub_group_numel(std::uint32_t unit, std::uint64_t index) const noexcept;
  /// Elements of a unit's parameters on one rank: the whole image, or a share of it.
  std::uint64_t param_numel(const Unit& unit) const noexcept {
    return params_cut ? unit.share : unit.image;
  }
  /// Bytes of a rank's part of a unit, in any tier. Frozen units have only parameters.
  std::uint64_t param_bytes(std::uint32_t unit) const noexcept;
  std::uint64_t grad_bytes(std::uint32_t unit) const noexcept;
  std::uint64_t optimizer_bytes(std::uint32_t unit) const noexcept;
  /// The part of that in one tier.
  std::uint64_t optimizer_bytes_in(tiering::Tier tier, std::uint32_t unit) const noexcept;
  /// Bytes of the gradients of the stage with the most, except for gradients on a separate device.
  std::uint64_t largest_stage_grad_bytes() const noexcept;
  /// Bytes of optimizer state per element, of a unit and the maximum over all; and bytes of one
  /// sub-group's record: [average, squares, the kept part of the master weights].
  std::uint64_t state_size(std::uint32_t unit) const noexcept;
  std::uint64_t state_size_max() const noexcept;
  std::uint64_t record_bytes(std::uint32_t unit, std::uint64_t index) const noexcept;
  /// The host's route to state whose home is in that tier.
  tiering::Route host_route(tiering::Tier home) const noexcept {
    if (home == tiering::Tier::Nvme) return tiering::Route::Disk;
    const bool apart = separate_device && home == tiering::Tier::Device;
    return apart ? tiering::Route::Queues : tiering::Route::InPlace;
  }
  /// True if every gradient is in memory that this process can access without a transfer.
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
  /// True if the update also needs the old parameters.
  bool update_reads_param(std::uint32_t unit) const noexcept {
    return units[unit].master == Master::Parameter || units[unit].master == Master::Split;
  }
  /// True if the sum of several micro-batches' gradients may replace them: they have the
  /// accumulator's dtype, and there is one rank.
  bool sums_as_accumulated() const noexcept { return grad_dtype == param_dtype && ranks == 1; }
  /// True if a separate device may sum a unit's gradients and send the host only the sum.
  bool sums_on_device(std::uint32_t unit) const noexcept {
    return units[unit].gradient == tiering::Route::Queues && sums_as_accumulated();
  }
  /// Bytes of homes and buffers on the device: the whole pool except slots.
  std::uint64_t device_homes() const noexcept;
  /// Returns the home of a sub-group's optimizer state.
  tiering::Tier optimizer_home(std::uint32_t unit, std::uint64_t index) const noexcept;
};

/// Memory that a matrix's update needs: the matrix and the temporaries of its iteration, in fp32.
std::uint64_t matrix_bytes(const Unit& unit) noexcept;

/// Returns the plan with every unit's routes derived from its present homes.
Placement with_routes(Placement plan);

}  // namespace artesian::zero3
