// A DeviceGroup on NCCL, which moves bytes between GPUs over NVLink, PCIe or a network. All to all
// is a group of sends and receives, which only copy: bits do not depend on NCCL's algorithms.
//
// NCCL is told not to block: where one of its calls waits for other ranks, this polls it up to the
// deadline.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "comm/device_group.h"
#include "comm/group.h"
#include "comm/nccl.h"

namespace artesian::comm {

/// This rank's GPU, which must be the current one of the thread.
struct NcclDevice {
  std::string name{};      // differs between all GPUs of all machines; empty: no GPU
  void* stream = nullptr;  // cudaStream_t: the queue Bus; must outlive the group
};

/// Connects the ranks' GPUs, up to the group's deadline; all ranks must call it. Returns null on
/// all ranks if one of them cannot, with a line in the log of rank 0 unless none has a GPU: two
/// ranks have the same one, which NCCL refuses, there is no NCCL (`nccl` is its error), or it
/// cannot connect. Errors: the group's.
Result<std::unique_ptr<DeviceGroup>> connect_nccl(Group& group, const NcclDevice& device,
                                                  const Result<Nccl>& nccl);

}  // namespace artesian::comm
