// Faults for the engines' tests, each class named after its fault, and memory that counts its
// leases.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <latch>
#include <mutex>
#include <string>
#include <vector>

#include "aio/engine_base.h"
#include "base/random.h"
#include "base/units.h"

namespace artesian::aio {

/// Aligned heap memory that counts its leases: all must be returned at the end.
class CountedBuffers final : public BufferOwner {
 public:
  ~CountedBuffers() {
    ARTESIAN_CHECK(lent_ == abandoned_.size(), lent_.load());
    for (std::byte* data : abandoned_) std::free(data);  // their transfers have ended by then
  }
  BufferLease lease(std::uint64_t size) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, round_up(size + 1, 4096)));
    ++lent_;
    return {data, size, this};
  }
  void give_back(std::byte* data, std::uint64_t) noexcept override {
    std::free(data);
    --lent_;
  }
  void abandon(std::byte* data, std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    abandoned_.push_back(data);
  }
  std::uint64_t lent() const noexcept { return lent_; }
  std::uint64_t abandoned() {
    const std::lock_guard lock(mutex_);
    return abandoned_.size();
  }

 private:
  std::atomic<std::uint64_t> lent_ = 0;
  std::mutex mutex_;
  std::vector<std::byte*> abandoned_;
};

/// A file whose reads of 8 bytes stall in the kernel until release(): an eventfd. pread cannot read
/// it, so the thread pool needs StalledRead.
class StalledFile final : public File {
 public:
  StalledFile() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {}
  ~StalledFile() override { close(descriptor_); }
  /// Lets `count` reads complete.
  void release(std::uint64_t count = 1) {
    ARTESIAN_CHECK(::write(descriptor_, &count, sizeof count) == sizeof count);
  }

  int descriptor() const noexcept override { return descriptor_; }
  const std::string& path() const noexcept override { return path_; }
  bool direct() const noexcept override { return false; }
  std::uint64_t alignment() const noexcept override { return 1; }
  Result<std::uint64_t> size() noexcept override { return 0; }
  Result<void> allocate(std::uint64_t) noexcept override { return {}; }
  Result<void> sync() noexcept override { return {}; }
  Result<void> lock() noexcept override { return {}; }
  Result<void> read_at(void*, std::uint64_t, std::uint64_t) noexcept override { return {}; }
  Result<void> write_at(const void*, std::uint64_t, std::uint64_t) noexcept override { return {}; }

 private:
  std::string path_ = "stalled";
  int descriptor_;
};

/// Reads of a StalledFile by read() in place of pread().
class StalledRead final : public FaultSeam {
 public:
  std::uint64_t length_to_ask(const Block& block) noexcept override {
    std::uint64_t value = 0;
    if (stalls(block)) {
      const int descriptor = block.request().file->descriptor();
      ARTESIAN_CHECK(::read(descriptor, &value, sizeof value) == sizeof value);
    }
    return block.rest();
  }
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    return stalls(block) ? 8 : result;
  }

 private:
  static bool stalls(const Block& block) noexcept {
    return dynamic_cast<StalledFile*>(block.request().file) != nullptr;
  }
};

/// Reads a StalledFile by waiting until it is readable, for engines in which a stalled read would
/// stall the whole lane.
class StalledPoll final : public FaultSeam {
 public:
  int stalls_on(const Block& block) noexcept override {
    const auto* file = dynamic_cast<StalledFile*>(block.request().file);
    return file != nullptr ? file->descriptor() : -1;
  }
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    const int descriptor = stalls_on(block);
    if (descriptor < 0) return result;
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    std::uint64_t value = 0;
    if (poll(&ready, 1, 0) != 1) return -EAGAIN;  // another thread took it
    return ::read(descriptor, &value, sizeof value);
  }
};

/// The kernel moves at most `length` bytes in the first call of a block.
class ShortTransfer final : public FaultSeam {
 public:
  std::uint64_t length_to_ask(const Block& block) noexcept override {
    return block.done == 0 ? std::min(length, block.rest()) : block.rest();
  }
  std::uint64_t length = 1;
};

/// The kernel reports that the first call of a block moved at most `length` bytes.
class ShortAnswer final : public FaultSeam {
 public:
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    return block.done == 0 ? std::min(result, length) : result;
  }
  std::int64_t length = 1;
};

/// One call in five is interrupted or refused, in bursts of up to `burst` in a row.
class Interruptions final : public FaultSeam {
 public:
  explicit Interruptions(std::uint64_t seed) : seed_(seed) {}
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    const std::uint64_t word = random_word(seed_, 0, calls_++);
    if (block.refusals >= burst || (block.refusals == 0 && word % 5 != 0)) return result;
    return (word >> 32) % 2 == 0 ? -EINTR : -EAGAIN;
  }
  std::uint32_t burst = 64;

 private:
  std::uint64_t seed_;
  std::atomic<std::uint64_t> calls_ = 0;
};

/// Every block at a multiple of `every` bytes fails with EIO.
class FailingSectors final : public FaultSeam {
 public:
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    if (block.offset % every != 0) return result;
    ++failures;
    return -EIO;
  }
  std::uint64_t every = 3 * 4096;
  std::atomic<std::uint64_t> failures = 0;
};

/// The first try of each block of `operation` fails with EIO, and no other.
class FailingOnce final : public FaultSeam {
 public:
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    if (block.request().operation != operation || block.continued != 0) return result;
    ++failures;
    return -EIO;
  }
  Operation operation = Operation::Read;
  std::atomic<std::uint64_t> failures = 0;
};

/// Write-backs are held in their threads until release(). All else is left to `inner`, if there is
/// one.
class HeldWriteBacks final : public FaultSeam {
 public:
  explicit HeldWriteBacks(FaultSeam* inner) : inner_(inner) {}
  std::uint64_t length_to_ask(const Block& block) noexcept override {
    return inner_ == nullptr ? block.rest() : inner_->length_to_ask(block);
  }
  int stalls_on(const Block& block) noexcept override {
    return inner_ == nullptr ? -1 : inner_->stalls_on(block);
  }
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    if (block.request().priority == Priority::WriteBack) {
      ++held_;
      released_.wait();
      --held_;
    }
    return inner_ == nullptr ? result : inner_->answer(block, result);
  }
  std::uint64_t held() const noexcept { return held_; }
  void release() { released_.count_down(); }

 private:
  FaultSeam* const inner_;
  std::atomic<std::uint64_t> held_ = 0;
  std::latch released_{1};
};

/// The first answer reaches the engine only after release().
class DelayedAnswer final : public FaultSeam {
 public:
  std::int64_t answer(const Block&, std::int64_t result) noexcept override {
    if (!answered_.exchange(true)) {
      arrived_.count_down();
      released_.wait();
    }
    return result;
  }
  /// Waits for the first answer.
  void await() { arrived_.wait(); }
  void release() { released_.count_down(); }

 private:
  std::atomic<bool> answered_ = false;
  std::latch arrived_{1};
  std::latch released_{1};
};

}  // namespace artesian::aio
