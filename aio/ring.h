// Ring: one io_uring, used by one thread: the one that called open(). It prepares transfers of
// blocks, submits them in batches, sleeps in the kernel until something ends, and can be woken by
// other threads through an eventfd that the ring itself reads.
//
// Note [Refused submissions]: io_uring_enter may refuse (EAGAIN, ENOMEM, EBUSY). With transfers in
// the kernel the thread waits for one of those to end and tries again; with none, after 64 refusals
// in a row, the transfers not handed over are removed from the queue and fail. The kernel reads the
// queue only during the call, so that moving the tail back is safe. If the read of the eventfd was
// among them, the thread sleeps in a plain read of the eventfd instead. With SQPOLL a kernel thread
// reads the queue at any time and refuses no transfer: only the call can be refused, and is then
// repeated.
#pragma once

#include <liburing.h>

#include <span>
#include <vector>

#include "aio/answer.h"
#include "aio/file_slots.h"
#include "aio/fixed_buffers.h"

namespace artesian::aio {

class Ring {
 public:
  static constexpr bool registers_memory = true;

  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  /// Sets up a ring for `depth` transfers, and tries it. Returns 0 or an errno (EOPNOTSUPP: kernel
  /// too old). If SQPOLL is refused, the ring works without it and logs that. With IOPOLL the ring
  /// accepts only direct transfers and cannot be woken: PolledRing (aio/polled_ring.h) adds another
  /// ring for the rest.
  int open(std::uint32_t depth, Polling polling = Polling::None) noexcept;
  /// Closes the ring. Call it on the thread that called open().
  void close() noexcept;
  /// Makes wait() return soon. Any thread, from open() to the destructor: the eventfd stays open
  /// that long, as a thread that wakes this one for its end must not find the number closed or
  /// reused.
  void wake() const noexcept;

  /// Registers memory; an empty set unregisters it. Returns 0 or an errno. Nothing may be in the
  /// kernel.
  int register_buffers(const FixedBuffers& buffers) noexcept;

  /// From now on files are not registered: see Note [Registered files] in aio/file_slots.h.
  void stop_registering_files() noexcept { files_.stop(); }
  /// Returns which polling is in effect.
  Polling polling() const noexcept;

  /// Queues a transfer of the block's next `length` bytes.
  void prepare(Block& block, std::uint64_t length) noexcept;
  /// Submits what is queued, without waiting.
  void submit() noexcept;
  /// Submits what is queued and sleeps until there are `count` answers, wake-ups included.
  void wait(std::uint32_t count) noexcept;
  /// Submits what is queued and lets the kernel complete transfers, without waiting.
  void glance() noexcept;
  /// True if reap() would return any answer.
  bool has_answers() const noexcept {
    return !withdrawn_.empty() || io_uring_cq_ready(&ring_) != 0;
  }
  /// Takes the answers that have arrived; the span is valid until the next call.
  std::span<const Answer> reap() noexcept;

  /// Blocks prepared and not answered yet.
  std::uint32_t blocks_pending() const noexcept { return blocks_pending_; }
  /// Blocks prepared and not handed over yet.
  std::uint32_t blocks_queued() const noexcept { return blocks_queued_; }
  /// System calls that handed over blocks, since the last call of this function.
  std::uint64_t exchange_submit_calls() noexcept { return std::exchange(submit_calls_, 0); }

 private:
  friend struct RingPeer;  // for tests
  using Setup = int (*)(unsigned entries, io_uring* ring, io_uring_params* params);
  static Setup setup;  // the kernel's call; tests replace it

  int probe() noexcept;
  io_uring_sqe& next_entry() noexcept;
  void arm_wake() noexcept;
  bool submits_by_call() const noexcept;
  void enter(std::uint32_t wait_count) noexcept;
  template <typename Visit>
  void visit_queue(Visit visit) const noexcept;
  void withdraw(int system_error) noexcept;
  void expect_nothing_lost() const noexcept;

  io_uring ring_{};
  bool opened_ = false;
  int event_ = -1;
  std::uint64_t event_count_ = 0;  // buffer for reads of the eventfd
  bool wake_armed_ = false;
  bool wake_refused_ = false;  // whether the read of the eventfd was refused since the last sleep
  std::uint32_t blocks_pending_ = 0;
  std::uint32_t blocks_queued_ = 0;  // blocks prepared and perhaps not yet submitted
  std::uint32_t refusals_ = 0;
  std::uint64_t submit_calls_ = 0;
  const FixedBuffers* buffers_ = nullptr;
  FileSlots files_;
  std::vector<Answer> answers_;
  std::vector<Answer> withdrawn_;
};

}  // namespace artesian::aio
