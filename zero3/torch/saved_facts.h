// What a checkpoint stores about LibTorch: the states of its generators, for modules that draw
// random numbers, and the facts that results depend on besides the training's state.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "zero3/checkpoint/checkpoint_load.h"
#include "zero3/checkpoint/checkpoints.h"

namespace artesian::zero3 {

/// Facts that results depend on besides the training's state: threads, instruction set, compute
/// dtype and device, version of LibTorch.
std::map<std::string, std::string> facts_of_bits(c10::Device device, DType compute_dtype);
/// Adds the states of the default generators, "cpu" and that of the GPU, "cuda:i", and
/// facts_of_bits(). Errors: those that LibTorch throws.
Result<void> add_facts(SaveRequest& request, c10::Device device, DType compute_dtype);
/// Restores the generators that exist here. Logs one line if the facts differ from those of the
/// saved run. Errors: Corrupt: not a state of that generator.
Result<void> go_on_from(const LoadedCheckpoint& loaded, c10::Device device, DType compute_dtype);

/// Describes a module's buffer, which must be contiguous, in the CPU's memory, and outlive the
/// result. Errors: Invalid: a dtype that checkpoints do not support.
Result<BufferToSave> buffer_to_save(const std::string& name, const at::Tensor& tensor);
/// Makes a new tensor from a loaded buffer. Errors: Invalid, as above.
Result<at::Tensor> tensor_of(const LoadedBuffer& loaded);

}  // namespace artesian::zero3
