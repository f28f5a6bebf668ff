// Where initial weights come from: the engine pulls them slice by slice, straight into the home
// tier, so that no parameter is ever whole in memory.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace artesian::zero3 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// target[i] = element (first + i), in row-major order, of parameter `parameter` as fp32.
  /// Errors: Io, Corrupt, naming file and tensor.  Thread: any, several at once.
  virtual Result<void> read(std::uint32_t parameter, std::uint64_t first,
                            std::span<float> target) noexcept = 0;
};

}  // namespace artesian::zero3
