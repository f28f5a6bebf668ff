// Residency: which units have their parameters gathered in device memory now, and the transfers
// that gather them. A unit is Absent, Fetching (its transfers are in flight) or Live.
//
// The placement has decided each unit's route. A unit whose home is in device memory is aliased:
// its slot is its home, and nothing moves.
//
// On the host backend the device tier is a budgeted range of RAM. A 16-bit shard that is computed
// in fp32 is read into the tail of its fp32 slot and expanded in place, so no staging buffer is
// needed. Each block is verified just before it is expanded, while it is in the cache. The
// expansion runs in waves: a wave over elements [p, q) overwrites sources up to 2q - n, so it may
// run in parallel as long as 2q - n <= p.
//
// On a device with memory of its own (tiering/device/device.h) a DeviceLoader moves all bytes.
// Acquiring makes the queue Compute wait for the slot's copies. Unpinning marks where computing
// with the slot ends, and the next copy to that memory waits for the mark.
//
// Note [Units in shares]: if a unit is divided among ranks, the shard holds one rank's share, and
// the slot has room for all shares. Stored bytes lie at the end of each share's part of the slot
// and are expanded in place. This rank's share is read from its home or written by the update. The
// slot then lacks the other shares, and its acquirer must fetch them: shares() tells where they go,
// and join_shares() reports that they are complete. From then on the slot is like any other, until
// its home is rewritten. On a separate device the queue Bus may fetch them after order_bus().
//
// Thread: the compute thread only. Slots are pinned while computing with them; only unpinned ones
// can be evicted. The caller decides what to fetch or evict (zero3/plan/prefetcher.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/executor.h"
#include "tiering/device_loader.h"
#include "tiering/route.h"
#include "tiering/tier_store.h"
#include "tiering/unit_slots.h"

namespace artesian::tiering {

struct ResidentUnit {
  ShardId shard{};
  DType stored = DType::Float32;    // dtype of the shard
  DType computed = DType::Float32;  // dtype of the slot
  Route route = Route::Disk;        // from the shard to the memory that compute reads; see stays()
  std::uint64_t image = 0;          // elements
  std::uint64_t share = 0;          // elements of the image that the shard holds, if not all
  std::uint64_t share_first = 0;    // index of the first element of the share
  bool persistent = false;          // its slot is placed at the far end, away from evictable slots
};

class Residency final : public UnitSlots {
 public:
  /// `loader`: for a device with memory of its own, else null. All arguments must outlive it.
  Residency(const std::vector<ResidentUnit>& units, TierStore& store, pinned::Pool& device,
            Executor& executor, DeviceLoader* loader = nullptr);
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;
  ~Residency() override;  // checks that `clear` succeeded

  SlotState state(std::uint32_t unit) const noexcept override;
  bool pinned(std::uint32_t unit) const noexcept override;
  Result<void> start(std::uint32_t unit, aio::Priority priority) noexcept override;
  Result<void> acquire(std::uint32_t unit) noexcept override;
  Result<void> unpin(std::uint32_t unit) noexcept override;
  Result<void> drop(std::uint32_t unit) noexcept override;
  Result<void> clear() noexcept override;
  std::byte* data(std::uint32_t unit) noexcept override;
  /// True if an acquired slot, whose home is not about to be written, would hold only this rank's
  /// share: Note [Units in shares].
  bool lacks_shares(std::uint32_t unit) const noexcept;
  /// True if a slot has the parameters of all ranks.
  bool is_whole(std::uint32_t unit) const noexcept;
  /// True if this rank's share is in the slot, or will be there without waiting when the slot is
  /// acquired.
  bool has_share(std::uint32_t unit) const noexcept;
  /// Where the stored bytes of each rank's share are, or go, in such a slot.
  std::vector<std::span<std::byte>> shares(std::uint32_t unit) noexcept;
  /// Makes the queue Bus wait until this rank's share may be sent, and the other parts of the slot
  /// overwritten. Errors: Io (the device).
  Result<void> order_bus(std::uint32_t unit) noexcept;
  /// Reports that all shares are in the slot, and waited for. Errors: Io (the device).
  Result<void> join_shares(std::uint32_t unit) noexcept;
  /// Announces that the whole home of a unit that is not Fetching will be rewritten, with a refresh
  /// for each part. Until end_refresh nothing is read from the home: a slot that starts meanwhile
  /// is filled by these refreshes, and earlier content of a slot must not be used.
  void begin_refresh(std::uint32_t unit) noexcept;
  /// True between begin_refresh and end_refresh.
  bool refreshes(std::uint32_t unit) const noexcept;
  /// True if refreshes of the unit reach its slot, or if its home is the slot.
  bool follows(std::uint32_t unit) const noexcept;
  /// Ends a refresh. A slot that was evicted and gathered again during the refresh is reloaded.
  /// Errors: Io, Corrupt, Timeout.
  Result<void> end_refresh(std::uint32_t unit) noexcept;
  /// Call it after elements [first, first + count) of the image changed in the home to `fresh` (of
  /// the stored dtype): updates the slot, if there is one. Any thread, for disjoint ranges.
  void refresh(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
               const std::byte* fresh) noexcept;
  /// As refresh, for a device with memory of its own: enqueues in `queue`. For ToDevice, `fresh` is
  /// host memory that must stay unchanged until the queue has passed the copy; for Compute it is
  /// device memory. Compute thread only; the next computation with the slot must be ordered after
  /// the copy.
  Result<void> refresh_by_copy(Queue queue, std::uint32_t unit, std::uint64_t first,
                               std::uint64_t count, const std::byte* fresh) noexcept;

  /// Returns the seconds spent waiting for transfers, or, with a loader, for loads to finish.
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }
  /// Returns the seconds in which the thread pool verified, expanded or copied parameters.
  double cast_seconds() const noexcept { return static_cast<double>(cast_ns_) * 1e-9; }
  /// Bytes cast or copied into slots since creation (0 for aliased slots).
  std::uint64_t bytes_to_device() const noexcept {
    return loader_ != nullptr ? loader_->device().bytes_to_device() : bytes_to_device_;
  }

 private:
  class Slot;
  Slot& at(std::uint32_t unit) const noexcept;
  void go(Slot& slot, SlotState to) noexcept;
  Result<void> finish_writes(const Slot& slot) noexcept;
  Result<void> read_pieces(Slot& slot, aio::Priority priority) noexcept;
  Result<void> await_piece(const Slot& slot, Transfer& piece) noexcept;
  Result<void> await_pieces(Slot& slot, std::uint64_t element_end) noexcept;
  Result<void> load(Slot& slot) noexcept;
  Result<void> load_missed(Slot& slot) noexcept;
  Result<void> load_wave(Slot& slot, std::uint64_t begin, std::uint64_t end) noexcept;
  Result<void> load_share(Slot& slot) noexcept;
  Result<void> join_shares_there(Slot& slot) noexcept;
  Result<void> start_by_copy(Slot& slot, aio::Priority priority) noexcept;
  Result<void> refresh_share_by_copy(Queue queue, Slot& slot, std::uint64_t first,
                                     std::uint64_t count, const std::byte* fresh) noexcept;
  void waited_since(std::uint64_t begin_ns) noexcept;
  Result<void> wait_for_copies(Slot& slot) noexcept;
  Result<void> wait_for_earlier_use(const Slot& slot) noexcept;

  std::vector<std::unique_ptr<Slot>> slots_;
  TierStore& store_;
  pinned::Pool& device_;
  Executor& executor_;
  DeviceLoader* const loader_;
  std::uint64_t bytes_to_device_ = 0;
  std::uint64_t wait_ns_ = 0;
  std::uint64_t cast_ns_ = 0;
  struct Retired {  // memory of a former slot, until computing with it has ended
    std::byte* begin;
    std::byte* end;
    DeviceFence used;
  };
  std::vector<Retired> retired_;
};

}  // namespace artesian::tiering
