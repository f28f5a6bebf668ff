// Initial weights of which each rank has a share: zero.Init has divided them, and the engine
// divides units. Each rank gets what its homes take, unit by unit, and gives its share's memory
// back.
//
// A parameter of n elements is divided into shares of ceil(n / ranks) elements, of which the last
// ones may be shorter or empty.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "comm/group.h"
#include "zero3/plan/layout.h"
#include "zero3/torch/tensor_weights.h"

namespace artesian::zero3 {

class DividedWeights final : public WeightSource {
 public:
  /// `whole`: the parameters that are not divided. `shares`: by parameter this rank's share,
  /// [count], contiguous, on the CPU; undefined if the parameter is not divided. All must outlive
  /// it.
  DividedWeights(TensorWeights whole, std::vector<at::Tensor> shares, const Layout& layout,
                 comm::Group& group);

  bool comes_by_unit() const noexcept override { return true; }
  Result<void> begin(std::uint32_t unit) noexcept override;
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override;

 private:
  struct Arrived {
    std::uint64_t first = 0;  // index in the parameter
    at::Tensor values{};      // in the share's dtype
  };
  Result<void> bring(std::uint32_t parameter);
  std::uint64_t bytes_of(std::uint32_t parameter) const;
  void make_room(std::uint32_t unit);
  Unit::Range share_of(std::uint64_t numel, std::uint32_t rank) const noexcept;
  Unit::Range needed_by(std::uint32_t parameter, std::uint32_t rank) const noexcept;

  TensorWeights whole_;
  std::vector<at::Tensor> shares_;
  const Layout& layout_;
  comm::Group& group_;
  // Kept from unit to unit: malloc's heap grows by hundreds of MiB if each has memory of its own.
  at::Tensor room_{};
  std::uint64_t used_ = 0;                    // bytes of it
  std::map<std::uint32_t, Arrived> arrived_;  // the unit's parameters
};

/// Frees the memory behind a tensor, also for others that share it. A later access throws with this
/// message.
void free_memory(const at::Tensor& tensor, const std::string& message);

}  // namespace artesian::zero3
