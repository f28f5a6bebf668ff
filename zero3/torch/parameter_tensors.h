// The tensors that a model sees: one leaf per parameter, made once, or adopted from a model that
// has its own; it asks for a gradient unless the parameter is frozen. Gathering swaps the memory
// behind its storage; saved views follow, the version counter does not move. A change of value (a
// step) bumps the version, so that a backward over a stale graph raises as in PyTorch.
//
// What a released parameter is:
//   own leaves   point at the guard's address space: an access ends the process, by name. A kernel
//                on a GPU that touches it fails with "an illegal memory access": no line can name
//                it, since a GPU's fault has no handler. A copy out of it fails at once.
//   adopted ones are refused: any access to their memory throws c10::Error, by name, on every
//                device. Where this LibTorch has no such refusal (released_tensors_throw() in
//                storage_refusal.h) they point at the guard, too.
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

/// Checks that the tensors of a caller's model can become ours, tensors[i] being parameters[i].
/// `others` are what else the model holds: buffers, plain attributes. Errors: Invalid, naming the
/// tensors: a shape, dtype or device that does not fit (they are on the CPU, or, all alike, on
/// `device`); one that is no leaf; two that share memory;
/// memory shared with one of the others, which would keep the old values; one that an engine has
/// already.
Result<void> check_adoptable(const std::vector<ParameterSpec>& parameters,
                             std::span<const at::Tensor> tensors,
                             std::span<const NamedTensor> others, c10::Device device = c10::kCPU);

class ParameterTensors {
 public:
  /// Leaves of our own. Those of a unit in its UnitPlacement::computed; `placement` must outlive
  /// them. Errors: Exhausted (address space for the guard).
  static Result<std::unique_ptr<ParameterTensors>> create(
      const std::vector<ParameterSpec>& parameters, const Placement& placement,
      c10::Device device = c10::kCPU);
  /// Takes a model's own tensors over: from here on their memory is ours, on `device`, contiguous,
  /// in UnitPlacement::computed, and all are released. Identity, shape, requires_grad, hooks and
  /// ties stay. Views of their old memory that somebody still holds throw when they are read, and
  /// so do the tensors themselves in a forked child. Errors: those of check_adoptable, after which
  /// nothing has changed; Exhausted (the guard's).
  static Result<std::unique_ptr<ParameterTensors>> adopt(
      const std::vector<ParameterSpec>& parameters, const Placement& placement,
      std::span<const at::Tensor> tensors, std::span<const NamedTensor> others,
      c10::Device device = c10::kCPU);
  /// Adopted tensors outlive this object: reading them is an error that says so.
  ~ParameterTensors();
  ParameterTensors(const ParameterTensors&) = delete;
  ParameterTensors& operator=(const ParameterTensors&) = delete;

  const at::Tensor& at(std::uint32_t parameter) const { return tensors_[parameter]; }
  c10::Device device() const noexcept { return device_; }
  /// Points the unit's parameters into its slot.
  void bind(std::uint32_t unit, std::byte* slot);
  /// Releases them.
  void unbind(std::uint32_t unit);
  /// False once the caller has given the tensor other memory. Binding does not take it back.
  bool has_own_memory(std::uint32_t parameter) const {
    return tensors_[parameter].storage().unsafeGetStorageImpl() ==
           storages_[parameter].unsafeGetStorageImpl();
  }
  /// The tensor has this memory again, after the caller has given it other; values are those that
  /// are there. Errors: Invalid: other memory of another shape or dtype.
  Result<void> take_memory_back(std::uint32_t parameter);
  /// Marks all values as changed, except of parameters frozen from the beginning.
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
  std::unique_ptr<ParameterGuard> guard_;  // null: released parameters are refused
  std::vector<at::Tensor> tensors_;
  std::vector<c10::Storage> storages_;  // theirs
  std::vector<std::string> names_;      // names of adopted tensors
  std::vector<bool> trained_;           // by parameter: it is trained
};

at::ScalarType scalar_type(DType dtype) noexcept;

}  // namespace artesian::zero3
