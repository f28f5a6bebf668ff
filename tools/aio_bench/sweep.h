// One measurement of aio_bench: moves the blocks of the ground's files in order through an engine.
// Each slot owns a buffer and submits its next block from the callback of the previous one, so that
// the queue never runs dry.
//
// A mixed sweep starts with reads in a part of its slots. When a read completes, its slot writes
// the same block back, and another slot starts the next read. So reads and writes alternate in the
// queue, with writes following reads at the distance of the queue's length.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "tools/aio_bench/ground.h"

namespace artesian::bench {

class Sweep {
 public:
  enum class Check : std::uint8_t { Nothing, Spot, Whole };
  /// The same interval as fio's: a virtual machine's disk answers a single request sooner if a core
  /// was awake recently (docs/performance.md), and both programs should be compared under equal
  /// conditions.
  static constexpr std::chrono::milliseconds watch_every{10};

  /// A disk that completes nothing for this long is abandoned; 10 s are added for each GB in
  /// flight, since blocks may have 1 GiB.
  static constexpr double patience_seconds = 60;

  Sweep(Ground& ground, aio::Engine& engine, const Transfers& transfers, Check check,
        double patience = patience_seconds);

  /// Takes its buffers, and marks those that it will write. Errors: Exhausted.
  Result<void> prepare();
  /// Goes over the files once, or until the time is over. Meanwhile calls `watch`, if set, every
  /// `watch_every`, on the caller's thread. Errors: Io, NoSpace, Cancelled; Timeout, with a table
  /// of the transfers in the kernel: these are abandoned, and the ground must not be used any more.
  Result<void> run(const std::function<void()>& watch = nullptr);
  std::uint64_t bytes_read() const noexcept { return bytes_read_; }
  std::uint64_t bytes_written() const noexcept { return bytes_written_; }
  /// CPU time that run() spent on checking its progress.
  double watching_cpu_seconds() const noexcept {
    return static_cast<double>(watching_cpu_ns_) * 1e-9;
  }
  /// CPU time that run() spent on marking buffers for later passes.
  double marking_cpu_seconds() const noexcept {
    return static_cast<double>(marking_cpu_ns_) * 1e-9;
  }
  /// When the last transfer of run() ended.
  std::uint64_t end_ns() const noexcept { return still_ns_; }
  /// Number of passes over the files that have begun.
  std::uint32_t laps() const noexcept { return static_cast<std::uint32_t>(next_ / blocks_ + 1); }
  /// True if all checked bytes were right. After a read sweep this checks every byte in the
  /// buffers.
  bool right() const;

 private:
  using Completion = aio::Completion;
  struct Slot {
    Completion completion;
    Sweep* sweep = nullptr;
    std::uint64_t block = 0;
    std::uint64_t length = 0;
    std::uint32_t pass = 0;
    bool writes_back = false;
    std::uint32_t buffer_first = 0;  // number of the marks of its buffer's granules, from here on
    std::optional<std::uint32_t>
        marked_pass;   // the pass of its marks; empty: marks of other buffers
    BufferLease kept;  // held while nothing is in flight
  };

  static void finished(Completion& completion, void* context) noexcept;
  void await_end(const std::function<void()>& watch);
  void give_up(double patience);
  void leave() noexcept;
  void finish(Slot& slot) noexcept;
  bool begin(Slot& slot, BufferLease buffer) noexcept;
  void begin_an_idle_slot() noexcept;
  void submit(Slot& slot, aio::Operation operation, BufferLease buffer) noexcept;
  void mark(Slot& slot, std::uint32_t pass, std::span<std::byte> memory) noexcept;
  void stamp(Slot& slot, std::span<std::byte> block) noexcept;
  std::optional<std::uint64_t> next_sequence() noexcept;
  Ground::WorkFile& file_of(std::uint64_t block) const noexcept;
  std::uint64_t offset_of(std::uint64_t block) const noexcept;
  bool is_right(const Slot& slot, std::span<const std::byte> moved, Check check) const noexcept;

  Ground& ground_;
  aio::Engine& engine_;
  const Transfers transfers_;
  const Check check_;
  const double patience_seconds_;
  std::uint64_t files_ = 0;  // used in turn
  std::uint64_t blocks_ = 0;
  std::deque<Slot> slots_;
  std::vector<Completion*>* batch_ = nullptr;  // collects the first blocks, for one submission
  double reads_per_block_ = 0;                 // 0 to 1
  double writes_per_block_ = 0;                // 0 to 1
  std::uint64_t sequences_min_ = 0;
  std::uint64_t until_ns_ = 0;  // 0 = one pass
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<std::uint64_t> bytes_written_ = 0;
  std::uint64_t watching_cpu_ns_ = 0;
  std::atomic<std::uint64_t> marking_cpu_ns_ = 0;
  std::atomic<std::uint64_t> still_ns_ = 0;
  std::atomic<bool> wrong_ = false;
  std::atomic<bool> failed_ = false;
  std::vector<std::atomic<bool>>
      in_flight_;  // by block: two passes must not move one block at the same time
  std::atomic<std::uint64_t> moving_ = 0;  // completions whose callback has not ended
  std::mutex mutex_;
  std::condition_variable still_;  // signals that nothing is in flight
  std::vector<Slot*> idle_;        // guarded by mutex_
  std::optional<Error> error_;     // the first error; guarded by mutex_
};

}  // namespace artesian::bench
