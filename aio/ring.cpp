#include "aio/ring.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "base/log.h"

namespace artesian::aio {
namespace {

// liburing maps and unmaps memory by its own system calls, which ThreadSanitizer does not see. If a
// ring is mapped where another thread has unmapped one, ThreadSanitizer must be told of the order.
#if defined(__SANITIZE_THREAD__)
char ring_memory;
void ring_memory_given_back() {
  __tsan_release(&ring_memory);
}
void ring_memory_taken() {
  __tsan_acquire(&ring_memory);
}
#else
void ring_memory_given_back() {}
void ring_memory_taken() {}
#endif

constexpr unsigned idle_ms = 10;  // SQPOLL's thread sleeps after this long without work

/// Tries the cheapest way of running completions first, as older kernels refuse unknown flags.
int open_ring(auto setup, std::uint32_t entries, unsigned wanted, io_uring& ring,
              unsigned& features) {
  // With SQPOLL the kernel's thread runs completions; with IOPOLL there are none to run.
  const bool plain = wanted == 0;
  const std::array<unsigned, 3> flag_sets{
      IORING_SETUP_SINGLE_ISSUER | (plain ? IORING_SETUP_DEFER_TASKRUN : 0u),
      plain ? IORING_SETUP_COOP_TASKRUN : 0u, 0};
  int answer = -EINVAL;
  for (const unsigned flags : flag_sets) {
    io_uring_params params{};
    params.flags = flags | wanted | IORING_SETUP_CLAMP;
    params.sq_thread_idle = idle_ms;
    answer = setup(entries, &ring, &params);
    features = params.features;
    if (answer != -EINVAL) break;
  }
  return answer;
}

}  // namespace

Ring::Setup Ring::setup = io_uring_queue_init_params;

int Ring::open(std::uint32_t depth, Polling polling) noexcept {
  ARTESIAN_CHECK(!opened_);
  unsigned features = 0;
  const unsigned completion = polls_completion(polling) ? IORING_SETUP_IOPOLL : 0u;
  const unsigned submission = polls_submission(polling) ? IORING_SETUP_SQPOLL : 0u;
  const std::uint32_t entries = depth + 1;  // one more, for the read of the eventfd
  int answer = open_ring(setup, entries, completion | submission, ring_, features);
  if (answer >= 0 && submission != 0 && (features & IORING_FEAT_SQPOLL_NONFIXED) == 0) {
    io_uring_queue_exit(&ring_);  // kernels before 5.11 support only registered files
    answer = -EOPNOTSUPP;
  }
  if (answer < 0 && submission != 0) {
    const int refusal = -answer;
    answer = open_ring(setup, entries, completion, ring_, features);
    if (answer >= 0) {
      log_once(LogLevel::Warning, "io_uring: SQPOLL is refused (" + system_error_text(refusal) +
                                      "): work is handed over by calls");
    }
  }
  if (answer < 0) return -answer;
  ring_memory_taken();
  opened_ = true;
  constexpr unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_FAST_POLL;
  if ((features & needed) != needed) return EOPNOTSUPP;
  if (const int refusal = probe(); refusal != 0) return refusal;
  // Saves looking up the ring's own descriptor in each call; kernels before 5.18 lack this.
  (void)io_uring_register_ring_fd(&ring_);
  if (const int refusal = files_.open(ring_); refusal != 0) {
    log_once(LogLevel::Warning, "io_uring cannot register files (" + system_error_text(refusal) +
                                    "): each transfer looks its file up");
  }
  event_ = eventfd(0, EFD_CLOEXEC);
  if (event_ < 0) return errno;
  answers_.reserve(ring_.cq.ring_entries);
  withdrawn_.reserve(depth);
  return 0;
}

/// Tests whether the kernel accepts work, which setting up the ring does not show: filters may
/// refuse only io_uring_enter. Returns 0 or an errno. A ring with IOPOLL is not tested: it is
/// always used with a plain ring of the same thread, and some kernels do not support NOP on it.
int Ring::probe() noexcept {
  if (polls_completion(polling())) return 0;
  io_uring_prep_nop(&next_entry());
  // Makes a call in any case, as SQPOLL's thread could answer a NOP without one.
  int answer = -EINTR;
  while (answer == -EINTR) answer = io_uring_submit_and_wait(&ring_, 1);
  io_uring_cqe* entry = nullptr;
  while (answer >= 0 && entry == nullptr) {
    answer = io_uring_wait_cqe(&ring_, &entry);
    if (answer == -EINTR) answer = 0;
  }
  if (answer < 0) return -answer;
  io_uring_cqe_seen(&ring_, entry);
  return 0;
}

Polling Ring::polling() const noexcept {
  const bool submission = (ring_.flags & IORING_SETUP_SQPOLL) != 0;
  const bool completion = (ring_.flags & IORING_SETUP_IOPOLL) != 0;
  if (completion) return submission ? Polling::Both : Polling::Completion;
  return submission ? Polling::Submission : Polling::None;
}

Ring::~Ring() {
  ARTESIAN_CHECK(!opened_);
  if (event_ >= 0) ::close(event_);
}

void Ring::close() noexcept {
  ARTESIAN_CHECK(blocks_pending_ == 0, blocks_pending_);
  ARTESIAN_CHECK(withdrawn_.empty(), withdrawn_.size());
  if (opened_) {
    ring_memory_given_back();
    io_uring_queue_exit(&ring_);
  }
  opened_ = false;
}

void Ring::wake() const noexcept {
  ARTESIAN_CHECK(event_ >= 0, event_);
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum: then a wake-up is pending already.
  [[maybe_unused]] const auto written = write(event_, &one, sizeof one);
}

int Ring::register_buffers(const FixedBuffers& buffers) noexcept {
  ARTESIAN_CHECK(opened_);
  ARTESIAN_CHECK(blocks_pending_ == 0, blocks_pending_);
  if (buffers_ != nullptr) io_uring_unregister_buffers(&ring_);
  buffers_ = nullptr;
  const auto& pieces = buffers.pieces();
  if (pieces.empty()) return 0;
  const int answer =
      io_uring_register_buffers(&ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (answer < 0) return -answer;
  buffers_ = &buffers;
  return 0;
}

io_uring_sqe& Ring::next_entry() noexcept {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  // SQPOLL's thread frees entries shortly after their answers.
  while (entry == nullptr && polls_submission(polling())) {
    io_uring_submit(&ring_);  // the kernel can only free entries that it has seen
    io_uring_sqring_wait(&ring_);
    entry = io_uring_get_sqe(&ring_);
  }
  ARTESIAN_CHECK(entry != nullptr);  // there is an entry for each transfer, and one more
  return *entry;
}

void Ring::arm_wake() noexcept {
  if (wake_armed_) return;
  io_uring_sqe& entry = next_entry();
  io_uring_prep_read(&entry, event_, &event_count_, sizeof event_count_, 0);
  io_uring_sqe_set_data(&entry, this);  // marks wake-ups, as distinct from blocks
  wake_armed_ = true;
}

void Ring::prepare(Block& block, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(opened_);
  ARTESIAN_CHECK(length != 0 && length <= block.rest(), length, block.rest());
  ARTESIAN_CHECK(length <= block_size_max, length);  // the kernel's length has 32 bits
  const Request& request = block.request();
  const int descriptor = block.descriptor;
  const std::uint64_t offset = block.offset + block.done;
  std::byte* const memory = block.memory + block.done;
  const auto bytes = static_cast<unsigned>(length);
  const auto piece = buffers_ != nullptr ? buffers_->find(memory, length) : std::nullopt;
  block.registered = piece.has_value();
  io_uring_sqe& entry = next_entry();
  const bool reads = request.operation == Operation::Read;
  if (piece && reads) {
    io_uring_prep_read_fixed(&entry, descriptor, memory, bytes, offset, *piece);
  } else if (piece) {
    io_uring_prep_write_fixed(&entry, descriptor, memory, bytes, offset, *piece);
  } else if (reads) {
    io_uring_prep_read(&entry, descriptor, memory, bytes, offset);
  } else {
    io_uring_prep_write(&entry, descriptor, memory, bytes, offset);
  }
  io_uring_sqe_set_data(&entry, &block);
  block.file_slot = files_.enter(ring_, descriptor);
  block.file_registered = files_.registered(block.file_slot);
  if (block.file_registered) {
    entry.fd = block.file_slot;
    io_uring_sqe_set_flags(&entry, IOSQE_FIXED_FILE);
  }
  ++blocks_pending_;
  ++blocks_queued_;
}

void Ring::submit() noexcept {
  enter(0);
}

void Ring::wait(std::uint32_t count) noexcept {
  ARTESIAN_CHECK(opened_ && count != 0, count);
  if (!polls_completion(polling())) arm_wake();
  if (!withdrawn_.empty()) return;
  if (wake_refused_ && blocks_pending_ == 0) {  // see Note [Refused submissions]
    [[maybe_unused]] const auto got = read(event_, &event_count_, sizeof event_count_);
    wake_refused_ = false;
    return;
  }
  enter(count);
}

void Ring::glance() noexcept {
  arm_wake();
  enter(0);
  io_uring_get_events(&ring_);
}

/// True if submitting needs a call: not while SQPOLL's thread is awake.
bool Ring::submits_by_call() const noexcept {
  if (!polls_submission(polling())) return true;
  return (io_uring_smp_load_acquire(ring_.sq.kflags) & IORING_SQ_NEED_WAKEUP) != 0;
}

void Ring::enter(std::uint32_t wait_count) noexcept {
  const bool hands_over = blocks_queued_ != 0 && submits_by_call();
  int answer = 0;
  if (wait_count == 0) {
    answer = io_uring_submit(&ring_);
  } else if (io_uring_sq_ready(&ring_) != 0) {
    answer = io_uring_submit_and_wait(&ring_, wait_count);
  } else {  // liburing's function would not wait in this case
    io_uring_cqe* ignored = nullptr;
    answer = io_uring_wait_cqe_nr(&ring_, &ignored, wait_count);
  }
  if (answer >= 0) {
    refusals_ = 0;
    if (hands_over) ++submit_calls_;
    if (polls_submission(polling()) || io_uring_sq_ready(&ring_) == 0) blocks_queued_ = 0;
    return;
  }
  if (answer == -EINTR) return;
  if (polls_submission(polling())) {
    ARTESIAN_CHECK(answer != -EOWNERDEAD);  // the kernel's thread only ends with the process
    return;                                 // the caller tries again
  }
  std::uint32_t queued = 0;
  visit_queue([&](void* data) { queued += data == this ? 0 : 1; });
  ARTESIAN_CHECK(queued <= blocks_pending_, queued, blocks_pending_);
  const bool passing = answer == -EAGAIN || answer == -EBUSY || answer == -ENOMEM;
  if (passing && blocks_pending_ > queued) {  // see Note [Refused submissions]
    io_uring_cqe* ignored = nullptr;
    io_uring_wait_cqe(&ring_, &ignored);
    return;
  }
  if (!passing || ++refusals_ > refusals_max) withdraw(-answer);
}

/// Calls `visit` with the tag of each entry that was not handed over.
template <typename Visit>
void Ring::visit_queue(Visit visit) const noexcept {
  const unsigned head = io_uring_smp_load_acquire(ring_.sq.khead);
  const unsigned tail = *ring_.sq.ktail;
  for (unsigned at = head; at != tail; ++at) {
    const unsigned index = ring_.sq.array[at & ring_.sq.ring_mask];
    visit(reinterpret_cast<void*>(ring_.sq.sqes[index].user_data));
  }
}

void Ring::withdraw(int system_error) noexcept {
  visit_queue([&](void* data) {
    if (data == this) {
      wake_armed_ = false;
      wake_refused_ = true;
    } else {
      withdrawn_.push_back({.block = static_cast<Block*>(data), .result = -system_error});
    }
  });
  const unsigned head = io_uring_smp_load_acquire(ring_.sq.khead);
  io_uring_smp_store_release(ring_.sq.ktail, head);
  ring_.sq.sqe_head = ring_.sq.sqe_tail = head;
  ARTESIAN_CHECK(withdrawn_.size() <= blocks_pending_, withdrawn_.size(), blocks_pending_);
  blocks_queued_ = 0;
  refusals_ = 0;
}

/// The kernel keeps answers that do not fit into the completion queue (IORING_FEAT_NODROP), unless
/// it has no memory. Then an unknown transfer has ended without an answer, and the process cannot
/// continue.
void Ring::expect_nothing_lost() const noexcept {
  const unsigned koverflow = *ring_.cq.koverflow;
  if (koverflow == 0) return;
  log(LogLevel::Error,
      fmt::format("io_uring lost {} completions, as the kernel had no memory to keep them "
                  "(completion queue overflow): what is in flight can never end",
                  koverflow));
  ARTESIAN_CHECK(koverflow == 0, koverflow);
}

std::span<const Answer> Ring::reap() noexcept {
  answers_.assign(withdrawn_.begin(), withdrawn_.end());
  withdrawn_.clear();
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* entry = nullptr;
  io_uring_for_each_cqe(&ring_, head, entry) {
    ++count;
    void* const data = io_uring_cqe_get_data(entry);
    ARTESIAN_CHECK(data != nullptr);  // each entry belongs to a block or to the eventfd
    if (data == this) {
      wake_armed_ = false;
    } else {
      answers_.push_back({.block = static_cast<Block*>(data), .result = entry->res});
    }
  }
  io_uring_cq_advance(&ring_, count);
  for (const Answer& answer : answers_) files_.leave(ring_, answer.block->file_slot);
  expect_nothing_lost();
  ARTESIAN_CHECK(answers_.size() <= blocks_pending_, answers_.size(), blocks_pending_);
  blocks_pending_ -= static_cast<std::uint32_t>(answers_.size());
  // SQPOLL's thread may have taken and answered entries that are not counted as handed over yet.
  ARTESIAN_CHECK(polls_submission(polling()) || blocks_queued_ <= blocks_pending_, blocks_queued_,
                 blocks_pending_);
  return answers_;
}

}  // namespace artesian::aio
