// Where initial weights come from: the engine pulls them slice by slice, straight into the home
// tier, so that no parameter is ever whole in memory. A trainer writes a source of its own, or
// takes RandomWeights, TensorWeights (tensor_weights.h) or models/checkpoint_weights.h. The way
// back is Engine::read_master.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// target[i] = element (first + i), in row-major order, of parameter `parameter` as fp32.
  /// Errors: Io, Corrupt, naming file and tensor.  Thread: any, several at once.
  virtual Result<void> read(std::uint32_t parameter, std::uint64_t first,
                            std::span<float> target) noexcept = 0;
};

/// By each parameter's `initial`: the same numbers for the same seed, whatever the slices
/// (counter-based, one stream a parameter).
class RandomWeights final : public WeightSource {
 public:
  RandomWeights(std::vector<ParameterSpec> parameters, std::uint64_t seed)
      : parameters_(std::move(parameters)), seed_(seed) {}

  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override;

 private:
  std::vector<ParameterSpec> parameters_;
  std::uint64_t seed_;
};

}  // namespace artesian::zero3
