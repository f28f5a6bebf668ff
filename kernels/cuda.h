// The kernels on a CUDA device: the functions of adam.h, cast.h, gradient.h and others, with device
// pointers and a stream. They give the same bits as the naive versions (see Note [Same bits on the
// device] in element.cuh). Plain C++: this header needs the CUDA toolkit but not nvcc.
//
// Every function enqueues on `stream`, does not wait, and allocates nothing. Arrays must live until
// the stream has done the work; they need only the alignment of their elements (16 bytes is
// faster), and must not overlap unless stated. Errors: Io, if the launch is refused, for instance
// after an earlier failure of the device.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/adam.h"
#include "kernels/cross_entropy.h"
#include "kernels/gradient.h"
#include "kernels/rms_norm.h"
#include "kernels/rotary.h"
#include "kernels/swiglu.h"
#include "kernels/update.h"

namespace artesian::kernels::cuda {

/// As kernels::adam_step for each piece, in as few launches as their arguments allow; all pointers
/// are device pointers. All pieces have the same dtypes, and all have whole or all have split
/// master weights.
Result<void> adam_steps(std::span<const AdamPiece> pieces, const AdamStep& step,
                        cudaStream_t stream);

/// As kernels::update for each piece, in the same way. The same arrays are null in all pieces.
Result<void> update_steps(std::span<const AdamPiece> pieces, const UpdateStep& step,
                          cudaStream_t stream);

/// As kernels::expand, without overlap.
Result<void> expand(const void* source, DType source_dtype, float* target, std::uint64_t count,
                    cudaStream_t stream);

/// As kernels::narrow. If any result is not finite, *not_finite (device memory, cleared by the
/// caller) becomes 1.
Result<void> narrow(const float* source, void* target, DType target_dtype, std::uint64_t count,
                    std::uint32_t* not_finite, cudaStream_t stream);

/// As kernels::accumulate_piece of each, with not_finite as in narrow. The accumulators do not
/// overlap.
Result<void> accumulate_gradients(std::span<const GradientPiece> pieces,
                                  const GradientDtypes& dtypes, std::uint32_t* not_finite,
                                  cudaStream_t stream);

/// As kernels::sum_squares, with the same bits. leaf_sums: device memory.
Result<void> sum_squares(const void* data, DType dtype, std::uint64_t count, double* leaf_sums,
                         cudaStream_t stream);

/// As kernels::cross_entropy_rows; all pointers are device pointers.
Result<void> cross_entropy_rows(const CrossEntropyRows& rows, cudaStream_t stream);

/// As kernels::swiglu; all pointers are device pointers.
Result<void> swiglu(const GatedRows& rows, void* product, cudaStream_t stream);

/// As kernels::swiglu_gradient; all pointers are device pointers.
Result<void> swiglu_gradient(const GatedRows& rows, const SwigluGradient& gradient,
                             cudaStream_t stream);

/// As kernels::rms_norm; all pointers are device pointers.
Result<void> rms_norm(const RmsNormRows& rows, void* output, float* inverses, cudaStream_t stream);

/// As kernels::rms_norm_gradient; all pointers are device pointers.
Result<void> rms_norm_gradient(const RmsNormRows& rows, const RmsNormGradient& gradient,
                               cudaStream_t stream);

/// As kernels::sum_groups; all pointers are device pointers.
Result<void> sum_groups(const float* source, std::uint64_t rows, std::uint64_t width, float* target,
                        cudaStream_t stream);

/// As kernels::turn_rows; all pointers are device pointers.
Result<void> turn_rows(const RotaryRows& rows, Turn turn, cudaStream_t stream);

}  // namespace artesian::kernels::cuda
