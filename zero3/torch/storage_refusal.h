// Makes accesses to a storage throw for a while. LibTorch has such a state for tensors without
// memory, with a custom message, and checks it at every access to a data pointer. It has no
// function to leave the state, which is one private flag. Naming the flag in an explicit
// instantiation is legal C++; whether this LibTorch has it is tested when the build is configured
// (ARTESIAN_STORAGE_CAN_REFUSE, zero3/CMakeLists.txt).
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

namespace artesian::zero3 {

/// True if refuse() works with this LibTorch.
bool released_tensors_throw() noexcept;

/// From now on each access throws c10::Error with this message. The storage keeps its size and any
/// memory.
void refuse(c10::StorageImpl& storage, std::string message);

/// Gives the storage this memory, and allows access to it.
void allow(c10::StorageImpl& storage, at::DataPtr memory);

}  // namespace artesian::zero3
