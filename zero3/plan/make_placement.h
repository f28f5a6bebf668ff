// make_placement: the pure function that decides, before anything is allocated, where every byte of
// a run lives. It never exceeds a budget; what can never fit is refused with the bytes missing and
// the key to change.
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
  std::uint64_t activations = 0;  // kept by several micro-batches at once; one may take more
};

struct PlacementRequest {
  const std::vector<ParameterSpec>* parameters = nullptr;
  const std::vector<StageSpec>* stages = nullptr;
  const Config* config = nullptr;
  DType compute_dtype = DType::Float32;
  /// The host cannot reach the device's memory (tiering/device/device.h).
  bool separate_device = false;
  std::uint64_t device_bytes = 0;  // budgets
  std::uint64_t host_bytes = 0;
  std::uint64_t ranks = 1;    // that divide the state; budgets are per rank
  bool whole_params = false;  // each rank has all parameters, at stage 3, too
  bool whole_frozen = false;  // each rank has all that is frozen
  bool hooked = false;        // StepCoreOptions::hooked
  bool split_master = true;   // split master weights if that moves fewer bytes; false: never
  bool split_far = false;     // also if that moves more bytes over the bus, to save host memory
  bool spare_device = true;   // spare device memory keeps state meant for NVMe
  bool resident = false;      // all parameters persist, so that they can be read between passes
  /// For config.cpu_checkpointing: [stages] elements, in the compute dtype, of each stage's input
  /// of one micro-batch. Empty: unknown, and inputs stay on the device.
  std::vector<std::uint64_t> input_elements{};
  std::uint64_t activation_bytes = 0;  // budget of what several micro-batches keep at once
};

/// The bytes that CUDA takes of a GPU's memory beside the device tier and activations: a context,
/// and libraries' workspaces. An estimate.
inline constexpr std::uint64_t cuda_bytes = std::uint64_t{1} << 30;

/// Sizes of kept inputs and the most micro-batches that may run at once, were all host memory
/// theirs; none without config.cpu_checkpointing.
KeptInputs most_inputs(const PlacementRequest& request);

/// Errors: Exhausted, one line per budget that is too small.
Result<Placement> make_placement(const PlacementRequest& request);

}  // namespace artesian::zero3
