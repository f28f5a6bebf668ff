// PolledRing: two io_urings of one thread. Direct transfers go to one whose completions are polled
// for (IOPOLL); such a ring takes nothing else. All else goes to a plain one, which also wakes.
//
// Whether a disk can be polled only a transfer tells. At the first that the kernel refuses for that
// (EOPNOTSUPP) one line of log says so, and this transfer and all later ones go to the plain ring.
//
// While a polled transfer is in the kernel the thread spins there; what comes meanwhile is seen
// when that transfer is back.
#pragma once

#include <atomic>

#include "aio/ring.h"

namespace artesian::aio {

class PolledRing {
 public:
  static constexpr bool registers_memory = true;

  /// As Ring::open. Where the kernel refuses a polled ring, and said so, there is none.
  int open(std::uint32_t depth, Polling polling) noexcept;
  void close() noexcept;
  void wake() const noexcept { plain_.wake(); }
  int register_buffers(const FixedBuffers& buffers) noexcept;
  void stop_registering_files() noexcept;
  /// Any thread.
  Polling polling() const noexcept { return polling_.load(std::memory_order_relaxed); }

  void prepare(Block& block, std::uint64_t length) noexcept;
  void submit() noexcept;
  void wait(std::uint32_t count) noexcept;
  std::span<const Answer> reap() noexcept;

  std::uint32_t blocks_pending() const noexcept {
    return plain_.blocks_pending() + polled_.blocks_pending();
  }
  std::uint32_t blocks_queued() const noexcept {
    return plain_.blocks_queued() + polled_.blocks_queued();
  }
  std::uint64_t exchange_submit_calls() noexcept {
    return plain_.exchange_submit_calls() + polled_.exchange_submit_calls();
  }

 private:
  friend struct RingPeer;  // tests

  Ring plain_;
  Ring polled_;
  bool polls_ = false;
  std::atomic<Polling> polling_ = Polling::None;
  std::vector<Answer> answers_;
};

}  // namespace artesian::aio
