// What a checkpoint keeps of LibTorch: where its generators are, for modules that draw numbers
// themselves, and what the bits of a training depend on beside its state.
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

/// What the bits of a training depend on beside its state: threads, instruction set, dtype and
/// device to compute with, version of LibTorch.
std::map<std::string, std::string> facts_of_bits(c10::Device device, DType compute_dtype);
/// Adds the states of the default generators, "cpu" and "cuda:i" of that GPU, and
/// facts_of_bits(). Errors: what LibTorch throws.
Result<void> add_facts(SaveRequest& request, c10::Device device, DType compute_dtype);
/// Generators that there are here go on where they were. Says so once where the training goes on
/// under other facts than it was saved under. Errors: Corrupt: not a state of that generator.
Result<void> go_on_from(const LoadedCheckpoint& loaded, c10::Device device, DType compute_dtype);

/// A buffer of a module, in the CPU's memory and contiguous; it must outlive what it is made to.
/// Errors: Invalid: elements that a checkpoint cannot have.
Result<BufferToSave> buffer_to_save(const std::string& name, const at::Tensor& tensor);
/// A tensor of its own. Errors: Invalid, as above.
Result<at::Tensor> tensor_of(const LoadedBuffer& loaded);

}  // namespace artesian::zero3
