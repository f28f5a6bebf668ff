// make_placement: the pure function that decides, before anything is allocated, where every byte of
// a run lives. It never exceeds a budget. If the model cannot fit, it returns an error with the
// missing bytes and the key to change.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "zero3/config/config.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

/// Memory budgets in bytes.
struct Budgets {
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  // kept by several micro-batches at once; a single one may need more
  std::uint64_t activations = 0;
};

struct PlacementRequest {
  const std::vector<ParameterSpec>* parameters = nullptr;
  const std::vector<StageSpec>* stages = nullptr;
  const Config* config = nullptr;
  DType compute_dtype = DType::Float32;
  /// The host cannot reach the device's memory (tiering/device/device.h).
  bool separate_device = false;
  std::uint64_t device_bytes = 0;  // bytes of the device tier; these and the next are budgets
  std::uint64_t host_bytes = 0;
  std::uint64_t ranks = 1;    // ranks among which the state is divided; budgets are per rank
  bool device_group = false;  // as Placement::device_group
  bool whole_params = false;  // each rank has all parameters, at stage 3, too
  bool whole_frozen = false;  // each rank has all frozen parameters
  bool hooked = false;        // as StepCoreOptions::hooked
  bool hold_there = true;     // a separate device holds what it sends to the others', if it fits
  bool split_master = true;   // split master weights if this moves fewer bytes; false: never
  bool split_far = false;     // split master weights even if this moves more bytes over the bus, to
                              // save host memory
  bool spare_device = true;   // spare device memory keeps state meant for NVMe
  bool resident = false;      // all parameters persist, so that they can be read between passes
  /// For config.cpu_checkpointing: [stages] elements of each stage's input for one micro-batch, in
  /// the compute dtype. Empty: unknown, and inputs stay on the device.
  std::vector<std::uint64_t> input_elements{};
  std::uint64_t activation_bytes = 0;  // budget for what several micro-batches keep at once
};

/// GPU memory that CUDA uses beside the device tier and activations, for a context and libraries'
/// workspaces. An estimate.
inline constexpr std::uint64_t cuda_bytes = std::uint64_t{1} << 30;

/// Sizes of kept inputs, and the most micro-batches that may run at once, if all host memory were
/// available to them; empty without config.cpu_checkpointing.
KeptInputs most_inputs(const PlacementRequest& request);

/// Decides the placement. Errors: Exhausted, one line per budget that is too small.
Result<Placement> make_placement(const PlacementRequest& request);

}  // namespace artesian::zero3
