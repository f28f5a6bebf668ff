#include "tiering/device_loader.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"

namespace artesian::tiering {

/// A call: none begins within another, though the device may be waited for in each.
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

/// One piece of pinned host memory: free, being read into, or being copied from.
class DeviceLoader::Buffer final : public BufferOwner {
 public:
  explicit Buffer(BufferLease lease) : memory(std::move(lease)) {}
  ~Buffer() { ARTESIAN_CHECK(!lent && load == nullptr); }
  void give_back(std::byte*, std::uint64_t) noexcept override {
    ARTESIAN_CHECK(lent);
    lent = false;
  }
  BufferLease lend() noexcept {
    ARTESIAN_CHECK(!lent && length <= memory.size(), length, memory.size());
    lent = true;
    return {memory.data(), length, this};
  }

  BufferLease memory;
  Transfer transfer;
  DeviceLoad* load = nullptr;  // set: being read into, for this load
  std::uint64_t offset = 0;    // of the piece within the shard
  std::uint64_t length = 0;
  std::uint64_t turn = 0;  // when it was last taken
  DeviceFence copied;      // what is in it may be overwritten after this
  bool lent = false;
};

DeviceLoader::DeviceLoader(const Options& options, Device& device, TierStore& store,
                           Executor& executor)
    : options_(options), device_(device), store_(store), executor_(executor) {}

Result<std::unique_ptr<DeviceLoader>> DeviceLoader::create(const Options& options, Device& device,
                                                           TierStore& store, Executor& executor,
                                                           pinned::Pool& device_pool,
                                                           pinned::Pool& host_pool) {
  ARTESIAN_CHECK(!device.host_accessible());
  std::unique_ptr<DeviceLoader> loader(new DeviceLoader(options, device, store, executor));
  ARTESIAN_CHECK(options.staging_count == 0 || options.staging_bytes != 0);
  for (std::uint32_t index = 0; index < options.staging_count; ++index) {
    ARTESIAN_TRY(memory, host_pool.lease(options.staging_bytes, pinned::Placement::High));
    loader->buffers_.push_back(std::make_unique<Buffer>(std::move(memory)));
  }
  if (options.expansion_bytes != 0) {
    ARTESIAN_TRY(memory, device_pool.lease(options.expansion_bytes, pinned::Placement::High));
    loader->expansion_ = std::move(memory);
  }
  // What fails then fails the load, or the device's next call.
  device.set_meanwhile([advanced = loader.get()] {
    if (!advanced->busy_) static_cast<void>(advanced->advance().has_value());
  });
  return loader;
}

DeviceLoader::~DeviceLoader() {
  device_.set_meanwhile(nullptr);
  ARTESIAN_CHECK(reading_.empty(), reading_.size());
}

std::vector<std::span<std::byte>> DeviceLoader::buffers() const {
  std::vector<std::span<std::byte>> list;
  for (const auto& buffer : buffers_) {
    list.emplace_back(buffer->memory.data(), static_cast<std::size_t>(buffer->memory.size()));
  }
  return list;
}

std::uint64_t DeviceLoader::bytes_of(const DeviceLoad& load) const noexcept {
  return load.image * dtype_size(load.stored);
}

bool DeviceLoader::complete(const DeviceLoad& load) const noexcept {
  return load.bytes_loaded == bytes_of(load);
}

Result<void> DeviceLoader::start(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  load.bytes_asked = load.bytes_loaded = 0;
  load.failed.reset();
  load.loaded = {};
  ARTESIAN_CHECK(load.target != nullptr && bytes_of(load) <= store_.shard(load.shard).bytes,
                 bytes_of(load), store_.shard(load.shard).bytes);
  ARTESIAN_CHECK(std::find(reading_.begin(), reading_.end(), &load) == reading_.end());
  const Tier home = store_.shard(load.shard).home;
  if (home == Tier::Nvme) {
    ARTESIAN_CHECK(!buffers_.empty());
    reading_.push_back(&load);
    read_more(load);
    return {};
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

/// The home may have been written by any queue.
Result<void> DeviceLoader::load_from_device(DeviceLoad& load) noexcept {
  ARTESIAN_CHECK(load.stored != load.computed);
  ARTESIAN_TRY(computed, device_.record(Queue::Compute));
  ARTESIAN_TRY_VOID(device_.wait(Queue::ToDevice, computed));
  return device_.expand(Queue::ToDevice, store_.memory(load.shard), load.stored,
                        reinterpret_cast<float*>(load.target), load.image);
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

DeviceLoader::Buffer* DeviceLoader::free_buffer() noexcept {
  for (const auto& buffer : buffers_) {
    if (buffer->load == nullptr && device_.ready(buffer->copied)) return buffer.get();
  }
  return nullptr;
}

/// The buffer that was taken first among those being read into (for one load, or any), or among
/// those being copied from.
DeviceLoader::Buffer* DeviceLoader::oldest(const DeviceLoad* of, bool reading) noexcept {
  Buffer* found = nullptr;
  for (const auto& buffer : buffers_) {
    if ((buffer->load != nullptr) != reading) continue;
    if (of != nullptr && buffer->load != of) continue;
    if (found == nullptr || buffer->turn < found->turn) found = buffer.get();
  }
  return found;
}

void DeviceLoader::read_more(DeviceLoad& load) noexcept {
  const std::uint64_t total = bytes_of(load);
  ARTESIAN_CHECK(load.bytes_loaded <= load.bytes_asked && load.bytes_asked <= total,
                 load.bytes_loaded, load.bytes_asked, total);
  while (!load.failed.has_value() && load.bytes_asked < total) {
    Buffer* buffer = free_buffer();
    if (buffer == nullptr) return;
    buffer->load = &load;
    buffer->turn = turn_++;
    buffer->offset = load.bytes_asked;
    buffer->length = std::min(options_.staging_bytes, total - load.bytes_asked);
    load.bytes_asked += buffer->length;
    store_.read(buffer->transfer, load.shard, {buffer->offset, buffer->length}, buffer->lend(),
                load.priority);
  }
}

Result<void> DeviceLoader::verify(const DeviceLoad& load, const Buffer& buffer) noexcept {
  const std::uint64_t block_bytes = store_.shard(load.shard).block_bytes;
  ARTESIAN_CHECK(buffer.offset % block_bytes == 0, buffer.offset, block_bytes);
  const std::uint64_t first = buffer.offset / block_bytes;
  const std::uint64_t count = (buffer.length + block_bytes - 1) / block_bytes;
  const auto check = [&](std::uint64_t block) {
    return store_.verify(load.shard, first + block, buffer.memory.data() + block * block_bytes);
  };
  std::atomic<std::uint64_t> bad{count};
  executor_.parallel_for(count, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t block = from; block < to; ++block) {
      if (!check(block).has_value()) bad = block;
    }
  });
  return bad == count ? Result<void>() : check(bad);
}

/// Waits for the buffer's read, and enqueues its copy. What is wrong with the data is the load's
/// failure; errors here are the device's, which fail the load, too, as advance() may have nobody to
/// tell; and Timeout, after which the read is still in flight.
Result<void> DeviceLoader::pass_on(Buffer& buffer) noexcept {
  ARTESIAN_CHECK(buffer.load != nullptr && buffer.length != 0, buffer.length);
  DeviceLoad& load = *buffer.load;
  auto outcome = store_.wait(buffer.transfer, load.shard);
  if (!buffer.transfer.ready()) return outcome;
  buffer.transfer.take_buffer().reset();
  ARTESIAN_CHECK(!buffer.lent);
  buffer.load = nullptr;
  if (outcome.has_value()) outcome = verify(load, buffer);
  if (!outcome.has_value()) {
    load.failed = std::move(outcome).error();
    return {};
  }
  const std::uint64_t first = buffer.offset / dtype_size(load.stored);
  std::byte* target = load.target + first * dtype_size(load.computed);
  auto end = copy(buffer.memory.data(), load.stored, target, load.computed,
                  buffer.length / dtype_size(load.stored))
                 .and_then([&] { return device_.record(Queue::ToDevice); });
  if (!end.has_value()) {
    load.failed = end.error();
    return std::move(end).error();
  }
  buffer.copied = load.loaded = end.value();
  load.bytes_loaded += buffer.length;
  ARTESIAN_CHECK(load.bytes_loaded <= load.bytes_asked, load.bytes_loaded, load.bytes_asked);
  if (complete(load)) forget(load);
  return {};
}

void DeviceLoader::forget(DeviceLoad& load) noexcept {
  std::erase(reading_, &load);
}

Result<void> DeviceLoader::finish(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  while (!complete(load)) {
    if (load.failed.has_value()) return *load.failed;
    read_more(load);
    Buffer* next = oldest(&load, /*reading=*/true);
    if (next == nullptr) {  // none of the buffers is ours yet
      next = oldest(nullptr, /*reading=*/false);
      if (next != nullptr) {
        ARTESIAN_TRY_VOID(device_.finish(next->copied));
        continue;
      }
      next = oldest(nullptr, /*reading=*/true);
    }
    ARTESIAN_CHECK(next != nullptr);
    ARTESIAN_TRY_VOID(pass_on(*next));
  }
  return {};
}

Result<void> DeviceLoader::cancel(DeviceLoad& load) noexcept {
  const Turn turn(busy_);
  for (const auto& buffer : buffers_) {
    if (buffer->load != &load) continue;
    auto outcome = store_.wait(buffer->transfer, load.shard);
    if (!buffer->transfer.ready()) return outcome;
    buffer->transfer.take_buffer().reset();
    ARTESIAN_CHECK(!buffer->lent);
    buffer->load = nullptr;
  }
  forget(load);
  return {};
}

Result<void> DeviceLoader::advance() noexcept {
  const Turn turn(busy_);
  for (const auto& buffer : buffers_) {
    if (buffer->load != nullptr && buffer->transfer.ready()) {
      ARTESIAN_TRY_VOID(pass_on(*buffer));
    }
  }
  for (DeviceLoad* load : reading_) read_more(*load);
  return {};
}

}  // namespace artesian::tiering
