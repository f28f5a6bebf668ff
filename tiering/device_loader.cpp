#include "tiering/device_loader.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"

namespace artesian::tiering {

/// Marks a running call: no call may begin within another, though each may wait for the device.
class DeviceLoader::Turn {
 public:
  explicit Turn(bool& busy) noexcept : busy_(busy) {
    ARTESIAN_CHECK(!busy_);
    busy_ = true;
  }
  ~Turn() { busy_ = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool& busy_;
};

DeviceLoader::DeviceLoader(const Options& options, std::unique_ptr<StagingRing> ring,
                           Device& device, TierStore& store, Executor& executor)
    : Pipeline(*ring, nullptr),
      options_(options),
      device_(device),
      store_(store),
      executor_(executor),
      ring_(std::move(ring)) {}

Result<std::unique_ptr<DeviceLoader>> DeviceLoader::create(const Options& options, Device& device,
                                                           TierStore& store, Executor& executor,
                                                           pinned::Pool& device_pool,
                                                           pinned::Pool& host_pool) {
  ARTESIAN_CHECK(!device.host_accessible());
  ARTESIAN_CHECK(options.staging_count == 0 || options.staging_bytes != 0);
  ARTESIAN_TRY(ring, StagingRing::create(store, host_pool, options.staging_bytes,
                                         options.staging_count, device));
  std::unique_ptr<DeviceLoader> loader(
      new DeviceLoader(options, std::move(ring), device, store, executor));
  if (options.expansion_bytes != 0) {
    ARTESIAN_TRY(memory, device_pool.lease(options.expansion_bytes, pinned::Placement::High));
    loader->expansion_ = std::move(memory);
  }
  // Errors here fail the load, or the device's next call.
  device.set_meanwhile([advanced = loader.get()] {
    if (!advanced->busy_) static_cast<void>(advanced->advance().has_value());
  });
  return loader;
}

DeviceLoader::~DeviceLoader() {
  device_.set_meanwhile(nullptr);
  ARTESIAN_CHECK(reading_.empty(), reading_.size());
}

std::uint64_t DeviceLoader::bytes_of(const DeviceLoad& load) const noexcept {
  return load.image * dtype_size(load.stored);
}

bool DeviceLoader::complete(const DeviceLoad& load) const noexcept {
  return load.bytes_loaded == bytes_of(load);
}

Result<void> DeviceLoader::start(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  load.bytes_loaded = 0;
  load.failed.reset();
  load.loaded = {};
  ARTESIAN_CHECK(load.target != nullptr && bytes_of(load) <= store_.shard(load.shard).bytes,
                 bytes_of(load), store_.shard(load.shard).bytes);
  ARTESIAN_CHECK(std::find(reading_.begin(), reading_.end(), &load) == reading_.end());
  const Tier home = store_.shard(load.shard).home;
  if (home == Tier::Nvme) {
    ARTESIAN_CHECK(ring_->count() != 0);
    reading_.push_back(&load);
    std::vector<RingTask> pieces;
    for (std::uint64_t piece = 0; piece * options_.staging_bytes < bytes_of(load); ++piece) {
      pieces.push_back({static_cast<std::uint32_t>(load.shard), piece});
    }
    return append(pieces);
  }
  if (home == Tier::Device) {
    ARTESIAN_TRY_VOID(load_from_device(load));
  } else {
    ARTESIAN_TRY_VOID(
        copy(store_.memory(load.shard), load.stored, load.target, load.computed, load.image));
  }
  load.bytes_loaded = bytes_of(load);
  ARTESIAN_TRY(end, device_.record(Queue::ToDevice));
  load.loaded = end;
  return {};
}

/// Whoever writes the home in another queue makes ToDevice wait.
Result<void> DeviceLoader::load_from_device(DeviceLoad& load) noexcept {
  const std::byte* const home = store_.memory(load.shard);
  if (load.stored == load.computed) {
    return device_.copy_within(Queue::ToDevice, load.target, home, bytes_of(load));
  }
  return device_.expand(Queue::ToDevice, home, load.stored, reinterpret_cast<float*>(load.target),
                        load.image);
}

/// In waves: one over elements [p, q) overwrites sources up to 2q - n, and so may run as one kernel
/// if 2q - n <= p. What is left then passes through the buffer.
Result<void> DeviceLoader::expand_in_place(std::byte* target, DType stored,
                                           std::uint64_t count) noexcept {
  const std::uint64_t size = dtype_size(stored);
  const std::uint64_t part = expansion_.size() / size;
  ARTESIAN_CHECK(2 * size == sizeof(float) && part != 0, size, part);
  auto* const expanded = reinterpret_cast<float*>(target);
  const std::byte* const source = target + count * size;
  std::uint64_t first = 0;
  while (count - first > part) {
    const std::uint64_t end = first + (count - first) / 2;
    ARTESIAN_TRY_VOID(device_.expand(Queue::ToDevice, source + first * size, stored,
                                     expanded + first, end - first));
    first = end;
  }
  ARTESIAN_TRY_VOID(device_.copy_within(Queue::ToDevice, expansion_.data(), source + first * size,
                                        (count - first) * size));
  return device_.expand(Queue::ToDevice, expansion_.data(), stored, expanded + first,
                        count - first);
}

Result<void> DeviceLoader::copy(const std::byte* source, DType stored, std::byte* target,
                                DType computed, std::uint64_t count) noexcept {
  if (stored == computed) return device_.copy_to_device(target, source, count * dtype_size(stored));
  const std::uint64_t part = expansion_.size() / dtype_size(stored);
  ARTESIAN_CHECK(computed == DType::Float32 && part != 0, part);
  for (std::uint64_t first = 0; first < count; first += part) {
    const std::uint64_t length = std::min(part, count - first);
    ARTESIAN_TRY_VOID(device_.copy_to_device(expansion_.data(), source + first * dtype_size(stored),
                                             length * dtype_size(stored)));
    ARTESIAN_TRY_VOID(device_.expand(Queue::ToDevice, expansion_.data(), stored,
                                     reinterpret_cast<float*>(target) + first, length));
  }
  return {};
}

DeviceLoad& DeviceLoader::load_of(const RingTask& task) const noexcept {
  const auto load = std::find_if(reading_.begin(), reading_.end(), [&](const DeviceLoad* reading) {
    return reading->shard == ShardId(task.unit);
  });
  ARTESIAN_CHECK(load != reading_.end(), task.unit, task.index);
  return **load;
}

ByteRange DeviceLoader::range_of(const RingTask& task) const noexcept {
  const std::uint64_t offset = task.index * options_.staging_bytes;
  return {offset, std::min(options_.staging_bytes, bytes_of(load_of(task)) - offset)};
}

Result<void> DeviceLoader::read(const RingTask& task, StagingItem& item) noexcept {
  item.read(ShardId(task.unit), range_of(task), 0, load_of(task).priority);
  return {};
}

Result<void> DeviceLoader::verify(const RingTask& task, const std::byte* data) noexcept {
  const auto shard = ShardId(task.unit);
  const ByteRange range = range_of(task);
  const std::uint64_t block_bytes = store_.shard(shard).block_bytes;
  ARTESIAN_CHECK(range.offset % block_bytes == 0, range.offset, block_bytes);
  const std::uint64_t first = range.offset / block_bytes;
  const std::uint64_t count = (range.length + block_bytes - 1) / block_bytes;
  const auto check = [&](std::uint64_t block) {
    return store_.verify(shard, first + block, data + block * block_bytes);
  };
  std::atomic<std::uint64_t> bad{count};
  executor_.parallel_for(count, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t block = from; block < to; ++block) {
      if (!check(block).has_value()) bad = block;
    }
  });
  return bad == count ? Result<void>() : check(bad);
}

/// Waits for the piece, and enqueues its copy. Damaged data fails only the load. Errors returned
/// here are those of the device, which also fail the load, as advance() may not return them; and
/// Timeout, after which the read is still in flight.
Result<void> DeviceLoader::work(std::size_t, const RingTask& task, StagingItem* item) noexcept {
  DeviceLoad& load = load_of(task);
  auto outcome = finish(*item);
  if (!item->idle()) return outcome;
  if (load.failed.has_value()) return {};
  if (outcome.has_value()) outcome = verify(task, item->data());
  if (!outcome.has_value()) {
    load.failed = std::move(outcome).error();
    return {};
  }
  const ByteRange range = range_of(task);
  std::byte* target =
      load.target + range.offset / dtype_size(load.stored) * dtype_size(load.computed);
  auto end =
      copy(item->data(), load.stored, target, load.computed, range.length / dtype_size(load.stored))
          .and_then([&] { return item->hold(); });
  if (!end.has_value()) {
    load.failed = end.error();
    return std::move(end).error();
  }
  load.loaded = end.value();
  load.bytes_loaded += range.length;
  ARTESIAN_CHECK(load.bytes_loaded <= bytes_of(load), load.bytes_loaded, bytes_of(load));
  return {};
}

Result<void> DeviceLoader::finish(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  while (!complete(load)) {
    if (load.failed.has_value()) return *load.failed;
    ARTESIAN_TRY_VOID(demand(static_cast<std::uint32_t>(load.shard)));
  }
  std::erase(reading_, &load);
  return {};
}

Result<void> DeviceLoader::cancel(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  ARTESIAN_TRY_VOID(forget(static_cast<std::uint32_t>(load.shard)));
  std::erase(reading_, &load);
  return {};
}

Result<void> DeviceLoader::advance() noexcept {
  const Turn turn(busy_);
  return advance_come();
}

}  // namespace artesian::tiering
