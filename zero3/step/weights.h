// Where initial weights come from: the engine reads them slice by slice, directly into their homes,
// so that no parameter is ever complete in memory. A trainer implements its own source, or uses
// RandomWeights, TensorWeights (tensor_weights.h) or models/checkpoint_weights.h.
// Engine::read_master reads weights back.
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
  /// True if begin() must be called for each unit.
  virtual bool comes_by_unit() const noexcept { return false; }
  /// Called by all ranks, in the same order, before a unit's parameters are read and after all
  /// reads of the former one. Errors: as read(); the group's.
  virtual Result<void> begin(std::uint32_t unit) noexcept {
    static_cast<void>(unit);
    return {};
  }
};

/// Random weights according to each parameter's `initial`. The same seed gives the same numbers,
/// however slices are chosen (counter-based, one stream per parameter).
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
