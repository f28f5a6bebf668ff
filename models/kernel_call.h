// Helpers with which autograd functions call the kernels of kernels/: on the CPU divided by rows
// over LibTorch's threads, on a GPU on LibTorch's current stream.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "base/dtype.h"

#ifdef ARTESIAN_HAVE_CUDA
#include <ATen/DeviceAccelerator.h>

#include "kernels/cuda.h"
#endif

namespace artesian::models {

/// The floating-point dtype of a tensor, if kernels support it.
inline DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::Float32;
    case at::kHalf: return DType::Float16;
    case at::kBFloat16: return DType::BFloat16;
    default: break;
  }
  C10_THROW_ERROR(
      Error, c10::str("kernel: got ", tensor.scalar_type(), ", allowed float, half, bfloat16"));
}

/// Returns array + `count` elements of `dtype`; null remains null.
template <typename Array>
Array* advanced(Array* array, std::uint64_t count, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<Array>, const std::byte, std::byte>;
  return array == nullptr ? nullptr : static_cast<Byte*>(array) + count * dtype_size(dtype);
}

/// Calls body(begin, end) for parts of [0, rows), of at least 32,768 elements each, on LibTorch's
/// threads.
template <typename Body>
void over_rows(c10::Device device, std::uint64_t rows, std::uint64_t width, const Body& body) {
  TORCH_CHECK(device.is_cpu(), "kernel: got ", device.str(), ", allowed cpu or cuda");
  const auto least = static_cast<std::int64_t>(32768 / std::max<std::uint64_t>(width, 1) + 1);
  at::parallel_for(0, static_cast<std::int64_t>(rows), least,
                   [&](std::int64_t begin, std::int64_t end) {
                     body(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
                   });
}

#ifdef ARTESIAN_HAVE_CUDA
/// Enqueues the work of call(stream).
template <typename Call>
void enqueue(c10::Device device, const Call& call) {
  const c10::Stream stream = at::accelerator::getCurrentStream(device.index());
  const auto launched = call(static_cast<cudaStream_t>(stream.native_handle()));
  TORCH_CHECK(launched.has_value(), launched.error().to_string());
}
#endif

}  // namespace artesian::models
