// Asynchronous file I/O: one interface, several engines (io_uring, libaio, thread pool), chosen
// at run time.
//
// Rules. The caller owns each Completion (address-stable, nothing is allocated per request) and
// moves a BufferLease into it; the engine gives both back when the completion is ready, never
// before, not even when cancelled. A request longer than `block_size` is split; at most
// `queue_depth` blocks per thread are in the kernel; the rest wait inside the engine in their class
// (demand before prefetch before optimizer reads before write-back; write-back takes at most half
// of the slots beside others). Short transfers, EINTR and EAGAIN (64 in a row) are continued, and a
// read that failed with EIO is tried once more; any other failure ends the request with an Error
// that names file, offset, length and errno. A failed write is never tried again and poisons its
// file (base/file_system.h, Note [Poison]). Progress threads sleep in the kernel, they never spin.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "aio/priority.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/result.h"

namespace artesian::aio {

enum class Operation : std::uint8_t { Read, Write };
enum class EngineKind : std::uint8_t { IoUring, Libaio, Threads };
/// io_uring's polling modes. Submission (SQPOLL): a kernel thread polls the queue, so handing over
/// work needs no system call; it spins, and sleeps after 10 ms without work. Completion (IOPOLL):
/// for direct transfers the engine's thread spins and polls the disk, which then sends no
/// interrupts.
enum class Polling : std::uint8_t { None, Submission, Completion, Both };
inline constexpr Polling pollings[] = {Polling::None, Polling::Submission, Polling::Completion,
                                       Polling::Both};

constexpr bool polls_submission(Polling polling) noexcept {
  return polling == Polling::Submission || polling == Polling::Both;
}
constexpr bool polls_completion(Polling polling) noexcept {
  return polling == Polling::Completion || polling == Polling::Both;
}

/// A transfer to make. `length` <= buffer.size(). The file must stay open until the completion is
/// ready. With a direct file, offset, length and memory should be multiples of file->alignment().
/// If only an end of the range is not aligned, the file page (4096 bytes) that holds this end goes
/// through the page cache. If memory and offset differ modulo the alignment, the whole transfer
/// goes through the page cache. Such transfers are counted as misaligned: they are correct but
/// slower, and their written bytes are on the disk only after a sync. No other transfer in flight
/// may access the same page with direct I/O.
struct Request {
  Operation operation = Operation::Read;
  Priority priority = Priority::Demand;
  File* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class Engine;

/// One request in flight, owned by the caller; neither copied nor moved. Reusable once ready.
/// The destructor checks that it is not in flight.
/// With a callback, the callback is the signal: the completion must live, and be left alone by
/// other threads, until it was called. Engine::drain waits for callbacks too.
class Completion {
 public:
  /// Runs on a progress thread after the completion became ready; it may submit requests (also this
  /// completion again), but not wait.
  using Callback = void (*)(Completion& completion, void* context) noexcept;

  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion();

  /// Sets up the next use. Not while in flight.
  void prepare(const Request& request, BufferLease buffer, Callback callback = nullptr,
               void* context = nullptr) noexcept;
  bool in_flight() const noexcept;
  /// True once finished, successfully or not; acquires what the engine wrote.
  bool ready() const noexcept;
  /// Bytes moved (= length), or why not. Errors: Io, NoSpace, Cancelled. Only when ready.
  Result<std::uint64_t> result() const;
  /// Takes the buffer back; the lease is empty after Engine::abandon. Only when ready or never
  /// submitted.
  BufferLease take_buffer() noexcept;
  const Request& request() const noexcept;
  /// Times of submission and of completion, ns on the engine's clock; 0 until then.
  std::uint64_t submitted_ns() const noexcept;
  std::uint64_t finished_ns() const noexcept;

 private:
  friend class EngineBase;
  enum class State : std::uint8_t { Idle, InFlight, Ready };

  Request request_;
  BufferLease buffer_;
  Callback callback_ = nullptr;
  void* context_ = nullptr;
  std::atomic<State> state_{State::Idle};
  // The rest belongs to the engine while in flight.
  Completion* next_ = nullptr;     // intrusive queue link
  bool queued_ = false;            // queued: some of its blocks have not been taken yet
  bool cancelled_ = false;         // cancel() was called
  bool failed_ = false;            // `error_` is set
  bool misaligned_ = false;        // a transfer of a direct file that is not aligned
  int descriptor_ = -1;            // for direct I/O: bytes from `direct_from_` to `direct_to_`
  int cached_descriptor_ = -1;     // for all other bytes
  std::uint64_t alignment_ = 1;    // the file's alignment
  std::uint64_t direct_from_ = 0;  // offset within the request where direct I/O begins
  std::uint64_t direct_to_ = 0;
  std::uint64_t bytes_taken_ = 0;  // bytes of blocks handed to progress threads
  std::uint64_t bytes_done_ = 0;
  std::uint64_t blocks_left_ = 0;   // not yet taken
  std::uint32_t blocks_taken_ = 0;  // blocks taken and not yet finished
  Error error_;                     // of the first block that failed; the file may be closed since
  std::uint64_t submitted_ns_ = 0;
  std::uint64_t finished_ns_ = 0;
};

struct EngineOptions {
  std::uint64_t block_size = 1 << 20;  // bytes, multiple of 4096
  std::uint32_t queue_depth = 8;       // blocks in the kernel per thread
  std::uint32_t threads = 1;           // rings, or for EngineKind::Threads: threads per queue slot,
                                       // at most 32 in all
  bool single_submit = false;          // one system call per block
  bool overlap_events = true;          // refill while reaping; else fill, drain, fill
  double stop_seconds = 60;            // how long the destructor waits for what is in flight
  Polling polling = Polling::None;     // if the kernel refuses it: None, with one log line
};

/// Counters since creation. Latency is measured per block, from hand-over to the kernel until the
/// answer is read.
struct EngineStatistics {
  std::uint64_t submit_calls = 0;  // system calls that handed over work
  std::uint64_t blocks = 0;
  std::uint64_t blocks_registered = 0;  // blocks in memory registered with the kernel
  std::uint64_t blocks_of_registered_files = 0;
  std::uint64_t blocks_direct = 0;      // blocks moved with direct I/O
  std::uint64_t blocks_misaligned = 0;  // blocks of direct files that went through the page cache
  // the most blocks in the kernel at once, over all threads
  std::uint64_t blocks_in_kernel_max = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t continued = 0;     // short transfers, EINTR, EAGAIN and EIO that were resubmitted
  std::uint64_t read_retries = 0;  // reads repeated after EIO
  std::uint64_t latency_us_p50 = 0;
  std::uint64_t latency_us_p95 = 0;
  std::uint64_t latency_us_p99 = 0;
};

class Engine {
 public:
  /// Drains, then stops its threads. Transfers that the kernel has not finished after
  /// `stop_seconds` are logged in one line and abandoned together with the engine's threads.
  /// Requests that callbacks submit from then on end as Cancelled.
  virtual ~Engine() = default;
  /// Queues prepared completions. Never blocks on the disk. Thread-safe.
  virtual void submit(std::span<Completion* const> completions) noexcept = 0;
  /// Sleeps until the completion is ready. Errors: Timeout, with the table of what is in the kernel
  /// (it stays in flight).
  virtual Result<void> wait(Completion& completion, Deadline deadline) noexcept = 0;
  /// Asks for an early end: blocks not yet in the kernel are dropped, and the completion becomes
  /// ready as Cancelled once its blocks in the kernel have ended. If no block was dropped, the
  /// completion succeeds. Does nothing unless the completion is in flight.
  virtual void cancel(Completion& completion) noexcept = 0;
  /// Stops waiting for good: unless it is ready already, the completion becomes ready as Timeout,
  /// without its buffer if the kernel may still write to that buffer (base/buffer.h, Note
  /// [Abandoned memory]). Its callback runs on the caller's thread. A call that is stuck in the
  /// kernel may still look up its file's descriptor, so the file must stay open for ever.
  virtual void abandon(Completion& completion) noexcept = 0;
  /// Waits until nothing is in flight. Errors: Timeout, with a table of transfers in the kernel.
  virtual Result<void> drain(Deadline deadline) noexcept = 0;
  /// Registers memory with the kernel, so that transfers within it need no page lookup. Optional:
  /// the kernel counts it against the memlock limit once for each ring, and rings beyond that limit
  /// work unregistered, with one log line. Returns whether any memory is registered. Call it only
  /// while nothing is in flight; the memory must outlive the engine.
  bool register_memory(std::span<const std::span<std::byte>> ranges) noexcept;
  /// For register_memory(): the number of rings that can register memory, in the order in which
  /// they are asked.
  virtual std::uint32_t rings() const noexcept { return 0; }
  /// Registers ranges with one ring; no ranges: unregisters all. Returns 0 or an errno.
  virtual int register_with_ring(std::uint32_t, std::span<const std::span<std::byte>>) noexcept {
    return 0;
  }
  virtual EngineStatistics statistics() const noexcept = 0;
  virtual EngineKind kind() const noexcept = 0;
  /// Returns the engine for transfers of the swap path with this number; its completions must be
  /// waited for on that engine. A PathEngines (aio/path_engines.h) has one engine per path; other
  /// engines return themselves.
  virtual Engine& for_path(std::uint32_t) noexcept { return *this; }
  /// Returns which part of EngineOptions::polling is in effect. Completion polling may end at the
  /// first transfer, since only a transfer shows whether its disk can be polled.
  virtual Polling polling() const noexcept { return Polling::None; }
};

/// Limits of EngineOptions; make_engine refuses values outside of them.
inline constexpr std::uint64_t block_size_max = 1 << 30;
inline constexpr std::uint32_t queue_depth_max = 4096;
inline constexpr std::uint32_t threads_max = 64;

/// "io_uring", "libaio" or "threads".
const char* engine_kind_name(EngineKind kind) noexcept;
/// "off", "sqpoll", "iopoll" or "both".
const char* polling_name(Polling polling) noexcept;
/// "off, sqpoll, iopoll or both": the allowed words, for messages.
std::string polling_words();

/// Makes an engine of this kind. Errors: Invalid (options), Unsupported (the kernel refuses it).
Result<std::unique_ptr<Engine>> make_engine(EngineKind kind, const EngineOptions& options) noexcept;

/// Makes an io_uring engine if the kernel supports it, else libaio, else threads, with one log line
/// that gives the reason.
Result<std::unique_ptr<Engine>> make_best_engine(const EngineOptions& options) noexcept;

}  // namespace artesian::aio
