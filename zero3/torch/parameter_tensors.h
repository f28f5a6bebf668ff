// The tensors that a Module sees: one leaf per parameter, made once; it asks for a gradient unless
// the parameter is frozen. Gathering swaps the memory
// behind its storage; saved views follow, the version counter does not move. A change of value (a
// step) bumps the version, so that a backward over a stale graph raises as in PyTorch.
//
// A released parameter points at the guard's address space also where the tensors are a GPU's. A
// kernel that touches it there fails with "an illegal memory access": no line can name it, since a
// GPU's fault has no handler. A copy out of it fails at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "zero3/plan/placement.h"
#include "zero3/step/guard.h"

namespace artesian::zero3 {

class ParameterTensors {
 public:
  /// Those of a unit in its UnitPlacement::computed; `placement` must outlive them.
  /// Errors: Exhausted (address space for the guard).
  static Result<std::unique_ptr<ParameterTensors>> create(
      const std::vector<ParameterSpec>& parameters, const Placement& placement,
      c10::Device device = c10::kCPU);

  const at::Tensor& at(std::uint32_t parameter) const { return tensors_[parameter]; }
  /// Points the unit's parameters into its slot.
  void bind(std::uint32_t unit, std::byte* slot);
  /// Points them at the guard.
  void unbind(std::uint32_t unit);
  /// Marks all values as changed, but those of frozen parameters.
  void bump_versions();

 private:
  ParameterTensors(const Layout& layout, c10::Device device) : layout_(layout), device_(device) {}
  void point(std::uint32_t parameter, std::byte* memory);

  const Layout& layout_;
  c10::Device device_;
  std::unique_ptr<ParameterGuard> guard_;
  std::vector<at::Tensor> tensors_;
};

at::ScalarType scalar_type(DType dtype) noexcept;

}  // namespace artesian::zero3
