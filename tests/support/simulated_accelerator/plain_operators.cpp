#include "tests/support/simulated_accelerator/plain_operators.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tests/support/simulated_accelerator/kernel_tensors.h"

namespace artesian::test_support {
namespace {

c10::Device device_or_current(std::optional<at::Device> device) {
  return device.value_or(c10::Device(simulated, current_device()));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, &tensor_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::get_default_dtype_as_scalartype()));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &tensor_memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  const auto elements = static_cast<std::size_t>(self.storage_offset() + self.numel());
  const std::size_t bytes = elements * self.itemsize();
  if (bytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.data() == nullptr || strides.size() != sizes.size()) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_none(at::Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, tensor_memory().allocate(0),
                    &tensor_memory(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

void copy_bare(const at::Tensor& to, const at::Tensor& from) {
  const Bare bare;
  to.copy_(from);
}

void copy_from_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  LateQueues& queues = accelerator().queues;
  const bool late = non_blocking && source.numel() > 0 && is_pinned(source.const_data_ptr());
  // A late copy copies the bytes of that time.
  const at::Tensor from = late ? source.detach() : source.detach().clone();
  queues.enqueue(current_queue(), "a copy from the host", {range_of(target, true)},
                 [to = for_kernels(target), from] { copy_bare(to, from); });
  if (!non_blocking) queues.finish(queues.record(current_queue()));
}

void copy_to_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  LateQueues& queues = accelerator().queues;
  const at::Tensor to = target.detach();
  const std::vector<Range> read{range_of(source, false)};
  const bool pinned = is_pinned(to.const_data_ptr());
  if (non_blocking && pinned && to.is_non_overlapping_and_dense()) {
    if (!queues.is_used(range_at(to.const_data_ptr(), to.nbytes(), true))) {
      std::memset(to.mutable_data_ptr(), 0xff, to.nbytes());  // shows if it is read too soon
    }
    std::vector<Range> ranges{read[0], range_at(to.const_data_ptr(), to.nbytes(), true)};
    queues.enqueue(current_queue(), "a copy to the host", std::move(ranges),
                   [to, from = for_kernels(source)] { copy_bare(to, from); });
    return;
  }
  queues.finish(queues.record(current_queue()));
  queues.touch(current_queue(), "a copy to the host", read);
  copy_bare(to, for_kernels(source));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  const bool between = is_simulated(source) && is_simulated(target);
  const c10::DeviceGuard guard(is_simulated(target) ? target.device() : source.device());
  if (between) {
    accelerator().queues.enqueue(
        current_queue(), "a copy", {range_of(target, true), range_of(source, false)},
        [to = for_kernels(target), from = for_kernels(source)] { copy_bare(to, from); });
  } else if (is_simulated(target)) {
    copy_from_host(source, target, non_blocking);
  } else {
    copy_to_host(source, target, non_blocking);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar item(const at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  LateQueues& queues = accelerator().queues;
  accelerator().count("aten::_local_scalar_dense", /*waited=*/true);
  queues.finish(queues.record(current_queue()));
  queues.touch(current_queue(), "item()", {range_of(self, false)});
  const Bare bare;
  return for_kernels(self).item();
}

void record_stream(at::Tensor& self, at::Stream stream) {
  tensor_memory().recordStream(self.storage().data_ptr(), stream);
}

at::Tensor unfold(const at::Tensor& self, std::int64_t axis, std::int64_t size, std::int64_t step) {
  return at::native::unfold(self, axis, size, step);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("view", &at::native::view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_none);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("record_stream", &record_stream);
}

}  // namespace

at::Tensor empty_like_on(c10::DeviceIndex device, const at::Tensor& model) {
  return empty_strided(model.sizes(), model.strides(), model.scalar_type(), {},
                       c10::Device(simulated, device), {});
}

}  // namespace artesian::test_support
