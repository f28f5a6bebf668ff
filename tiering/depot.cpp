#include "tiering/depot.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t copy_grain = 1 << 20;  // of one thread's copy

}  // namespace

Result<std::unique_ptr<Depot>> Depot::create(const Options& options, TierStore& store,
                                             pinned::Pool& host, Device& device,
                                             Executor& executor) {
  std::unique_ptr<Depot> depot(new Depot(store, device, executor));
  ARTESIAN_TRY(
      ring, StagingRing::create(store, host, options.buffer_bytes, options.buffer_count, device));
  depot->ring_ = std::move(ring);
  return depot;
}

template <typename Wait>
auto Depot::timed(const Wait& wait) noexcept {
  const std::uint64_t begin = monotonic_ns();
  auto outcome = wait();
  const std::uint64_t end = monotonic_ns();
  wait_ns_ += end - begin;
  if (Timeline* const timeline = store_.timeline(); timeline != nullptr) {
    timeline->add_wait("kept inputs", begin, end);
  }
  return outcome;
}

void Depot::copy(std::byte* target, const std::byte* source, std::uint64_t bytes) noexcept {
  executor_.parallel_for(bytes, copy_grain, [&](std::uint64_t begin, std::uint64_t end) {
    std::memcpy(target + begin, source + begin, end - begin);
  });
}

std::vector<Depot::Block> Depot::blocks_of(ShardId shard, std::uint64_t bytes) const {
  const std::uint64_t size = store_.shard(shard).block_bytes;
  ARTESIAN_CHECK(bytes <= store_.shard(shard).bytes, bytes, store_.shard(shard).bytes);
  std::vector<Block> blocks;
  for (std::uint64_t offset = 0; offset < bytes; offset += size) {
    blocks.push_back({.shard = shard,
                      .index = offset / size,
                      .bytes = std::min(size, bytes - offset),
                      .item = nullptr});
  }
  return blocks;
}

ByteRange Depot::range_of(const Block& block) const noexcept {
  return {.offset = block.index * store_.shard(block.shard).block_bytes,
          .length = store_.block_length(block.shard, block.index)};
}

Result<DeviceFence> Depot::put(ShardId shard, std::span<const std::byte> source,
                               DeviceFence written) noexcept {
  ARTESIAN_CHECK(source.size() <= store_.shard(shard).bytes, source.size());
  ARTESIAN_CHECK(order_.empty(), order_.size());
  const bool on_nvme = store_.shard(shard).home == Tier::Nvme;
  if (separate()) {
    ARTESIAN_TRY_VOID(write_copied(/*wait=*/false));
    ARTESIAN_TRY_VOID(device_.wait(Queue::ToHost, written));
  } else {
    bytes_put_ += source.size();
  }
  if (on_nvme) {
    ARTESIAN_TRY_VOID(put_on_nvme(shard, source));
  } else if (separate()) {
    ARTESIAN_TRY_VOID(device_.wait(Queue::ToHost, last_taken_));  // of the group before
    ARTESIAN_TRY_VOID(device_.copy_to_host(store_.memory(shard), source.data(), source.size()));
  } else {
    copy(store_.memory(shard), source.data(), source.size());
  }
  if (!separate()) return DeviceFence{};
  ARTESIAN_TRY(end, device_.record(Queue::ToHost));
  if (!on_nvme) last_put_ = end;
  return end;
}

Result<void> Depot::put_on_nvme(ShardId shard, std::span<const std::byte> source) noexcept {
  // A pass that was abandoned may have left writes behind.
  if (store_.writing(shard)) {
    ARTESIAN_TRY_VOID(timed([&] { return store_.finish_writes(shard); }));
  }
  const std::uint64_t size = store_.shard(shard).block_bytes;
  for (Block& block : blocks_of(shard, source.size())) {
    ARTESIAN_TRY(item, next_item());
    block.item = item;
    const std::byte* bytes = source.data() + block.index * size;
    if (separate()) {
      ARTESIAN_TRY_VOID(item->copy_to_host(0, bytes, block.bytes));
      copied_.push_back(block);
    } else {
      copy(item->data(), bytes, block.bytes);
      ARTESIAN_TRY_VOID(write(block));
    }
  }
  return {};
}

/// The buffer that was used longest ago, with all that it was used for done.
Result<StagingItem*> Depot::next_item() noexcept {
  ARTESIAN_CHECK(ring_ != nullptr && copied_.size() <= ring_->count(), copied_.size());
  StagingItem* const item = &ring_->at(turn_++);
  // Copies come in the order of the ring, so that this one's, if it has any, is the first.
  if (!copied_.empty() && copied_.front().item == item) {
    ARTESIAN_TRY_VOID(timed([&] { return item->finish(); }));
    const Block block = copied_.front();
    copied_.pop_front();
    ARTESIAN_TRY_VOID(write(block));
  }
  if (item->idle()) {
    ARTESIAN_TRY_VOID(item->finish());
  } else {
    ARTESIAN_TRY_VOID(timed([&] { return item->finish(); }));
  }
  return item;
}

Result<void> Depot::write(const Block& block) noexcept {
  const ByteRange range = range_of(block);
  ARTESIAN_CHECK(
      block.item != nullptr && block.bytes <= range.length && range.length <= block.item->size(),
      block.bytes, range.length);
  std::memset(block.item->data() + block.bytes, 0, range.length - block.bytes);
  store_.seal(block.shard, block.index, block.item->data());
  block.item->write(block.shard, range, 0);
  return {};
}

/// Writes what has come from the device to the disk.
Result<void> Depot::write_copied(bool wait) noexcept {
  while (!copied_.empty()) {
    const Block block = copied_.front();
    if (!wait && !block.item->idle()) return {};
    ARTESIAN_TRY_VOID(timed([&] { return block.item->finish(); }));
    copied_.pop_front();
    ARTESIAN_TRY_VOID(write(block));
  }
  return {};
}

Result<void> Depot::expect(const std::vector<Stored>& order) noexcept {
  ARTESIAN_CHECK(order_.empty(), order_.size());
  ARTESIAN_TRY_VOID(write_copied(/*wait=*/true));
  for (const Stored& stored : order) {
    if (store_.shard(stored.shard).home != Tier::Nvme) continue;
    const auto blocks = blocks_of(stored.shard, stored.bytes);
    order_.insert(order_.end(), blocks.begin(), blocks.end());
  }
  return read_ahead();
}

/// Waits for nothing but what the next block needs.
Result<void> Depot::read_ahead() noexcept {
  ARTESIAN_CHECK(current_ <= issued_ && issued_ <= order_.size(), current_, issued_);
  while (issued_ < order_.size() && issued_ - current_ < ring_->count()) {
    Block& block = order_[issued_];
    StagingItem& item = ring_->at(turn_);
    const bool wanted = issued_ == current_;
    if (!wanted && (!item.idle() || store_.writing(block.shard))) return {};
    if (store_.writing(block.shard)) {
      ARTESIAN_TRY_VOID(timed([&] { return store_.finish_writes(block.shard); }));
    }
    ARTESIAN_TRY_VOID(timed([&] { return item.finish(); }));
    ++turn_;
    block.item = &item;
    item.read(block.shard, range_of(block), 0,
              wanted ? aio::Priority::Demand : aio::Priority::Prefetch);
    ++issued_;
  }
  return {};
}

/// Drops what comes before `shard`: it is not wanted after all.
Result<void> Depot::drop_until(ShardId shard) noexcept {
  while (current_ < order_.size() && order_[current_].shard != shard) {
    if (current_ < issued_) {
      ARTESIAN_TRY_VOID(timed([&] { return order_[current_].item->finish(); }));
    } else {
      ++issued_;
    }
    ++current_;
  }
  ARTESIAN_CHECK(current_ < order_.size(), store_.shard(shard).name);
  ARTESIAN_CHECK(current_ <= issued_, current_, issued_);
  return {};
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
    ARTESIAN_TRY_VOID(device_.wait(Queue::ToDevice, last_put_));
    ARTESIAN_TRY_VOID(device_.copy_to_device(target.data(), store_.memory(shard), target.size()));
  } else {
    copy(target.data(), store_.memory(shard), target.size());
  }
  if (!separate()) return DeviceFence{};
  ARTESIAN_TRY(end, device_.record(Queue::ToDevice));
  if (!on_nvme) last_taken_ = end;
  return end;
}

Result<void> Depot::take_from_nvme(ShardId shard, std::span<std::byte> target,
                                   DeviceFence free) noexcept {
  ARTESIAN_TRY_VOID(drop_until(shard));
  if (separate()) ARTESIAN_TRY_VOID(device_.wait(Queue::ToDevice, free));
  std::uint64_t done = 0;
  while (done < target.size()) {
    ARTESIAN_TRY_VOID(read_ahead());
    ARTESIAN_CHECK(current_ < issued_, current_, issued_);
    const Block& block = order_[current_];
    ARTESIAN_CHECK(block.bytes <= target.size() - done, block.bytes, done, target.size());
    ARTESIAN_CHECK(block.shard == shard && block.item != nullptr, done, target.size());
    auto come = timed([&] { return block.item->finish(); });
    if (!come.has_value()) return cause_of(std::move(come).error());
    ARTESIAN_TRY_VOID(store_.verify(shard, block.index, block.item->data()));
    if (separate()) {
      ARTESIAN_TRY_VOID(block.item->copy_to_device(target.data() + done, 0, block.bytes));
    } else {
      copy(target.data() + done, block.item->data(), block.bytes);
    }
    done += block.bytes;
    ++current_;
  }
  return read_ahead();
}

/// A file whose write has failed refuses reads as well: then the write is what to tell of.
Error Depot::cause_of(Error read) noexcept {
  for (std::uint32_t turn = 0; turn < ring_->count(); ++turn) {
    StagingItem& item = ring_->at(turn);
    const auto reads = [&](const Block& block) { return block.item == &item; };
    const auto begin = order_.begin();
    const bool reading = std::any_of(begin + static_cast<std::ptrdiff_t>(current_),
                                     begin + static_cast<std::ptrdiff_t>(issued_), reads);
    if (reading || !item.idle()) continue;
    auto outcome = item.finish();
    if (!outcome.has_value()) return std::move(outcome).error();
  }
  return read;
}

Result<void> Depot::forget() noexcept {
  Result<void> first;
  const auto finish = [&](StagingItem& item) {
    auto outcome = timed([&] { return item.finish(); });
    if (first.has_value() && !outcome.has_value()) first = std::move(outcome);
  };
  for (const Block& block : copied_) finish(*block.item);
  for (; current_ < issued_; ++current_) finish(*order_[current_].item);
  copied_.clear();
  order_.clear();
  current_ = issued_ = 0;
  return first;
}

Result<void> Depot::finish() noexcept {
  return ring_->finish();
}

}  // namespace artesian::tiering
