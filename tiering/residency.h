// Residency: which units have their parameters gathered in device memory now, and the moves that
// bring them there. A unit is Absent, Fetching (its transfers are in flight) or Live.
//
// By which route a unit comes, its placement has decided. One that stays where it is is aliased:
// its slot is its home, nothing moves.
//
// On the host backend the device tier is a budgeted range of RAM. A 16-bit shard that is computed
// in fp32 is read into the tail of its fp32 slot and expanded in place, so no staging buffer is
// needed; each block is verified while it is hot, just before it is expanded. The expansion runs in
// waves: a wave over elements [p, q) overwrites sources up to 2q - n, so it may run in parallel as
// long as 2q - n <= p.
//
// On a device with memory of its own (tiering/device/device.h) all that moves comes through a
// DeviceLoader. Acquiring makes the queue Compute wait for the slot's copies, unpinning marks where
// computing with it ends, and whatever is copied to that memory next waits for that mark.
//
// Note [Units in shares]: of a unit that is cut among ranks the shard is one rank's share, and the
// slot has room for all. What is stored lies at the end of each share's part of the slot, whence it
// is expanded in place. This rank's comes there from its home, or from the update; then the slot
// lacks the others', and whoever acquires it brings them: shares() says where they go, and
// join_shares() that they are there. From then on it is as any other slot, until its home is
// written anew.
//
// Thread: the compute thread only. Slots are pinned while computing with them; only unpinned ones
// can be evicted. Nothing here decides what to fetch or evict: that is the caller's
// (zero3/plan/prefetcher.h).
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
  Route route = Route::Disk;        // from the shard to where compute reads it; see stays()
  std::uint64_t image = 0;          // elements
  std::uint64_t share = 0;          // of these in the shard, where that has not all of them
  std::uint64_t share_first = 0;    // the first of those
  bool persistent = false;          // its slot comes from the far end, away from those that move
};

class Residency final : public UnitSlots {
 public:
  /// `loader`: for a device with memory of its own, else null. All must outlive it.
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
  /// True if a slot that is acquired, and whose home is not about to be written, has this rank's
  /// share alone: Note [Units in shares].
  bool lacks_shares(std::uint32_t unit) const noexcept;
  /// True if a slot has the parameters of all ranks.
  bool is_whole(std::uint32_t unit) const noexcept;
  /// True if this rank's share is in the slot, or comes there without waiting when it is acquired.
  bool has_share(std::uint32_t unit) const noexcept;
  /// Where the stored bytes of each rank's share are in such a slot, or are to go.
  std::vector<std::span<std::byte>> shares(std::uint32_t unit) noexcept;
  /// They are there.
  void join_shares(std::uint32_t unit) noexcept;
  /// The home of a unit that is not Fetching is about to be written anew, all of it, with a refresh
  /// for each part. Until end_refresh nothing is read from it: a slot that starts is filled by
  /// these refreshes, and what a slot holds before is not to be used.
  void begin_refresh(std::uint32_t unit) noexcept;
  /// True between begin_refresh and end_refresh.
  bool refreshes(std::uint32_t unit) const noexcept;
  /// True if a refresh of the unit reaches its slot, or its home is the slot.
  bool follows(std::uint32_t unit) const noexcept;
  /// Ends a refresh. A slot that was evicted during the refresh and gathered again is loaded anew.
  /// Errors: Io, Corrupt, Timeout.
  Result<void> end_refresh(std::uint32_t unit) noexcept;
  /// After elements [first, first + count) of the image changed in the home to `fresh` (of the
  /// stored dtype): brings the slot up to date, if there is one. Any thread, for disjoint ranges.
  void refresh(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
               const std::byte* fresh) noexcept;
  /// The same for a device with memory of its own: enqueues in `queue`; `fresh` is host memory in
  /// ToDevice, and belongs to the copy until that queue has passed, or device memory in Compute.
  /// Compute thread only; what computes next with the slot must be ordered after it.
  Result<void> refresh_by_copy(Queue queue, std::uint32_t unit, std::uint64_t first,
                               std::uint64_t count, const std::byte* fresh) noexcept;

  /// Returns the seconds spent waiting for transfers, or, with a loader, for loads to finish.
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }
  /// Returns the seconds in which the thread pool verified, expanded or copied parameters.
  double cast_seconds() const noexcept { return static_cast<double>(cast_ns_) * 1e-9; }
  /// Bytes cast or copied into slots since creation (aliased: 0).
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
  Result<void> start_by_copy(Slot& slot, aio::Priority priority) noexcept;
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
  struct Retired {  // memory that was a slot, until computing with it has ended
    std::byte* begin;
    std::byte* end;
    DeviceFence used;
  };
  std::vector<Retired> retired_;
};

}  // namespace artesian::tiering
