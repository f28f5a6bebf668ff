#include "aio/aio_context.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/log.h"

namespace artesian::aio {
namespace {

bool is_wake(const iocb& control) {
  return control.data == nullptr;
}

/// Once per process; later calls allocate nothing.
void say_that_it_blocks() {
  static std::atomic<bool> said = false;
  if (said.load(std::memory_order_relaxed) || said.exchange(true)) return;
  log(LogLevel::Info,
      "libaio: transfers through the page cache block its thread while they are submitted; they "
      "are asynchronous only past it (O_DIRECT, aligned)");
}

}  // namespace

AioContext::~AioContext() {
  ARTESIAN_CHECK(context_ == nullptr);
  if (event_ >= 0) ::close(event_);
}

int AioContext::open(std::uint32_t depth, Polling) noexcept {
  ARTESIAN_CHECK(context_ == nullptr && event_ < 0);
  const int answer = io_setup(static_cast<int>(depth) + 1, &context_);  // one more, for the eventfd
  if (answer < 0) {
    context_ = nullptr;
    return -answer;
  }
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) return errno;
  controls_.resize(depth + 1);
  for (std::size_t index = depth; index != 0; --index) free_.push_back(&controls_[index]);
  queued_.reserve(depth + 1);
  events_.resize(depth + 1);
  answers_.reserve(depth);
  reaped_.reserve(depth);
  arm_wake();
  submit();
  return wake_refused_ == EINVAL ? EOPNOTSUPP : wake_refused_;
}

void AioContext::close() noexcept {
  ARTESIAN_CHECK(blocks_pending_ == 0, blocks_pending_);
  if (context_ != nullptr) io_destroy(context_);  // also ends the poll of the eventfd
  context_ = nullptr;
}

void AioContext::wake() const noexcept {
  ARTESIAN_CHECK(event_ >= 0, event_);
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum: then a wake-up is pending already.
  [[maybe_unused]] const auto written = write(event_, &one, sizeof one);
}

void AioContext::queue(iocb& control) noexcept {
  ARTESIAN_CHECK(queued_.size() < controls_.size(), queued_.size());
  queued_.push_back(&control);
}

void AioContext::arm_wake() noexcept {
  if (wake_armed_) return;
  iocb& control = controls_.front();
  io_prep_poll(&control, event_, POLLIN);
  control.data = nullptr;  // marks a control without a block
  queue(control);
  wake_armed_ = true;
}

iocb& AioContext::next_control() noexcept {
  ARTESIAN_CHECK(!free_.empty());  // there are as many controls as transfers
  iocb& control = *free_.back();
  free_.pop_back();
  queue(control);
  ++blocks_pending_;
  ++blocks_queued_;
  return control;
}

void AioContext::prepare(Block& block, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(length != 0 && length <= block.rest(), length, block.rest());
  iocb& control = next_control();
  std::byte* const memory = block.memory + block.done;
  const auto offset = static_cast<off_t>(block.offset + block.done);
  if (block.request().operation == Operation::Read) {
    io_prep_pread(&control, block.descriptor, memory, length, offset);
  } else {
    io_prep_pwrite(&control, block.descriptor, memory, length, offset);
  }
  control.data = &block;
  if (block.alignment <= 1) say_that_it_blocks();
}

void AioContext::poll(Block& block, int descriptor) noexcept {
  iocb& control = next_control();
  io_prep_poll(&control, descriptor, POLLIN);
  control.data = &block;
}

/// Number of transfers, without wake-ups.
std::uint32_t AioContext::in_kernel() const noexcept {
  const auto answered = static_cast<std::uint32_t>(answers_.size());
  ARTESIAN_CHECK(blocks_pending_ >= blocks_queued_ + answered, blocks_pending_, blocks_queued_,
                 answered);
  return blocks_pending_ - blocks_queued_ - answered;
}

void AioContext::end(iocb& control, std::int64_t result) noexcept {
  if (is_wake(control)) {
    wake_armed_ = false;
    return;
  }
  ARTESIAN_CHECK(&control != &controls_.front() && free_.size() + 1 < controls_.size());
  answers_.push_back({.block = static_cast<Block*>(control.data), .result = result});
  free_.push_back(&control);
}

/// Makes the transfer with pread or pwrite: see Note [Refused transfers].
void AioContext::move_here(iocb& control) noexcept {
  const bool reads = control.aio_lio_opcode == IO_CMD_PREAD;
  ARTESIAN_CHECK(reads || control.aio_lio_opcode == IO_CMD_PWRITE, control.aio_lio_opcode);
  const auto& call = control.u.c;
  const ssize_t moved = reads ? pread(control.aio_fildes, call.buf, call.nbytes, call.offset)
                              : pwrite(control.aio_fildes, call.buf, call.nbytes, call.offset);
  end(control, moved < 0 ? -errno : moved);
}

/// Removes the first transfer of the queue, which the kernel refuses.
void AioContext::refuse(int system_error) noexcept {
  ARTESIAN_CHECK(queued_from_ < queued_.size(), queued_from_, queued_.size());
  iocb& control = *queued_[queued_from_++];
  if (is_wake(control)) {
    wake_refused_ = system_error;
    wake_armed_ = false;
    return;
  }
  ARTESIAN_CHECK(blocks_queued_ != 0);
  --blocks_queued_;
  const bool transfers = control.aio_lio_opcode != IO_CMD_POLL;
  if (system_error == EINVAL && transfers) return move_here(control);
  end(control, -system_error);
}

void AioContext::submit() noexcept {
  while (queued_from_ != queued_.size()) {
    const auto left = static_cast<long>(queued_.size() - queued_from_);
    const int taken = io_submit(context_, left, queued_.data() + queued_from_);
    ARTESIAN_CHECK(taken <= left, taken, left);
    if (taken > 0) {
      refusals_ = 0;
      submit_calls_ += blocks_queued_ != 0 ? 1 : 0;
      for (int count = 0; count < taken; ++count) {
        blocks_queued_ -= is_wake(*queued_[queued_from_++]) ? 0 : 1;
      }
    } else if (taken == 0 || taken == -EAGAIN) {
      if (in_kernel() != 0) break;  // wait() will wait for one of them
      if (++refusals_ <= refusals_max) continue;
      while (queued_from_ != queued_.size()) refuse(EAGAIN);
      refusals_ = 0;
    } else if (taken != -EINTR) {
      refuse(-taken);
    }
  }
  ARTESIAN_CHECK(queued_from_ != queued_.size() || blocks_queued_ == 0, blocks_queued_);
  queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(queued_from_));
  queued_from_ = 0;
}

void AioContext::wait(std::uint32_t count) noexcept {
  ARTESIAN_CHECK(context_ != nullptr && count != 0, count);
  arm_wake();
  submit();
  if (!answers_.empty()) return;
  if (wake_refused_ != 0 && blocks_pending_ == 0) {
    pollfd event{.fd = event_, .events = POLLIN, .revents = 0};
    ::poll(&event, 1, -1);
    std::uint64_t value = 0;
    [[maybe_unused]] const auto got = read(event_, &value, sizeof value);
    wake_refused_ = 0;
    return;
  }
  // Never waits for more than there are: the kernel may have refused some.
  const long needed = std::clamp<long>(count, 1, std::max<long>(1, in_kernel()));
  const int got =
      io_getevents(context_, needed, static_cast<long>(events_.size()), events_.data(), nullptr);
  if (got < 0) return;  // EINTR: the caller tries again
  for (int index = 0; index < got; ++index) {
    const io_event& event = events_[static_cast<std::size_t>(index)];
    // A long in the kernel, whatever the field's type is.
    end(*event.obj, static_cast<std::int64_t>(static_cast<long>(event.res)));
    if (!is_wake(*event.obj)) continue;
    std::uint64_t value = 0;
    [[maybe_unused]] const auto emptied = read(event_, &value, sizeof value);
  }
}

std::span<const Answer> AioContext::reap() noexcept {
  ARTESIAN_CHECK(answers_.size() <= blocks_pending_, answers_.size(), blocks_pending_);
  blocks_pending_ -= static_cast<std::uint32_t>(answers_.size());
  // Preparing continued transfers may end others while the caller still reads these answers.
  reaped_.clear();
  std::swap(answers_, reaped_);
  return reaped_;
}

}  // namespace artesian::aio
