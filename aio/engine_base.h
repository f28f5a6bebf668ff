// EngineBase: what every engine shares. It splits requests into blocks, hands blocks out by class,
// judges the kernel's answers, records the first failure of a request, and publishes finished
// completions. An engine adds threads that move blocks.
//
// One mutex guards queues and counters. A block belongs to the progress thread that took it until
// it calls finish(). Completions are published by finish() on progress threads: first those without
// a callback, then, outside the mutex, each with its callback. Nothing is allocated after creation,
// except the text of a failure.
//
// Note [End of a completion]: `state_` = Ready is the last touch of a completion without a
// callback, as its owner may destroy it at once. Each waiter sleeps on a condition variable of its
// own, never on one inside the completion. It is woken when its condition holds, not at each
// completion, which halves the context switches of a transfer. In-flight counts fall only after
// callbacks, so that drain() covers them.
//
// Note [Write cap]: writing back is never urgent, but a block that the kernel has accepted cannot
// be overtaken. So while other transfers are in the kernel, blocks of the write-back class take at
// most half of the slots, so that a new read finds a free one. With no other transfers, they may
// take all slots.
//
// Note [Ends]: direct I/O moves whole sectors, to and from aligned memory. If a request of a direct
// file begins or ends within a sector, its middle is transferred with direct I/O, and its first and
// last bytes through the page cache. If memory and offset never reach sector boundaries together,
// the whole request goes through the page cache. Requests are cut at page boundaries, not sector
// boundaries: the page cache reads and writes back whole pages, and would otherwise overwrite a
// directly written middle with older bytes. An end on a sector boundary needs no cut, wherever it
// lies in its page.
//
// Note [Abandoned transfers]: the kernel may sit on a transfer for ever (a network disk that is
// gone, a dying device). Abandoning its completion cuts the completion off: blocks in the kernel
// lose their pointer to it, its buffer is never given back, and a block whose answer arrives after
// all ends there and is not continued, as its descriptor may belong to another file by then. The
// same holds for a block that a progress thread has taken but not yet handed over. The thread of
// such a block cannot be joined and its ring cannot be closed. So EngineOwner, the only place where
// engines are destroyed, keeps an engine with such blocks until the process ends.
#pragma once

#include <condition_variable>
#include <mutex>

#include "aio/engine.h"
#include "aio/latency_histogram.h"

namespace artesian::aio {

/// One transfer on its way: a piece of a request of at most `block_size` bytes.
struct Block {
  Completion* completion = nullptr;  // null once abandoned; guarded by the engine's mutex
  Request origin;                    // the request that this block is a piece of
  int descriptor = -1;               // descriptor for the transfer
  std::uint64_t alignment = 1;       // offsets at which a short transfer can be continued
  std::byte* memory = nullptr;
  std::uint64_t offset = 0;  // into the file
  std::uint64_t length = 0;
  std::uint64_t done = 0;  // bytes moved so far
  std::uint64_t taken_ns = 0;
  std::uint32_t refusals = 0;      // EINTR and EAGAIN in a row
  std::uint32_t continued = 0;     // times handed over again
  std::uint32_t read_retries = 0;  // reads repeated after EIO
  bool retried_here = false;       // already retried after EIO at offset + done
  bool registered = false;         // transferred through registered memory
  bool file_registered = false;
  std::int16_t file_slot = -1;  // slot in FileSlots (aio/file_slots.h)
  bool end_of_file = false;
  bool failed = false;
  int system_error = 0;
  // link in the list of blocks in the kernel; guarded by the engine's mutex
  Block* previous = nullptr;
  Block* next = nullptr;

  const Request& request() const noexcept { return origin; }
  std::uint64_t rest() const noexcept { return length - done; }
};

/// Lets tests inject faults: before a block is handed to the kernel and after the kernel has
/// answered.
class FaultSeam {
 public:
  virtual ~FaultSeam() = default;
  /// Bytes to ask the kernel for: 1 to block.rest().
  virtual std::uint64_t length_to_ask(const Block& block) noexcept { return block.rest(); }
  /// A descriptor whose readiness stands for the end of this transfer, or -1. For engines whose
  /// kernel interface offers no file that stalls.
  virtual int stalls_on(const Block&) noexcept { return -1; }
  /// Returns the kernel's answer (bytes or -errno) as the engine shall see it.
  virtual std::int64_t answer(const Block&, std::int64_t result) noexcept { return result; }
};

class EngineBase : public Engine {
 public:
  /// Checks that stop() went well: the derived destructor must have joined its threads.
  ~EngineBase() override;
  void submit(std::span<Completion* const> completions) noexcept final;
  Result<void> wait(Completion& completion, Deadline deadline) noexcept final;
  void cancel(Completion& completion) noexcept final;
  void abandon(Completion& completion) noexcept final;
  Result<void> drain(Deadline deadline) noexcept final;
  EngineStatistics statistics() const noexcept final;
  EngineKind kind() const noexcept final { return kind_; }
  /// Waits at most `stop_seconds` until nothing is in flight, then abandons the rest. Afterwards
  /// progress threads must end, and requests that the last callbacks submit end as Cancelled.
  /// Returns whether the threads can end: nothing is in the kernel.
  bool stop() noexcept;
  /// Called for an engine that is never destroyed: its threads will not be joined.
  virtual void detach_threads() noexcept {}

 protected:
  using Lock = std::unique_lock<std::mutex>;
  enum class Verdict : std::uint8_t { Done, Continue };
  enum class Headway : std::uint8_t { Made, None, TooLate };

  EngineBase(EngineKind kind, const EngineOptions& options, FaultSeam* faults) noexcept;

  /// Marks the calling thread as one that must not wait, blocks the process's signals on it, and
  /// lets it run on every processor of the process (base/process_cpus.h); threads that the kernel
  /// starts for it inherit that.
  static void enter_progress_thread() noexcept;

  /// Called when work may have arrived for up to `blocks` blocks. Called without the mutex.
  virtual void wake(std::uint64_t blocks) noexcept = 0;
  /// Called when some progress thread must call finish() soon, whatever it waits for; also after
  /// stop().
  virtual void wake_all() noexcept = 0;

  /// For engines that do their work on the waiting thread, with a clock of their own: called with
  /// the lock held, again and again while it makes progress and the wait has not ended. It may
  /// release the lock meanwhile.
  virtual Headway work_while_waiting(Lock&, Deadline) noexcept { return Headway::None; }

  Lock lock() const noexcept { return Lock(mutex_); }
  /// True if blocks or ended completions wait for a progress thread.
  bool has_work(const Lock& lock) const noexcept;
  bool has_blocks(const Lock& lock) const noexcept;
  bool has_ended(const Lock& lock) const noexcept;
  bool stopping(const Lock& lock) const noexcept;
  std::uint64_t blocks_in_kernel(const Lock& lock) const noexcept;
  std::uint64_t in_flight(const Lock& lock) const noexcept;
  /// Fills slots from the front with the next blocks, most urgent class first; returns how many.
  std::size_t take(const Lock& lock, std::span<Block* const> slots) noexcept;
  /// Bytes to request from the kernel next. 0: the block's completion was abandoned, and the block
  /// is done.
  std::uint64_t length_to_ask(const Block& block) const noexcept;
  int stalls_on(const Block& block) const noexcept {
    return faults_ == nullptr ? -1 : faults_->stalls_on(block);
  }
  /// True if any completion was abandoned: a descriptor number may then belong to another file than
  /// a transfer in the kernel uses. See Note [Abandoned transfers].
  bool abandoned_any() const noexcept { return abandoned_any_.load(); }
  /// Judges the kernel's answer (bytes or -errno): resubmit the rest, or finish.
  Verdict settle(Block& block, std::int64_t result) const noexcept;
  /// Gives blocks back; publishes completions that ended and runs callbacks. Called without the
  /// mutex.
  void finish(std::span<Block* const> blocks, std::uint64_t submit_calls) noexcept;
  const EngineOptions options_;

 private:
  /// Intrusive first-in-first-out list.
  struct List {
    Completion* head = nullptr;
    Completion* tail = nullptr;
    void push(Completion& completion) noexcept;
    void pop() noexcept;
    void remove(Completion& completion) noexcept;
  };

  /// A thread asleep until `completion` is ready. Without a completion: until nothing is in flight
  /// or, if `for_kernel`, nothing is in the kernel. Lies on that thread's stack.
  struct Waiter {
    const Completion* completion = nullptr;
    bool for_kernel = false;
    std::condition_variable woken{};
    Waiter* next = nullptr;
  };

  /// A part of a request that is transferred in one way, direct or through the page cache: see Note
  /// [Ends].
  struct Stretch {
    std::uint64_t end = 0;  // end in bytes, from the request's beginning
    int descriptor = -1;
    std::uint64_t alignment = 1;
  };

  bool may_take(const List& queue) const noexcept;
  static Stretch stretch_at(const Completion& completion, std::uint64_t byte) noexcept;
  Block next_block(Completion& completion, std::uint64_t now_ns) const noexcept;
  void begin(Completion& completion) const noexcept;
  std::uint64_t count_blocks(const Completion& completion) const noexcept;
  bool drop_queued(const Lock& lock, Completion& completion) noexcept;
  bool is_abandoned(const Block& block) const noexcept;
  void cut_off(const Lock& lock, Completion& completion) noexcept;
  void cut_off_all(const Lock& lock) noexcept;
  void run_last_callbacks() noexcept;
  std::string describe_in_flight(const Lock& lock) const;
  List& queue_of(const Completion& completion) noexcept;
  void account(const Lock& lock, Block& block, std::uint64_t now_ns) noexcept;
  void fail(Completion& completion, Error error) noexcept;
  void end(const Lock& lock, Completion& completion, std::uint64_t now_ns) noexcept;
  void run_callbacks(List ended) noexcept;
  bool holds(const Lock& lock, const Waiter& waiter) const noexcept;
  void wake_waiters(const Lock& lock) noexcept;
  bool sleep_until(Lock& lock, Waiter& waiter, Deadline deadline) noexcept;
  bool owns(const Lock& lock) const noexcept { return lock.mutex() == &mutex_ && lock.owns_lock(); }

  const EngineKind kind_;
  const std::uint64_t
      write_backs_max_;      // slots for write-backs while other transfers are in the kernel
  FaultSeam* const faults_;  // null outside tests
  mutable std::mutex mutex_;
  // All members below are guarded by mutex_.
  std::array<List, 4> queues_;     // one for each Priority
  List ended_;                     // completions whose callbacks are still to run
  std::uint64_t queued_ = 0;       // completions in queues_
  std::uint64_t blocks_left_ = 0;  // blocks left in the queues
  std::uint64_t in_flight_ = 0;
  std::uint64_t blocks_in_kernel_ = 0;
  // write-backs among the blocks in the kernel; see Note [Write cap]
  std::uint64_t write_backs_in_kernel_ = 0;
  Block* in_kernel_ = nullptr;  // the latest block in the kernel; linked by Block::next
  std::atomic<bool> abandoned_any_ = false;
  Waiter* waiters_ = nullptr;
  bool stopping_ = false;
  EngineStatistics statistics_;
  LatencyHistogram latencies_;
};

/// Owns an engine, or leaks it on purpose: see Note [Abandoned transfers].
class EngineOwner final : public Engine {
 public:
  explicit EngineOwner(std::unique_ptr<EngineBase> engine) noexcept : engine_(std::move(engine)) {}
  EngineOwner(const EngineOwner&) = delete;
  EngineOwner& operator=(const EngineOwner&) = delete;
  ~EngineOwner() override;
  void submit(std::span<Completion* const> completions) noexcept override {
    engine_->submit(completions);
  }
  Result<void> wait(Completion& completion, Deadline deadline) noexcept override {
    return engine_->wait(completion, deadline);
  }
  void cancel(Completion& completion) noexcept override { engine_->cancel(completion); }
  void abandon(Completion& completion) noexcept override { engine_->abandon(completion); }
  Result<void> drain(Deadline deadline) noexcept override { return engine_->drain(deadline); }
  std::uint32_t rings() const noexcept override { return engine_->rings(); }
  int register_with_ring(std::uint32_t ring,
                         std::span<const std::span<std::byte>> ranges) noexcept override {
    return engine_->register_with_ring(ring, ranges);
  }
  EngineStatistics statistics() const noexcept override { return engine_->statistics(); }
  EngineKind kind() const noexcept override { return engine_->kind(); }
  Polling polling() const noexcept override { return engine_->polling(); }

 private:
  std::unique_ptr<EngineBase> engine_;
};

}  // namespace artesian::aio
