// Shared by the tests of TierStore: a store over each engine (in memory, thread pool, io_uring),
// faults in the kernel's answers, and patterns that differ between any two blocks.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_uring.h"
#include "aio/threads.h"
#include "base/random.h"
#include "tests/support/memory_files.h"
#include "tests/support/simulated_engine.h"
#include "tests/support/temporary_directory.h"
#include "tiering/tier_store.h"

namespace artesian::tiering {

/// Simulated: files in memory behind a disk that reorders, delays, cuts and interrupts.
enum class Backend : std::uint8_t { Memory, Threads, IoUring, Simulated };

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return info.param == Backend::Memory    ? "Memory"
         : info.param == Backend::Threads ? "Threads"
         : info.param == Backend::IoUring ? "IoUring"
                                          : "Simulated";
}

/// Answers -`system_error` for every block of `operation` that covers file offset `offset`.
class BadSector final : public aio::FaultSeam {
 public:
  std::int64_t answer(const aio::Block& block, std::int64_t result) noexcept override {
    const int error = system_error.load();
    if (error == 0 || block.request().operation != operation) return result;
    const bool hit = block.offset <= offset && offset < block.offset + block.length;
    return hit ? -error : result;
  }
  std::atomic<int> system_error{0};  // 0 = no fault
  aio::Operation operation = aio::Operation::Read;
  std::uint64_t offset = 0;
};

class Harness {
 public:
  explicit Harness(Backend backend) : memory_files_(1ull << 30) {
    const aio::EngineOptions options{.block_size = 64 << 10, .queue_depth = 4};
    if (backend == Backend::Memory) {
      auto engine = std::make_unique<test_support::MemoryEngine>(options, &faults);
      memory_engine = engine.get();
      engine_ = std::move(engine);
      return;
    }
    if (backend == Backend::Simulated) {
      const test_support::SimulatedOptions disk{
          .seed = 17, .slow = 10, .shortened = 200, .interrupted = 100};
      engine_ = std::make_unique<test_support::SimulatedEngine>(options, disk, &faults);
      return;
    }
    auto engine = backend == Backend::Threads ? aio::make_threads(options, &faults)
                                              : aio::make_io_uring(options, &faults);
    if (engine.has_value()) engine_ = std::move(engine).value();
    disk_ = std::make_unique<test_support::TemporaryDirectory>();
  }

  bool available() const { return engine_ != nullptr; }
  FileSystem& files() { return disk_ ? system_files() : memory_files_; }
  std::string directory() const { return disk_ ? disk_->path() : "/disk"; }
  aio::Engine& engine() { return *engine_; }

  Result<std::unique_ptr<TierStore>> open(std::vector<ShardOptions> shards,
                                          Verify verify = Verify::Full, double wait_seconds = 60.0,
                                          std::uint32_t rank = 0) {
    const TierStoreOptions options{.directories = {directory()},
                                   .run_id = 0x1234,
                                   .rank = rank,
                                   .verify = verify,
                                   .wait_seconds = wait_seconds};
    return TierStore::open(options, std::move(shards), *device, *host, *engine_, files());
  }
  std::unique_ptr<TierStore> must_open(std::vector<ShardOptions> shards,
                                       Verify verify = Verify::Full) {
    auto store = open(std::move(shards), verify);
    if (!store.has_value()) ADD_FAILURE() << store.error().to_string();
    return std::move(store).value();
  }
  std::string swap_path(std::uint32_t rank = 0) const {
    return directory() + "/artesian-0000000000001234-rank" + std::to_string(rank) + ".swap";
  }
  /// The swap file, opened a second time: for planting faults behind the store's back.
  std::unique_ptr<File> swap_file(std::uint32_t rank = 0) {
    return files().open(swap_path(rank), {.direct = Direct::IfAligned}).value();
  }
  BufferLease buffer(std::uint64_t bytes) { return staging->lease(bytes).value(); }

  BadSector faults;
  std::unique_ptr<pinned::Pool> device = pool(1 << 20, "device");
  std::unique_ptr<pinned::Pool> host = pool(2 << 20, "host");
  std::unique_ptr<pinned::Pool> staging = pool(96 << 20, "staging");
  test_support::MemoryEngine* memory_engine = nullptr;  // null for real engines

 private:
  static std::unique_ptr<pinned::Pool> pool(std::uint64_t bytes, const char* name) {
    return pinned::Pool::create({.bytes = bytes, .lock = pinned::Lock::Never, .name = name})
        .value();
  }

  test_support::MemoryFiles memory_files_;
  std::unique_ptr<test_support::TemporaryDirectory> disk_;
  std::unique_ptr<aio::Engine> engine_;
};

/// Bytes that depend on stream and position: no two words of a test are alike.
inline void fill(std::byte* data, std::uint64_t length, std::uint64_t stream) {
  for (std::uint64_t i = 0; i < length; i += 8) {
    const std::uint64_t word = random_word(99, stream, i / 8);
    std::memcpy(data + i, &word, 8);
  }
}

/// Seals and writes a range of whole blocks that are in the buffer, and waits.
inline Result<void> write_buffer(TierStore& store, ShardId id, ByteRange range,
                                 BufferLease buffer) {
  const std::uint64_t block_bytes = store.shard(id).block_bytes;
  for (std::uint64_t done = 0; done < range.length; done += block_bytes) {
    store.seal(id, (range.offset + done) / block_bytes, buffer.data() + done);
  }
  Transfer completion;
  store.write(completion, id, range, std::move(buffer), aio::Priority::WriteBack);
  return store.wait(completion, id);
}

/// Fills, seals and writes a range of whole blocks, and waits.
inline Result<void> write_range(Harness& harness, TierStore& store, ShardId id, ByteRange range,
                                std::uint64_t stream) {
  BufferLease buffer = harness.buffer(range.length);
  fill(buffer.data(), range.length, stream);
  return write_buffer(store, id, range, std::move(buffer));
}

/// Reads a range into the buffer and returns it, or the error.
inline Result<BufferLease> read_buffer(TierStore& store, ShardId id, ByteRange range,
                                       BufferLease buffer) {
  Transfer completion;
  store.read(completion, id, range, std::move(buffer), aio::Priority::Demand);
  ARTESIAN_TRY_VOID(store.wait(completion, id));
  return completion.take_buffer();
}

inline Result<BufferLease> read_range(Harness& harness, TierStore& store, ShardId id,
                                      ByteRange range) {
  return read_buffer(store, id, range, harness.buffer(range.length));
}

}  // namespace artesian::tiering
