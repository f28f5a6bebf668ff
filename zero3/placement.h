// Placement: the pure function that decides, before anything is allocated, where every byte of a
// run lives. It never exceeds a budget; what can never fit is refused with the bytes missing and
// the key to change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "tiering/tier.h"
#include "zero3/config.h"
#include "zero3/layout.h"

namespace artesian::zero3 {

struct PlacementRequest {
  const std::vector<ParameterSpec>* parameters = nullptr;
  const std::vector<StageSpec>* stages = nullptr;
  const Config* config = nullptr;
  DType compute_dtype = DType::Float32;
  std::uint64_t device_bytes = 0;  // budgets
  std::uint64_t host_bytes = 0;
};

/// Where one unit's state lives. Homes of the optimizer state are by unit, not by sub-group.
struct UnitPlacement {
  tiering::Tier param = tiering::Tier::Nvme;
  tiering::Tier grad = tiering::Tier::Host;
  tiering::Tier optimizer = tiering::Tier::Nvme;
  bool aliased = false;  // compute reads the param home itself: same dtype, home in memory
};

struct Placement {
  Layout layout;
  std::vector<UnitPlacement> units;
  DType param_dtype = DType::Float32;    // of the param shards
  DType grad_dtype = DType::Float32;     // of the accumulators
  DType compute_dtype = DType::Float32;  // of the gathered parameters
  std::uint64_t sub_group = 0;           // elements, multiple of 2048: also the checksum grain
  std::uint32_t states = 3;  // fp32 arrays per optimizer record: master, m, v (fp32: m, v)
  std::uint64_t device_pool_bytes = 0;      // homes and slots
  std::uint64_t device_gradient_bytes = 0;  // one stage's gradients, held by autograd
  std::uint64_t host_pool_bytes = 0;
  std::uint64_t ring_item_bytes = 0;  // 0: no ring
  std::uint32_t ring_count = 0;
  std::uint64_t nvme_param_bytes = 0;  // on offload_param.nvme_path: params, spilled gradients
  std::uint64_t nvme_optimizer_bytes = 0;
  std::vector<std::string> notes;  // what was cut to the budget

  /// Number of sub-groups of a unit, and the elements of one of them.
  std::uint64_t sub_group_count(std::uint32_t unit) const noexcept;
  std::uint64_t sub_group_numel(std::uint32_t unit, std::uint64_t index) const noexcept;
};

/// Errors: Exhausted, one line per budget that is too small.
Result<Placement> make_placement(const PlacementRequest& request);

}  // namespace artesian::zero3
