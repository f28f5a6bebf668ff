// PolledRing: two io_urings of one thread. Direct transfers go to a ring whose completions are
// polled (IOPOLL); such a ring accepts nothing else. All other transfers, and wake-ups, go to a
// plain ring.
//
// Only a transfer shows whether a disk can be polled. When the kernel first refuses one for that
// reason (EOPNOTSUPP), one line is logged, and this transfer and all later ones go to the plain
// ring.
//
// While a polled transfer is in the kernel the thread spins there; other events are seen only after
// that transfer has ended.
#pragma once

#include <atomic>

#include "aio/ring.h"

namespace artesian::aio {

class PolledRing {
 public:
  static constexpr bool registers_memory = true;

  /// As Ring::open. If the kernel refuses a polled ring, this is logged and only the plain ring is
  /// used.
  int open(std::uint32_t depth, Polling polling) noexcept;
  void close() noexcept;
  void wake() const noexcept { plain_.wake(); }
  int register_buffers(const FixedBuffers& buffers) noexcept;
  void stop_registering_files() noexcept;
  /// Returns which polling is in effect. Any thread.
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
  friend struct RingPeer;  // for tests

  Ring plain_;
  Ring polled_;
  bool polls_ = false;
  std::atomic<Polling> polling_ = Polling::None;
  std::vector<Answer> answers_;
};

}  // namespace artesian::aio
