// StateSource: where a training's state comes from that goes on: a checkpoint, or an import. As
// WeightSource (weights.h), with the moments.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace artesian::zero3 {

class StateSource {
 public:
  virtual ~StateSource() = default;
  /// master[i], exp_avg[i], exp_avg_sq[i] = those of element (first + i), in row-major order, of
  /// parameter `parameter`. Each is empty, where it is not wanted, or as long as the others.
  /// Moments that the source does not have are zero. Errors: Io, Corrupt, naming file and offset.
  /// Thread: any, several at once.
  virtual Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                            std::span<float> exp_avg, std::span<float> exp_avg_sq) noexcept = 0;
  /// True if a parameter that has its state keeps it: then it is not read.
  virtual bool keeps(std::uint32_t parameter) const noexcept {
    static_cast<void>(parameter);
    return false;
  }
};

}  // namespace artesian::zero3
