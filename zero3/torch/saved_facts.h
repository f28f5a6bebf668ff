// What a checkpoint keeps of LibTorch: where its generators are, for modules that draw numbers
// themselves, and what the bits of a training depend on beside its state.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <string>

#include "base/dtype.h"
#include "base/result.h"

namespace artesian::zero3 {

/// States of the default generators, "cpu" and "cuda:i" of that GPU. Errors: what LibTorch throws.
Result<std::map<std::string, std::string>> generator_states(c10::Device device);
/// Those that there are here go on where they were. Errors: Corrupt: not a state of that generator.
Result<void> restore_generators(const std::map<std::string, std::string>& states,
                                c10::Device device);

/// Threads, instruction set, dtype and device to compute with, version of LibTorch.
std::map<std::string, std::string> facts_of_bits(c10::Device device, DType compute_dtype);
/// Says once where a training goes on under other facts than it was saved under.
void note_other_facts(const std::map<std::string, std::string>& saved,
                      const std::map<std::string, std::string>& now);

}  // namespace artesian::zero3
