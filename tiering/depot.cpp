#include "tiering/depot.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t copy_grain = 1 << 20;  // bytes per thread and copy

}  // namespace

Result<std::unique_ptr<Depot>> Depot::create(const Options& options, TierStore& store,
                                             pinned::Pool& host, Device& device,
                                             Executor& executor) {
  ARTESIAN_TRY(
      ring, StagingRing::create(store, host, options.buffer_bytes, options.buffer_count, device));
  return std::unique_ptr<Depot>(new Depot(std::move(ring), store, device, executor));
}

void Depot::copy(std::byte* target, const std::byte* source, std::uint64_t bytes) noexcept {
  executor_.parallel_for(bytes, copy_grain, [&](std::uint64_t begin, std::uint64_t end) {
    std::memcpy(target + begin, source + begin, end - begin);
  });
}

std::vector<RingTask> Depot::blocks_of(ShardId shard, std::uint64_t bytes) const {
  const std::uint64_t size = store_.shard(shard).block_bytes;
  ARTESIAN_CHECK(bytes <= store_.shard(shard).bytes, bytes, store_.shard(shard).bytes);
  std::vector<RingTask> blocks;
  for (std::uint64_t index = 0; index * size < bytes; ++index) {
    blocks.push_back({static_cast<std::uint32_t>(shard), index});
  }
  return blocks;
}

ByteRange Depot::range_of(const RingTask& block) const noexcept {
  const auto shard = ShardId(block.unit);
  return {.offset = block.index * store_.shard(shard).block_bytes,
          .length = store_.block_length(shard, block.index)};
}

Result<DeviceFence> Depot::put(ShardId shard, std::span<const std::byte> source,
                               DeviceFence written) noexcept {
  ARTESIAN_CHECK(source.size() <= store_.shard(shard).bytes, source.size());
  ARTESIAN_CHECK(puts_);
  const bool on_nvme = store_.shard(shard).home == Tier::Nvme;
  if (separate()) {
    ARTESIAN_TRY_VOID(advance_come());  // writes the blocks that have been copied
    ARTESIAN_TRY_VOID(device_.wait(Queue::ToHost, written));
  } else {
    bytes_put_ += source.size();
  }
  if (on_nvme) {
    ARTESIAN_TRY_VOID(put_on_nvme(shard, source));
  } else if (separate()) {
    ARTESIAN_TRY_VOID(device_.copy_to_host(store_.memory(shard), source.data(), source.size()));
  } else {
    copy(store_.memory(shard), source.data(), source.size());
  }
  if (!separate()) return DeviceFence{};
  return device_.record(Queue::ToHost);
}

Result<void> Depot::put_on_nvme(ShardId shard, std::span<const std::byte> source) noexcept {
  source_ = source;
  ARTESIAN_TRY_VOID(append(blocks_of(shard, source.size())));
  return separate() ? start_all() : Pipeline::finish();
}

/// Zeroes the rest of the array's last block. Returns the array's bytes in the block.
std::uint64_t Depot::begin_to_put(const RingTask& block, StagingItem& item) const noexcept {
  const ByteRange range = range_of(block);
  ARTESIAN_CHECK(range.offset < source_.size() && range.length <= item.size(), range.offset);
  const std::uint64_t bytes = std::min(range.length, source_.size() - range.offset);
  std::memset(item.data() + bytes, 0, range.length - bytes);
  return bytes;
}

/// Reads from the disk or, for a put, from the device.
Result<void> Depot::read(const RingTask& task, StagingItem& item) noexcept {
  const ByteRange range = range_of(task);
  if (puts_) {
    return item.copy_to_host(0, source_.data() + range.offset, begin_to_put(task, item));
  }
  ARTESIAN_CHECK(range.length <= item.size(), range.length, item.size());
  const bool wanted = task.unit == next_unit();
  item.read(ShardId(task.unit), range, 0, wanted ? aio::Priority::Demand : aio::Priority::Prefetch);
  return {};
}

Result<void> Depot::work(std::size_t, const RingTask& task, StagingItem* item) noexcept {
  const auto shard = ShardId(task.unit);
  const ByteRange range = range_of(task);
  ARTESIAN_TRY_VOID(finish(*item));
  if (puts_) {
    if (!separate()) {
      copy(item->data(), source_.data() + range.offset, begin_to_put(task, *item));
    }
    store_.seal(shard, task.index, item->data());
    item->write(shard, range, 0);
    return {};
  }
  ARTESIAN_TRY_VOID(store_.verify(shard, task.index, item->data()));
  ARTESIAN_CHECK(range.offset < target_.size(), range.offset, target_.size());
  const std::uint64_t bytes = std::min(range.length, target_.size() - range.offset);
  std::byte* const target = target_.data() + range.offset;
  if (separate()) return item->copy_to_device(target, 0, bytes);
  copy(target, item->data(), bytes);
  return {};
}

Result<void> Depot::expect(const std::vector<Stored>& order) noexcept {
  ARTESIAN_CHECK(puts_);
  ARTESIAN_TRY_VOID(Pipeline::finish());
  puts_ = false;
  std::vector<RingTask> all;
  for (const Stored& stored : order) {
    if (store_.shard(stored.shard).home != Tier::Nvme) continue;
    const auto blocks = blocks_of(stored.shard, stored.bytes);
    all.insert(all.end(), blocks.begin(), blocks.end());
  }
  return begin(all);
}

Result<DeviceFence> Depot::take(ShardId shard, std::span<std::byte> target,
                                DeviceFence free) noexcept {
  ARTESIAN_CHECK(target.size() <= store_.shard(shard).bytes, target.size());
  const bool on_nvme = store_.shard(shard).home == Tier::Nvme;
  if (!separate()) bytes_taken_ += target.size();
  if (on_nvme) {
    ARTESIAN_TRY_VOID(take_from_nvme(shard, target, free));
  } else if (separate()) {
    ARTESIAN_TRY_VOID(device_.wait(Queue::ToDevice, free));
    ARTESIAN_TRY_VOID(device_.copy_to_device(target.data(), store_.memory(shard), target.size()));
  } else {
    copy(target.data(), store_.memory(shard), target.size());
  }
  if (!separate()) return DeviceFence{};
  return device_.record(Queue::ToDevice);
}

Result<void> Depot::take_from_nvme(ShardId shard, std::span<std::byte> target,
                                   DeviceFence free) noexcept {
  const auto unit = static_cast<std::uint32_t>(shard);
  // The inputs before it are not needed.
  while (next_unit() != unit) ARTESIAN_TRY_VOID(Pipeline::forget(next_unit()));
  if (separate()) ARTESIAN_TRY_VOID(device_.wait(Queue::ToDevice, free));
  target_ = target;
  auto taken = advance_past(unit);
  if (taken.has_value() || taken.error().code == ErrorCode::Timeout) return taken;
  // A file whose write has failed also refuses reads: then the failed write must be reported.
  auto left = finish_left();
  return left.has_value() ? std::move(taken) : std::move(left);
}

Result<void> Depot::forget() noexcept {
  puts_ = true;
  auto forgotten = abandon();
  return forgotten.has_value() ? Result<void>() : std::move(forgotten).error();
}

}  // namespace artesian::tiering
