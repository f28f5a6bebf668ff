// StateSource: the source of a resumed training's state: a checkpoint or an import. As WeightSource
// (weights.h), with moments.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace artesian::zero3 {

class StateSource {
 public:
  virtual ~StateSource() = default;
  /// master[i], exp_avg[i], exp_avg_sq[i] = the values of element (first + i), in row-major order,
  /// of parameter `parameter`. Each span is empty if it is not wanted; the others have equal
  /// lengths. Moments that the source lacks are zero. Errors: Io, Corrupt, naming file and offset.
  /// Thread: any, several at once.
  virtual Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                            std::span<float> exp_avg, std::span<float> exp_avg_sq) noexcept = 0;
  /// As WeightSource::comes_by_unit() and begin().
  virtual bool comes_by_unit() const noexcept { return false; }
  virtual Result<void> begin(std::uint32_t unit) noexcept {
    static_cast<void>(unit);
    return {};
  }
  /// True if a parameter keeps its present state, and is not read.
  virtual bool keeps(std::uint32_t parameter) const noexcept {
    static_cast<void>(parameter);
    return false;
  }
};

}  // namespace artesian::zero3
