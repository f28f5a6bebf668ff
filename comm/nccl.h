// The functions of NCCL that nccl_group.cpp calls, with their stable C types (nccl.h, 2.17 and
// later). They are looked up in the library that PyTorch brings, so that nothing is linked against
// it, and a build needs none of its headers.
#pragma once

#include <array>
#include <climits>
#include <cstddef>

#include "base/result.h"

namespace artesian::comm {

struct NcclComm;  // ncclComm_t points to one
struct NcclId {   // ncclUniqueId
  std::array<char, 128> bytes{};
};

/// ncclResult_t.
enum class NcclResult : int { Success = 0, RemoteError = 6, InProgress = 7 };

/// ncclConfig_t of 2.17, which later versions take, too.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;
  std::array<int, 3> ctas{INT_MIN, INT_MIN, INT_MIN};  // NCCL's choice
  const char* net = nullptr;
};
static_assert(sizeof(NcclConfig) == 40);

struct Nccl {
  static constexpr int uint8 = 1;  // ncclDataType_t

  NcclResult (*get_version)(int*) = nullptr;
  NcclResult (*get_unique_id)(NcclId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm**, int ranks, NcclId, int rank,
                                      NcclConfig*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm*, NcclResult*) = nullptr;
  NcclResult (*comm_abort)(NcclComm*) = nullptr;
  NcclResult (*comm_finalize)(NcclComm*) = nullptr;
  NcclResult (*comm_destroy)(NcclComm*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void*, std::size_t, int type, int peer, NcclComm*,
                     void* stream) = nullptr;
  NcclResult (*recv)(void*, std::size_t, int type, int peer, NcclComm*, void* stream) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
};

/// The functions of the NCCL that this process has loaded. Errors: Unsupported, also if the
/// variable ARTESIAN_NCCL is 0.
Result<Nccl> loaded_nccl();

}  // namespace artesian::comm
