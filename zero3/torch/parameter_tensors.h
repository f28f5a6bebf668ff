// The tensors that a model sees: one leaf per parameter, created once, or adopted from a model that
// has its own. It requires a gradient unless the parameter is frozen. Gathering swaps the memory
// behind its storage: saved views follow, and the version counter does not change. A change of
// values (a step) bumps the version, so that a backward over a stale graph raises as in PyTorch.
//
// Released parameters behave as follows:
//   own leaves   point to the guard's address space: an access ends the process with the name. A
//                GPU kernel that accesses it fails with "an illegal memory access", without the
//                name, since a GPU's fault has no handler. A copy out of it fails at once.
//   adopted ones throw: any access to their memory throws c10::Error with the name, on every
//                device. If this LibTorch does not support that (released_tensors_throw() in
//                storage_refusal.h), they point to the guard, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "zero3/plan/placement.h"
#include "zero3/torch/parameter_guard.h"

namespace artesian::zero3 {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Checks that the tensors of a caller's model can be adopted; tensors[i] is parameters[i].
/// `others` are the model's other tensors: buffers, plain attributes. Errors: Invalid, naming the
/// tensors: a wrong shape, dtype or device (all must be on the CPU, or all on `device`); a tensor
/// that is not a leaf; two that share memory; memory shared with one of the others, which would
/// keep the old values; a tensor that an engine has adopted already.
Result<void> check_adoptable(const std::vector<ParameterSpec>& parameters,
                             std::span<const at::Tensor> tensors,
                             std::span<const NamedTensor> others, c10::Device device = c10::kCPU);

class ParameterTensors {
 public:
  /// Makes our own leaves, in each unit's UnitPlacement::computed; `placement` must outlive them.
  /// Errors: Exhausted (address space for the guard).
  static Result<std::unique_ptr<ParameterTensors>> create(
      const std::vector<ParameterSpec>& parameters, const Placement& placement,
      c10::Device device = c10::kCPU);
  /// Adopts a model's own tensors: from now on the engine manages their memory, on `device`,
  /// contiguous, in UnitPlacement::computed, and all are released. Identity, shape, requires_grad,
  /// hooks and ties do not change. Existing views of their old memory throw when they are read, and
  /// so do the tensors themselves in a forked child. Errors: those of check_adoptable, after which
  /// nothing has changed; Exhausted (the guard's).
  static Result<std::unique_ptr<ParameterTensors>> adopt(
      const std::vector<ParameterSpec>& parameters, const Placement& placement,
      std::span<const at::Tensor> tensors, std::span<const NamedTensor> others,
      c10::Device device = c10::kCPU);
  /// Adopted tensors outlive this object: reading them then gives an error that says so.
  ~ParameterTensors();
  ParameterTensors(const ParameterTensors&) = delete;
  ParameterTensors& operator=(const ParameterTensors&) = delete;

  const at::Tensor& at(std::uint32_t parameter) const { return tensors_[parameter]; }
  c10::Device device() const noexcept { return device_; }
  /// Points the unit's parameters to its slot.
  void bind(std::uint32_t unit, std::byte* slot);
  /// Releases the unit's parameters.
  void unbind(std::uint32_t unit);
  /// False once the caller has given the tensor other memory. Binding does not undo that.
  bool has_own_memory(std::uint32_t parameter) const {
    return tensors_[parameter].storage().unsafeGetStorageImpl() ==
           storages_[parameter].unsafeGetStorageImpl();
  }
  /// Gives the tensor the engine's memory again, after the caller had given it other memory; its
  /// values are those in the engine's memory. Errors: Invalid: the other memory has another shape
  /// or dtype.
  Result<void> take_memory_back(std::uint32_t parameter);
  /// Marks all values as changed, except those of parameters frozen from the beginning.
  void bump_versions();

 private:
  ParameterTensors(const Layout& layout, c10::Device device) : layout_(layout), device_(device) {}
  Result<void> make_guard(const std::vector<ParameterSpec>& parameters, const Placement& placement);
  at::Tensor leaf_at(std::byte* memory, const ParameterSpec& spec, DType dtype) const;
  void point(std::uint32_t parameter, std::byte* memory);
  void release(std::uint32_t parameter);

  const Layout& layout_;
  c10::Device device_;
  bool adopted_ = false;
  std::unique_ptr<ParameterGuard> guard_;  // null if accesses to released parameters throw instead
  std::vector<at::Tensor> tensors_;
  std::vector<c10::Storage> storages_;  // storages of the tensors
  std::vector<std::string> names_;      // names of adopted tensors
  std::vector<bool> trained_;           // by parameter: whether it is trained
};

at::ScalarType scalar_type(DType dtype) noexcept;

}  // namespace artesian::zero3
