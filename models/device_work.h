// The work of a GPU in a stage of a model, in kinds that have rates of their own: matrix products,
// attention, the other operators' passes over its memory, and launches, which are all that the
// host's thread has to do.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "models/model_config.h"

namespace artesian::models {

struct StageWork {
  double products = 0.0;   // floating-point operations of a token
  double attention = 0.0;  // the same, of causal attention: half of what all pairs would take
  double bytes = 0.0;      // bytes that other operators read and write for a token
  double launches = 0.0;   // launches for a micro-batch
};

struct DeviceWork {
  StageWork block_forward, block_backward, head_forward, head_backward;
};

/// Returns the work of one block and of the head at sequence length `length`, computed in `dtype`,
/// where matrices that may be one are one (models/joint_linear.h) and attention is a fused kernel,
/// whose backward makes five products for two, as it keeps no scores (Dao et al. 2022). Recompute
/// is not counted.
DeviceWork device_work(const ModelConfig& config, std::uint64_t length, DType dtype);

}  // namespace artesian::models
