#include "tiering/staging_ring.h"

namespace artesian::tiering {

StagingItem::StagingItem(BufferLease memory, TierStore& store, Device& device,
                         bool borrowed) noexcept
    : memory_(std::move(memory)), store_(store), device_(device), borrowed_(borrowed) {
  ARTESIAN_CHECK(memory_.data() != nullptr && memory_.size() % 4096 == 0, memory_.size());
}

StagingItem::~StagingItem() {
  ARTESIAN_CHECK(count_ == 0 && leases_ == 0, count_, leases_);
}

StagingItem::InFlight& StagingItem::next(ShardId id) noexcept {
  ARTESIAN_CHECK(count_ < transfers_max, count_);
  InFlight& slot = in_flight_[count_++];
  ARTESIAN_CHECK(!slot.transfer.in_flight());
  slot.shard = id;
  return slot;
}

BufferLease StagingItem::part(std::uint64_t item_offset, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(item_offset + length <= memory_.size(), item_offset, length, memory_.size());
  ++leases_;
  return {memory_.data() + item_offset, length, this};
}

void StagingItem::read(ShardId id, ByteRange range, std::uint64_t item_offset,
                       aio::Priority priority) noexcept {
  store_.read(next(id).transfer, id, range, part(item_offset, range.length), priority);
}

void StagingItem::write(ShardId id, ByteRange range, std::uint64_t item_offset) noexcept {
  store_.write(next(id).transfer, id, range, part(item_offset, range.length),
               aio::Priority::WriteBack);
}

Result<void> StagingItem::copy_to_host(std::uint64_t item_offset, const std::byte* source,
                                       std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(item_offset + bytes <= memory_.size(), item_offset, bytes, memory_.size());
  ARTESIAN_TRY_VOID(device_.copy_to_host(memory_.data() + item_offset, source, bytes));
  ARTESIAN_TRY(end, device_.record(Queue::ToHost));
  from_device_ = end;
  return {};
}

Result<void> StagingItem::copy_to_device(std::byte* target, std::uint64_t item_offset,
                                         std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(item_offset + bytes <= memory_.size(), item_offset, bytes, memory_.size());
  ARTESIAN_TRY_VOID(device_.copy_to_device(target, memory_.data() + item_offset, bytes));
  return hold().and_then([](DeviceFence) { return Result<void>(); });
}

Result<DeviceFence> StagingItem::hold() noexcept {
  ARTESIAN_TRY(end, device_.record(Queue::ToDevice));
  to_device_ = end;
  return end;
}

Result<void> StagingItem::finish() noexcept {
  Result<void> first;
  for (std::size_t index = 0; index < count_; ++index) {
    InFlight& slot = in_flight_[index];
    auto outcome = store_.wait(slot.transfer, slot.shard);
    if (slot.transfer.ready()) slot.transfer.take_buffer().reset();
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
  }
  for (const DeviceFence fence : {from_device_, to_device_}) {
    auto outcome = device_.finish(fence);
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
  }
  if (!idle()) return first;  // a transfer outlived its deadline, and keeps its buffer
  ARTESIAN_CHECK(leases_ == 0, leases_);
  count_ = 0;
  return first;
}

bool StagingItem::idle() const noexcept {
  for (std::size_t index = 0; index < count_; ++index) {
    if (!in_flight_[index].transfer.ready()) return false;
  }
  return device_.ready(from_device_) && device_.ready(to_device_);
}

Result<std::unique_ptr<StagingRing>> StagingRing::create(TierStore& store, pinned::Pool& pool,
                                                         std::uint64_t item_bytes,
                                                         std::uint32_t count, Device& device) {
  std::unique_ptr<StagingRing> ring(new StagingRing(store, device));
  for (std::uint32_t index = 0; index < count; ++index) {
    ARTESIAN_TRY(memory, pool.lease(item_bytes));
    ring->items_.push_back(
        std::make_unique<StagingItem>(std::move(memory), store, device, /*borrowed=*/false));
  }
  return ring;
}

std::vector<std::span<std::byte>> StagingRing::buffers() const {
  std::vector<std::span<std::byte>> list;
  for (const auto& item : items_) {
    list.emplace_back(item->data(), static_cast<std::size_t>(item->size()));
  }
  return list;
}

StagingItem& StagingRing::add_borrowed(BufferLease memory) {
  ARTESIAN_CHECK(memory.size() >= item_bytes(), memory.size());
  borrowed_.push_back(
      std::make_unique<StagingItem>(std::move(memory), store_, device_, /*borrowed=*/true));
  return *borrowed_.back();
}

void StagingRing::remove(const StagingItem& borrowed) noexcept {
  const auto erased =
      std::erase_if(borrowed_, [&](const auto& item) { return item.get() == &borrowed; });
  ARTESIAN_CHECK(erased == 1, erased);
}

Result<void> StagingRing::finish() noexcept {
  Result<void> first;
  for (auto* items : {&items_, &borrowed_}) {
    for (auto& item : *items) {
      auto outcome = item->finish();
      if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    }
  }
  return first;
}

}  // namespace artesian::tiering
