// The work of a GPU in a stage of a model, divided into kinds with separate rates: matrix products,
// attention, memory traffic of the other operators, and kernel launches, the only work of the
// host's thread.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "models/model_config.h"

namespace artesian::models {

struct StageWork {
  double products = 0.0;   // floating-point operations per token, in matrix products
  double attention = 0.0;  // the same, in causal attention: half as many as without the mask
  double bytes = 0.0;      // bytes that other operators read and write per token
  double launches = 0.0;   // launches per micro-batch
};

struct DeviceWork {
  StageWork block_forward, block_backward, head_forward, head_backward;
};

/// Returns the work of one block and of the head at sequence length `length`, computed in `dtype`,
/// with joint matrices (models/joint_linear.h) and fused attention, whose backward makes five
/// products for the forward's two, as it keeps no scores (Dao et al. 2022). Recomputation is not
/// counted.
DeviceWork device_work(const ModelConfig& config, std::uint64_t length, DType dtype);

}  // namespace artesian::models
