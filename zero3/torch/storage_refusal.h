// A storage whose memory may not be touched for a while. LibTorch has such a state for tensors
// without memory, with a message of ours, and checks it in every access to a data pointer; what it
// lacks is the way back, which is one private flag. Naming it in an explicit instantiation is legal
// C++; whether this LibTorch has it is found out when the build is configured
// (ARTESIAN_STORAGE_CAN_REFUSE, zero3/CMakeLists.txt).
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

namespace artesian::zero3 {

/// True if refuse() works with this LibTorch.
bool released_tensors_throw() noexcept;

/// From here on each access throws c10::Error with this message. The storage keeps its size, and
/// its memory, if it has any.
void refuse(c10::StorageImpl& storage, std::string message);

/// Gives it memory, which may be accessed.
void allow(c10::StorageImpl& storage, at::DataPtr memory);

}  // namespace artesian::zero3
