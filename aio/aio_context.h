// AioContext: one context of the kernel's AIO, used by one thread, with the same functions as Ring.
// Its thread sleeps in io_getevents until a transfer ends or another thread wakes it: the context
// itself polls the eventfd that other threads write.
//
// Note [Refused transfers]: io_submit may accept fewer transfers than it was given. On EAGAIN (no
// room in the kernel or under fs.aio-max-nr) the thread waits until a transfer that is in the
// kernel ends, and tries again. If none is in the kernel, the remaining transfers fail after 64
// refusals in a row. EINVAL means that kernel AIO does not support the file (some of /dev and
// /proc): the transfer is made at once by pread or pwrite. Any other error ends only the transfer
// that it concerns.
#pragma once

#include <libaio.h>

#include <span>
#include <vector>

#include "aio/answer.h"
#include "aio/fixed_buffers.h"

namespace artesian::aio {

class AioContext {
 public:
  static constexpr bool registers_memory = false;

  AioContext() = default;
  AioContext(const AioContext&) = delete;
  AioContext& operator=(const AioContext&) = delete;
  ~AioContext();

  /// Sets up a context for `depth` transfers. Returns 0 or an errno (EOPNOTSUPP: kernel too old).
  int open(std::uint32_t depth, Polling = Polling::None) noexcept;
  void close() noexcept;
  /// Makes wait() return soon. Any thread, from open() to the destructor.
  void wake() const noexcept;
  /// Never called: an AIO context cannot register memory.
  int register_buffers(const FixedBuffers&) noexcept { return 0; }

  /// Queues a transfer of the block's next `length` bytes.
  void prepare(Block& block, std::uint64_t length) noexcept;
  /// Queues, in place of a transfer, a wait until the descriptor can be read: see
  /// FaultSeam::stalls_on.
  void poll(Block& block, int descriptor) noexcept;
  void submit() noexcept;
  void wait(std::uint32_t count) noexcept;
  std::span<const Answer> reap() noexcept;

  void stop_registering_files() noexcept {}
  Polling polling() const noexcept { return Polling::None; }
  std::uint32_t blocks_pending() const noexcept { return blocks_pending_; }
  std::uint32_t blocks_queued() const noexcept { return blocks_queued_; }
  std::uint64_t exchange_submit_calls() noexcept { return std::exchange(submit_calls_, 0); }

 private:
  void arm_wake() noexcept;
  void queue(iocb& control) noexcept;
  iocb& next_control() noexcept;
  std::uint32_t in_kernel() const noexcept;
  void refuse(int system_error) noexcept;
  void end(iocb& control, std::int64_t result) noexcept;
  void move_here(iocb& control) noexcept;

  io_context_t context_ = nullptr;
  int event_ = -1;
  bool wake_armed_ = false;
  int wake_refused_ = 0;  // errno of a failed wake-up read since the last sleep
  std::uint32_t blocks_pending_ = 0;
  std::uint32_t blocks_queued_ = 0;  // blocks prepared and not yet handed over
  std::uint32_t refusals_ = 0;
  std::uint64_t submit_calls_ = 0;
  std::vector<iocb> controls_;  // the first is the read of the eventfd
  std::vector<iocb*> free_;
  std::vector<iocb*> queued_;  // prepared and not yet handed over, in order
  std::size_t queued_from_ = 0;
  std::vector<io_event> events_;
  std::vector<Answer> answers_;  // answers of finished transfers
  std::vector<Answer> reaped_;
};

}  // namespace artesian::aio
