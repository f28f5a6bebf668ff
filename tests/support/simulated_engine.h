// SimulatedEngine: an I/O engine whose disk is simulated from a seed. It really moves bytes. The
// seed decides in which order, after which delay of a virtual clock, how many at a time, and which
// calls are interrupted or fail. The same seed and the same calls give the same run, of which
// trace() is a checksum.
//
// It runs in one of two ways. WhileWaited: inside wait() and drain() of the one thread that uses
// it, without a thread of its own. Deadlines are then of the virtual clock, so that a disk that is
// a thousand times too slow costs no time to test. Background: on a thread, as the other engines.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "aio/engine_base.h"
#include "base/random.h"

namespace artesian::test_support {

struct SimulatedOptions {
  enum class Steps : std::uint8_t { WhileWaited, Background };
  Steps steps = Steps::WhileWaited;
  std::uint64_t seed = 1;
  std::uint64_t delay_us_max = 1000;  // of the virtual clock; each transfer draws its own
  // Of 1,000 calls, how many:
  std::uint32_t slow = 0;  // take 100 times the mean delay
  std::uint32_t shortened = 0;
  std::uint32_t interrupted = 0;    // EINTR or EAGAIN
  std::uint32_t read_failures = 0;  // EIO
  std::uint32_t write_failures = 0;
};

class SimulatedEngine final : public aio::EngineBase {
 public:
  SimulatedEngine(const aio::EngineOptions& options, const SimulatedOptions& simulated,
                  aio::FaultSeam* faults = nullptr)
      : EngineBase(aio::EngineKind::Threads, options, faults),
        simulated_(simulated),
        event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        transfers_(std::size_t{options.queue_depth} * options.threads) {
    if (background()) thread_ = std::thread([this] { run(); });
  }
  ~SimulatedEngine() override {
    ARTESIAN_CHECK(stop());
    if (thread_.joinable()) thread_.join();
    close(event_);
  }
  SimulatedEngine(const SimulatedEngine&) = delete;
  SimulatedEngine& operator=(const SimulatedEngine&) = delete;

  void detach_threads() noexcept override {
    if (thread_.joinable()) thread_.detach();
  }
  /// Lets `duration_ns` of the virtual clock pass. WhileWaited only.
  void pass(std::uint64_t duration_ns) noexcept {
    Lock locked = lock();
    const std::uint64_t until_ns = now_ns_ + duration_ns;
    while (step(locked, until_ns) == Headway::Made) continue;
    now_ns_ = until_ns;
  }
  /// Nanoseconds of the virtual clock. WhileWaited only.
  std::uint64_t virtual_ns() const noexcept { return now_ns_; }
  /// A checksum of every step: what was moved, when, and how it ended. WhileWaited only.
  std::uint64_t trace() const noexcept { return trace_; }
  std::uint64_t faults_injected() const noexcept { return injected_; }

 protected:
  void wake(std::uint64_t) noexcept override {
    if (background()) return ring();
    const Lock locked = lock();
    schedule(locked);
  }
  void wake_all() noexcept override {
    if (background()) ring();
  }
  Headway work_while_waiting(Lock& lock, Deadline deadline) noexcept override {
    if (background()) return Headway::None;
    const std::uint64_t real_ns = monotonic_ns();
    const std::uint64_t left_ns = deadline.at_ns - std::min(deadline.at_ns, real_ns);
    const std::uint64_t until_ns = std::max(now_ns_, now_ns_ + left_ns);
    return step(lock, left_ns > (~std::uint64_t{0} >> 1) ? ~std::uint64_t{0} : until_ns);
  }

 private:
  struct Transfer {
    aio::Block block;
    std::uint64_t due_ns = 0;
    bool in_flight = false;
  };

  bool background() const noexcept {
    return simulated_.steps == SimulatedOptions::Steps::Background;
  }
  void ring() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(event_, &one, sizeof one);
  }
  std::uint64_t draw() noexcept { return random_word(simulated_.seed, 1, draws_++); }
  bool happens(std::uint32_t permille) noexcept {
    const bool does = permille != 0 && draw() % 1000 < permille;
    injected_ += does ? 1 : 0;
    return does;
  }

  void schedule(const Lock& lock) noexcept {
    if (!options_.overlap_events && blocks_in_kernel(lock) != 0) return;
    for (Transfer& transfer : transfers_) {
      if (transfer.in_flight) continue;
      aio::Block* slot = &transfer.block;
      if (take(lock, {&slot, 1}) == 0) return;
      transfer.in_flight = true;
      delay(transfer);
    }
  }
  void delay(Transfer& transfer) noexcept {
    const std::uint64_t longest = simulated_.delay_us_max * 1000;
    transfer.due_ns = now_ns_ + (happens(simulated_.slow) ? 50 * longest : draw() % (longest + 1));
  }

  /// The file that the transfer waits for, or -1.
  int stall_of(const Transfer& transfer) const noexcept {
    const int descriptor = stalls_on(transfer.block);
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    return descriptor >= 0 && poll(&ready, 1, 0) == 1 ? -1 : descriptor;
  }

  /// Makes the next step of the virtual clock, if it is due by `until_ns`.
  Headway step(Lock& lock, std::uint64_t until_ns) noexcept {
    schedule(lock);
    if (has_ended(lock)) {
      lock.unlock();
      finish({}, 0);
      lock.lock();
      return Headway::Made;
    }
    Transfer* next = nullptr;
    bool any = false;
    for (Transfer& transfer : transfers_) {
      if (!transfer.in_flight) continue;
      any = true;
      const bool sooner = next == nullptr || transfer.due_ns < next->due_ns;
      if (sooner && stall_of(transfer) < 0) next = &transfer;
    }
    if (next == nullptr && (!any || background())) return Headway::None;
    if (next == nullptr || next->due_ns > until_ns) {
      now_ns_ = until_ns;
      return Headway::TooLate;
    }
    now_ns_ = std::max(now_ns_, next->due_ns);
    lock.unlock();
    const std::int64_t result = move(next->block);
    note(next->block, result);
    if (settle(next->block, result) == Verdict::Continue) {
      lock.lock();
      delay(*next);
      return Headway::Made;
    }
    aio::Block* const ended = &next->block;
    finish({&ended, 1}, 1);
    lock.lock();
    next->in_flight = false;
    schedule(lock);
    return Headway::Made;
  }

  std::int64_t move(const aio::Block& block) noexcept {
    if (stalls_on(block) >= 0) return 0;  // the stall decides what follows
    const bool reads = block.request().operation == aio::Operation::Read;
    if (happens(simulated_.interrupted)) return draw() % 2 == 0 ? -EINTR : -EAGAIN;
    if (happens(reads ? simulated_.read_failures : simulated_.write_failures)) return -EIO;
    std::uint64_t length = length_to_ask(block);
    if (length > block.alignment && happens(simulated_.shortened)) {
      length = block.alignment * (1 + draw() % ((length - 1) / block.alignment));
    }
    std::byte* const memory = block.memory + block.done;
    const std::uint64_t offset = block.offset + block.done;
    if (block.descriptor < 0) {  // a file in memory
      File& file = *block.request().file;
      const bool moved = reads ? file.read_at(memory, length, offset).has_value()
                               : file.write_at(memory, length, offset).has_value();
      return moved ? static_cast<std::int64_t>(length) : -EIO;
    }
    const auto at = static_cast<off_t>(offset);
    const ssize_t moved = reads ? pread(block.descriptor, memory, length, at)
                                : pwrite(block.descriptor, memory, length, at);
    return moved < 0 ? -errno : moved;
  }

  void note(const aio::Block& block, std::int64_t result) noexcept {
    const auto operation = static_cast<std::uint64_t>(block.request().operation);
    for (const std::uint64_t word : {operation, block.offset, block.length, block.done, now_ns_,
                                     static_cast<std::uint64_t>(result)}) {
      trace_ = random_word(trace_, word, 0);
    }
  }

  void run() noexcept {
    enter_progress_thread();
    Lock locked = lock();
    while (true) {
      if (step(locked, ~std::uint64_t{0}) == Headway::Made) continue;
      if (stopping(locked) && blocks_in_kernel(locked) == 0) return;
      std::vector<pollfd> wakers{{.fd = event_, .events = POLLIN, .revents = 0}};
      for (const Transfer& transfer : transfers_) {
        const int descriptor = transfer.in_flight ? stalls_on(transfer.block) : -1;
        if (descriptor >= 0) wakers.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
      }
      locked.unlock();
      poll(wakers.data(), wakers.size(), -1);
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = read(event_, &count, sizeof count);
      locked.lock();
    }
  }

  const SimulatedOptions simulated_;
  const int event_;
  std::vector<Transfer> transfers_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t draws_ = 0;
  std::uint64_t trace_ = 0;
  std::uint64_t injected_ = 0;
  std::thread thread_;
};

}  // namespace artesian::test_support
