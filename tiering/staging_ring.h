// StagingRing: the reserved host buffers through which optimizer state, fresh parameters and
// spilled gradients stream. Items are taken in turn. Taking an item waits for its previous
// transfers, so reads of later items and writes of earlier ones are in flight during the work on
// the current one. The memory is reserved at start, so that the ring and other users cannot starve
// each other.
//
// Thread: the compute thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tiering/device/host_device.h"
#include "tiering/tier_store.h"

namespace artesian::tiering {

/// One item: `bytes` of page-locked memory and the transfers in flight over parts of it, to and
/// from the disk and the device.
class StagingItem final : public BufferOwner {
 public:
  StagingItem(BufferLease memory, TierStore& store, Device& device, bool borrowed) noexcept;
  ~StagingItem();  // checks that nothing is in flight

  std::byte* data() const noexcept { return memory_.data(); }
  std::uint64_t size() const noexcept { return memory_.size(); }
  bool borrowed() const noexcept { return borrowed_; }
  /// Start a transfer between `range` of the shard and this item's bytes from `item_offset`.
  void read(ShardId id, ByteRange range, std::uint64_t item_offset,
            aio::Priority priority) noexcept;
  void write(ShardId id, ByteRange range, std::uint64_t item_offset) noexcept;
  /// Start a copy between device memory and this item's bytes. Errors: Io (the device).
  Result<void> copy_to_host(std::uint64_t item_offset, const std::byte* source,
                            std::uint64_t bytes) noexcept;
  Result<void> copy_to_device(std::byte* target, std::uint64_t item_offset,
                              std::uint64_t bytes) noexcept;
  /// Keeps this item from being reused until everything enqueued in ToDevice so far has passed.
  Result<DeviceFence> hold() noexcept;
  /// Waits for all transfers of this item. Errors: the first one's.
  Result<void> finish() noexcept;
  /// True if `finish` would return without waiting.
  bool idle() const noexcept;
  void give_back(std::byte*, std::uint64_t) noexcept override {
    ARTESIAN_CHECK(leases_ > 0, leases_);
    --leases_;
  }

 private:
  struct InFlight {
    Transfer transfer;
    ShardId shard{};
  };
  InFlight& next(ShardId id) noexcept;
  BufferLease part(std::uint64_t item_offset, std::uint64_t length) noexcept;

  static constexpr std::size_t transfers_max = 4;
  BufferLease memory_;
  TierStore& store_;
  Device& device_;
  const bool borrowed_;
  DeviceFence from_device_;
  DeviceFence to_device_;
  std::array<InFlight, transfers_max> in_flight_;
  std::size_t count_ = 0;
  int leases_ = 0;
};

class StagingRing {
 public:
  /// Takes `count` items of `item_bytes` from the pool. Errors: Exhausted.
  static Result<std::unique_ptr<StagingRing>> create(TierStore& store, pinned::Pool& pool,
                                                     std::uint64_t item_bytes, std::uint32_t count,
                                                     Device& device = host_device());
  TierStore& store() const noexcept { return store_; }
  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(items_.size()); }
  /// Item number `turn` of an endless sequence. It may have transfers in flight: call `finish`
  /// first.
  StagingItem& at(std::uint64_t turn) noexcept {
    ARTESIAN_CHECK(!items_.empty());
    return *items_[turn % items_.size()];
  }
  std::uint64_t item_bytes() const noexcept { return items_.front()->size(); }
  /// Lists the memory of the ring's own items.
  std::vector<std::span<std::byte>> buffers() const;
  /// Adds an item, not among at(), in memory that is not the ring's own: at least item_bytes.
  /// remove() returns the memory, when nothing is in flight.
  StagingItem& add_borrowed(BufferLease memory);
  void remove(const StagingItem& borrowed) noexcept;
  std::size_t borrowed() const noexcept { return borrowed_.size(); }
  /// Waits for all transfers, also of borrowed items. Errors: the first one's.
  Result<void> finish() noexcept;

 private:
  StagingRing(TierStore& store, Device& device) noexcept : store_(store), device_(device) {}

  TierStore& store_;
  Device& device_;
  std::vector<std::unique_ptr<StagingItem>> items_;
  std::vector<std::unique_ptr<StagingItem>> borrowed_;
};

}  // namespace artesian::tiering
