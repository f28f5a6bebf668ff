// Tensors of the simulated accelerator as kernels see them: CPU tensors over the mapping that
// kernels may touch. They hold no reference: enqueued work has raw pointers, as on a GPU.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <optional>
#include <utility>

#include "tests/support/simulated_accelerator/accelerator.h"

namespace artesian::test_support {

inline bool is_simulated(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == simulated;
}

/// Keeps the mark of a Python number, which affects the dtype of results.
inline void keep_wrapped(const at::Tensor& from, const at::Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

/// Throws if the storage refuses to be read.
inline at::Tensor for_kernels(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  void* at = nullptr;
  if (storage->nbytes() > 0) {
    at = accelerator().memory.for_kernels(
        const_cast<std::byte*>(static_cast<const std::byte*>(storage->data())));
  }
  c10::Storage seen(c10::Storage::use_byte_size_t(), storage->nbytes(), at::DataPtr(at, c10::kCPU),
                    nullptr, false);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(seen), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  keep_wrapped(tensor, result);
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

/// Returns the range of bytes that holds its elements.
inline Range range_of(const at::Tensor& tensor, bool written) {
  const auto* data = static_cast<const std::byte*>(tensor.storage().data());
  if (tensor.numel() == 0) return {data, data, written};
  std::int64_t last = 0;
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
    last += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  const auto size = static_cast<std::int64_t>(tensor.itemsize());
  const std::byte* begin = data + tensor.storage_offset() * size;
  return {begin, begin + (last + 1) * size, written};
}

/// Lets kernels run without autograd, autocast or other modes of the caller.
struct Bare {
  at::DisableRecordFunctionGuard quiet;
  c10::impl::ForceDispatchKeyGuard keys{
      c10::default_included_set, c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                     c10::autocast_dispatch_keyset | c10::default_excluded_set};
};

template <typename Visit>
c10::IValue map_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(visit(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(visit(*tensor))
                                        : std::optional<at::Tensor>());
    }
    return list;
  }
  return value;
}

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  static_cast<void>(map_tensors(value, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  }));
}

}  // namespace artesian::test_support
