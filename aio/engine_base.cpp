#include "aio/engine_base.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <tuple>
#include <utility>

#include "aio/answer.h"
#include "aio/threads.h"
#include "base/keep_for_ever.h"
#include "base/log.h"
#include "base/process_cpus.h"
#include "base/units.h"

namespace artesian::aio {
namespace {

constexpr std::uint64_t page_size = 4096;     // of the page cache, in bytes
constexpr double callbacks_seconds_max = 60;  // limit when the engine ends

thread_local bool on_progress_thread = false;

std::chrono::steady_clock::time_point time_point(Deadline deadline) {
  // steady_clock is CLOCK_MONOTONIC, like monotonic_ns(); "no deadline" is capped at 292 years.
  constexpr auto latest = static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count());
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(deadline.at_ns, latest))));
}

bool reads(const Request& request) {
  return request.operation == Operation::Read;
}

/// Makes the error of a failed block.
Error failure_of(const Block& block) {
  const bool full = block.system_error == ENOSPC || block.system_error == EDQUOT;
  Error error =
      make_error(full ? ErrorCode::NoSpace : ErrorCode::Io,
                 reads(block.request()) ? "cannot read" : "cannot write", block.system_error);
  if (block.end_of_file) error.message += ": end of file";
  if (block.refusals > refusals_max) {
    error.message += fmt::format(": the kernel refused {} times in a row", block.refusals);
  }
  error.file = block.request().file->path();
  error.offset = block.offset + block.done;
  error.length = block.rest();
  return error;
}

/// The part of a request that uses direct I/O, as offsets from its beginning: see Note [Ends].
/// Empty if the alignment is 1.
std::pair<std::uint64_t, std::uint64_t> direct_part(const Request& request, const std::byte* memory,
                                                    std::uint64_t alignment) {
  const std::uint64_t begin = request.offset;
  const std::uint64_t end = begin + request.length;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const bool together = address % alignment == begin % alignment;
  if (alignment == 1 || !together) return {0, 0};
  const std::uint64_t page = std::max(alignment, page_size);
  const std::uint64_t from = begin % alignment == 0 ? begin : round_up(begin, page);
  const std::uint64_t to = end % alignment == 0 ? end : round_down(end, page);
  return from < to ? std::pair(from - begin, to - begin)
                   : std::pair<std::uint64_t, std::uint64_t>();
}

/// Blocks that may be in the kernel at once.
std::uint64_t slots_of(EngineKind kind, const EngineOptions& options) {
  const std::uint64_t wanted = std::uint64_t{options.queue_depth} * options.threads;
  return kind == EngineKind::Threads ? std::min(wanted, workers_max) : wanted;
}

Error cancellation_of(const Request& request) {
  Error error = make_error(ErrorCode::Cancelled,
                           reads(request) ? "the read was cancelled" : "the write was cancelled");
  error.file = request.file->path();
  error.offset = request.offset;
  error.length = request.length;
  return error;
}

Error abandonment_of(const Request& request) {
  Error error = make_error(
      ErrorCode::Timeout, reads(request) ? "the kernel has not finished a read; it was abandoned"
                                         : "the kernel has not finished a write; it was abandoned");
  error.file = request.file->path();
  error.offset = request.offset;
  error.length = request.length;
  return error;
}

}  // namespace

void EngineBase::List::push(Completion& completion) noexcept {
  ARTESIAN_CHECK((head == nullptr) == (tail == nullptr) && tail != &completion);
  completion.next_ = nullptr;
  (tail == nullptr ? head : tail->next_) = &completion;
  tail = &completion;
}

void EngineBase::List::pop() noexcept {
  ARTESIAN_CHECK(head != nullptr);
  head = head->next_;
  if (head == nullptr) tail = nullptr;
}

void EngineBase::List::remove(Completion& completion) noexcept {
  Completion* before = nullptr;
  for (Completion* at = head; at != &completion; at = at->next_) {
    ARTESIAN_CHECK(at != nullptr);
    before = at;
  }
  (before == nullptr ? head : before->next_) = completion.next_;
  if (tail == &completion) tail = before;
  ARTESIAN_CHECK((head == nullptr) == (tail == nullptr));
}

EngineBase::EngineBase(EngineKind kind, const EngineOptions& options, FaultSeam* faults) noexcept
    : options_(options),
      kind_(kind),
      write_backs_max_(std::max<std::uint64_t>(1, slots_of(kind, options) / 2)),
      faults_(faults) {
  ARTESIAN_CHECK(options.block_size != 0 && options.queue_depth != 0 && options.threads != 0,
                 options.block_size, options.queue_depth, options.threads);
}

EngineBase::~EngineBase() {
  ARTESIAN_CHECK(stopping_);
  ARTESIAN_CHECK(in_flight_ == 0 && blocks_in_kernel_ == 0, in_flight_, blocks_in_kernel_);
  ARTESIAN_CHECK(queued_ == 0 && blocks_left_ == 0, queued_, blocks_left_);
  ARTESIAN_CHECK(ended_.head == nullptr && waiters_ == nullptr);
}

void EngineBase::enter_progress_thread() noexcept {
  on_progress_thread = true;
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  use_process_cpus();
}

bool EngineBase::has_work(const Lock& lock) const noexcept {
  return has_ended(lock) || has_blocks(lock);
}

bool EngineBase::has_blocks(const Lock& lock) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  return std::any_of(queues_.begin(), queues_.end(),
                     [&](const List& queue) { return may_take(queue); });
}

/// True if the next block of this queue may be taken.
bool EngineBase::may_take(const List& queue) const noexcept {
  if (queue.head == nullptr) return false;
  if (queue.head->request_.priority != Priority::WriteBack) return true;
  const bool alone = write_backs_in_kernel_ == blocks_in_kernel_;
  return alone || write_backs_in_kernel_ < write_backs_max_;
}

bool EngineBase::has_ended(const Lock& lock) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  return ended_.head != nullptr;
}

bool EngineBase::stopping(const Lock& lock) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  return stopping_;
}

std::uint64_t EngineBase::blocks_in_kernel(const Lock& lock) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  return blocks_in_kernel_;
}

std::uint64_t EngineBase::in_flight(const Lock& lock) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  return in_flight_;
}

EngineBase::List& EngineBase::queue_of(const Completion& completion) noexcept {
  return queues_[static_cast<std::size_t>(completion.request_.priority)];
}

/// The part of submitting a request that needs no lock: chooses its descriptors, and checks whether
/// its file can still be used.
void EngineBase::begin(Completion& completion) const noexcept {
  const Request& request = completion.request_;
  ARTESIAN_CHECK(request.file != nullptr);
  ARTESIAN_CHECK(completion.state_.load(std::memory_order_relaxed) == Completion::State::Idle);
  ARTESIAN_CHECK(request.length <= completion.buffer_.size());
  File& file = *request.file;
  completion.alignment_ = file.alignment();
  ARTESIAN_CHECK(completion.alignment_ != 0);
  completion.descriptor_ = completion.cached_descriptor_ = file.descriptor();
  std::tie(completion.direct_from_, completion.direct_to_) =
      direct_part(request, completion.buffer_.data(), completion.alignment_);
  ARTESIAN_CHECK(
      completion.direct_from_ <= completion.direct_to_ && completion.direct_to_ <= request.length,
      completion.direct_from_, completion.direct_to_, request.length);
  const std::uint64_t direct = completion.direct_to_ - completion.direct_from_;
  completion.misaligned_ = completion.alignment_ > 1 && direct != request.length;
  completion.failed_ = file.poison() != nullptr;
  if (completion.failed_) completion.error_ = *file.poison();
  if (completion.failed_ || !completion.misaligned_) return;
  auto cached = file.buffered_descriptor();
  completion.failed_ = !cached;
  if (cached) {
    completion.cached_descriptor_ = *cached;
  } else {
    completion.error_ = std::move(cached).error();
  }
}

EngineBase::Stretch EngineBase::stretch_at(const Completion& completion,
                                           std::uint64_t byte) noexcept {
  ARTESIAN_CHECK(byte < completion.request_.length, byte, completion.request_.length);
  if (byte < completion.direct_from_) {
    return {.end = completion.direct_from_, .descriptor = completion.cached_descriptor_};
  }
  if (byte < completion.direct_to_) {
    return {.end = completion.direct_to_,
            .descriptor = completion.descriptor_,
            .alignment = completion.alignment_};
  }
  return {.end = completion.request_.length, .descriptor = completion.cached_descriptor_};
}

/// The number of blocks that take() will make from the request.
std::uint64_t EngineBase::count_blocks(const Completion& completion) const noexcept {
  std::uint64_t count = 0;
  for (std::uint64_t begin = 0; begin != completion.request_.length;) {
    const std::uint64_t end = stretch_at(completion, begin).end;
    ARTESIAN_CHECK(end > begin, begin, end);  // ensures that the loop ends
    count += round_up(end - begin, options_.block_size) / options_.block_size;
    begin = end;
  }
  return count;
}

void EngineBase::submit(std::span<Completion* const> completions) noexcept {
  std::uint64_t blocks = 0;
  const std::uint64_t now_ns = monotonic_ns();
  for (Completion* completion : completions) begin(*completion);
  bool ended = false;
  {
    const Lock locked = lock();
    for (Completion* completion : completions) {
      ARTESIAN_CHECK(!completion->in_flight());  // for example submitted twice in one call
      completion->bytes_taken_ = completion->bytes_done_ = 0;
      completion->blocks_taken_ = 0;
      completion->cancelled_ = completion->queued_ = false;
      completion->submitted_ns_ = now_ns;
      completion->state_.store(Completion::State::InFlight, std::memory_order_relaxed);
      ++in_flight_;
      if (stopping_) fail(*completion, cancellation_of(completion->request_));
      if (completion->request_.length == 0 || completion->failed_) {
        end(locked, *completion, now_ns);
        ended = true;
        continue;
      }
      completion->queued_ = true;
      completion->blocks_left_ = count_blocks(*completion);
      ARTESIAN_CHECK(completion->blocks_left_ != 0);
      ++queued_;
      queue_of(*completion).push(*completion);
      blocks += completion->blocks_left_;
    }
    blocks_left_ += blocks;
    if (ended) wake_waiters(locked);
  }
  if (blocks != 0) wake(blocks);
  if (ended) wake_all();
}

Block EngineBase::next_block(Completion& completion, std::uint64_t now_ns) const noexcept {
  const Request& request = completion.request_;
  const std::uint64_t first = completion.bytes_taken_;
  const Stretch stretch = stretch_at(completion, first);
  ARTESIAN_CHECK(first < stretch.end && stretch.end <= request.length, first, stretch.end);
  return {.completion = &completion,
          .origin = request,
          .descriptor = stretch.descriptor,
          .alignment = stretch.alignment,
          .memory = completion.buffer_.data() + first,
          .offset = request.offset + first,
          .length = std::min(options_.block_size, stretch.end - first),
          .taken_ns = now_ns};
}

std::size_t EngineBase::take(const Lock& lock, std::span<Block* const> slots) noexcept {
  ARTESIAN_CHECK(owns(lock));
  if (queued_ == 0) return 0;
  const std::uint64_t now_ns = monotonic_ns();
  std::size_t count = 0;
  for (List& queue : queues_) {
    while (count < slots.size() && may_take(queue)) {
      Completion& completion = *queue.head;
      const Request& request = completion.request_;
      Block& block = *slots[count++];
      ARTESIAN_CHECK(block.completion == nullptr);  // the slot must be free
      block = next_block(completion, now_ns);
      block.next = in_kernel_;
      if (in_kernel_ != nullptr) in_kernel_->previous = &block;
      in_kernel_ = &block;
      completion.bytes_taken_ += block.length;
      ++completion.blocks_taken_;
      ARTESIAN_CHECK(completion.blocks_left_ != 0 && blocks_left_ >= completion.blocks_left_);
      --completion.blocks_left_;
      --blocks_left_;
      ++blocks_in_kernel_;
      write_backs_in_kernel_ += request.priority == Priority::WriteBack ? 1 : 0;
      ARTESIAN_CHECK(write_backs_in_kernel_ <= blocks_in_kernel_, write_backs_in_kernel_);
      ARTESIAN_CHECK(completion.bytes_taken_ <= request.length, completion.bytes_taken_);
      if (completion.bytes_taken_ == request.length) {
        ARTESIAN_CHECK(completion.blocks_left_ == 0, completion.blocks_left_);
        ARTESIAN_CHECK(completion.queued_ && queued_ != 0, queued_);
        queue.pop();
        completion.queued_ = false;
        --queued_;
      }
    }
  }
  statistics_.blocks_in_kernel_max = std::max(statistics_.blocks_in_kernel_max, blocks_in_kernel_);
  return count;
}

/// True if the block's completion was abandoned: see Note [Abandoned transfers].
bool EngineBase::is_abandoned(const Block& block) const noexcept {
  if (!abandoned_any_.load()) return false;
  const Lock locked = lock();
  return block.completion == nullptr;
}

std::uint64_t EngineBase::length_to_ask(const Block& block) const noexcept {
  const std::uint64_t rest = block.rest();
  const std::uint64_t length = faults_ == nullptr ? rest : faults_->length_to_ask(block);
  ARTESIAN_CHECK(length != 0 && length <= rest, length, rest);
  return is_abandoned(block) ? 0 : length;
}

EngineBase::Verdict EngineBase::settle(Block& block, std::int64_t result) const noexcept {
  ARTESIAN_CHECK(block.done <= block.length, block.done, block.length);
  if (is_abandoned(block)) return Verdict::Done;
  if (faults_ != nullptr) result = faults_->answer(block, result);
  const auto moved = result > 0 ? static_cast<std::uint64_t>(result) : 0;
  ARTESIAN_CHECK(moved <= block.rest(), moved, block.rest());
  // A direct transfer can only continue at an alignment boundary; bytes beyond it are transferred
  // again.
  const std::uint64_t kept = moved == block.rest() ? moved : round_down(moved, block.alignment);
  block.done += kept;
  if (block.rest() == 0) return Verdict::Done;
  if (kept != 0) {
    block.refusals = 0;
    block.retried_here = false;
    ++block.continued;
    return Verdict::Continue;
  }
  if (reads(block.request()) && result >= 0) {
    block.failed = block.end_of_file = true;
    block.system_error = 0;
    block.done += moved;  // so that the error shows where the file ends
    return Verdict::Done;
  }
  block.system_error = result < 0 ? static_cast<int>(-result) : 0;
  const bool refused = result >= 0 || block.system_error == EINTR || block.system_error == EAGAIN;
  if (refused && ++block.refusals <= refusals_max) {
    ++block.continued;
    return Verdict::Continue;
  }
  if (reads(block.request()) && block.system_error == EIO && !block.retried_here) {
    block.retried_here = true;
    ++block.read_retries;
    ++block.continued;
    return Verdict::Continue;
  }
  block.failed = true;
  return Verdict::Done;
}

void EngineBase::account(const Lock& lock, Block& block, std::uint64_t now_ns) noexcept {
  ARTESIAN_CHECK(owns(lock) && blocks_in_kernel_ != 0);
  ARTESIAN_CHECK((block.previous == nullptr ? in_kernel_ : block.previous->next) == &block);
  ARTESIAN_CHECK(block.next == nullptr || block.next->previous == &block);
  const bool writes_back = block.request().priority == Priority::WriteBack;
  ARTESIAN_CHECK(!writes_back || write_backs_in_kernel_ != 0);
  --blocks_in_kernel_;
  write_backs_in_kernel_ -= writes_back ? 1 : 0;
  (block.previous == nullptr ? in_kernel_ : block.previous->next) = block.next;
  if (block.next != nullptr) block.next->previous = block.previous;
  if (block.completion == nullptr) return;  // its completion was abandoned
  Completion& completion = *block.completion;
  ARTESIAN_CHECK(completion.in_flight() && completion.blocks_taken_ != 0);
  ARTESIAN_CHECK(block.done <= block.length, block.done, block.length);
  ARTESIAN_CHECK(block.failed || block.done == block.length, block.done, block.length);
  ARTESIAN_CHECK(now_ns >= block.taken_ns, now_ns, block.taken_ns);
  --completion.blocks_taken_;
  completion.bytes_done_ += block.done;
  ARTESIAN_CHECK(completion.bytes_done_ <= completion.bytes_taken_, completion.bytes_done_,
                 completion.bytes_taken_);
  ++statistics_.blocks;
  statistics_.blocks_registered += block.registered ? 1 : 0;
  statistics_.blocks_of_registered_files += block.file_registered ? 1 : 0;
  statistics_.blocks_direct += block.alignment > 1 ? 1 : 0;
  statistics_.blocks_misaligned += completion.misaligned_ && block.alignment == 1 ? 1 : 0;
  statistics_.continued += block.continued;
  statistics_.read_retries += block.read_retries;
  (reads(completion.request_) ? statistics_.bytes_read : statistics_.bytes_written) += block.done;
  latencies_.add(now_ns - block.taken_ns);
  if (block.failed) {
    fail(completion, failure_of(block));
    drop_queued(lock, completion);  // transferring the rest would be useless
  }
  block.completion = nullptr;
  if (completion.blocks_taken_ == 0 && !completion.queued_) end(lock, completion, now_ns);
}

/// Records a request's first failure. A failed write poisons the file.
void EngineBase::fail(Completion& completion, Error error) noexcept {
  if (error.code != ErrorCode::Cancelled && !reads(completion.request_)) {
    completion.request_.file->poison_with(error);
  }
  if (completion.failed_) return;
  completion.failed_ = true;
  completion.error_ = std::move(error);
}

void EngineBase::end(const Lock& lock, Completion& completion, std::uint64_t now_ns) noexcept {
  ARTESIAN_CHECK(owns(lock));
  ARTESIAN_CHECK(completion.blocks_taken_ == 0 && !completion.queued_);
  ARTESIAN_CHECK(completion.bytes_done_ <= completion.request_.length);
  ARTESIAN_CHECK(completion.in_flight() && in_flight_ != 0, in_flight_);
  ARTESIAN_CHECK(now_ns >= completion.submitted_ns_, now_ns, completion.submitted_ns_);
  completion.finished_ns_ = now_ns;
  if (!completion.failed_ && completion.bytes_done_ != completion.request_.length) {
    ARTESIAN_CHECK(completion.cancelled_);
    fail(completion, cancellation_of(completion.request_));
  }
  if (completion.callback_ != nullptr) {
    ended_.push(completion);
    return;
  }
  --in_flight_;
  completion.state_.store(Completion::State::Ready, std::memory_order_release);
}

void EngineBase::finish(std::span<Block* const> blocks, std::uint64_t submit_calls) noexcept {
  List ended;
  std::string suspect;  // a file whose disk needed a second try
  std::uint64_t uncapped = 0;
  {
    const Lock locked = lock();
    const bool capped = write_backs_in_kernel_ != blocks_in_kernel_;
    const std::uint64_t now_ns = monotonic_ns();
    statistics_.submit_calls += submit_calls;
    for (Block* block : blocks) {
      const bool retried = block->read_retries != 0 && !block->failed;
      if (retried && block->completion != nullptr) suspect = block->request().file->path();
      account(locked, *block, now_ns);
    }
    ARTESIAN_CHECK((blocks_in_kernel_ == 0) == (in_kernel_ == nullptr), blocks_in_kernel_);
    wake_waiters(locked);
    // See Note [Write cap]: other progress threads may have left write-backs in the queue.
    if (capped && write_backs_in_kernel_ == blocks_in_kernel_) uncapped = blocks_left_;
    ended = std::exchange(ended_, List{});
  }
  if (uncapped != 0) wake(uncapped);
  if (!suspect.empty()) {
    log_once(LogLevel::Warning,
             "a read of " + suspect + " failed and went well when tried again: check the disk");
  }
  if (ended.head != nullptr) run_callbacks(ended);
}

void EngineBase::run_callbacks(List ended) noexcept {
  std::uint64_t count = 0;
  while (ended.head != nullptr) {
    Completion& completion = *ended.head;
    ended.pop();
    ++count;
    const auto callback = completion.callback_;
    ARTESIAN_CHECK(callback != nullptr && completion.in_flight());
    void* const context = completion.context_;
    completion.state_.store(Completion::State::Ready, std::memory_order_release);
    callback(completion, context);
  }
  const Lock locked = lock();
  ARTESIAN_CHECK(in_flight_ >= count, in_flight_, count);
  in_flight_ -= count;
  wake_waiters(locked);
}

bool EngineBase::holds(const Lock& lock, const Waiter& waiter) const noexcept {
  ARTESIAN_CHECK(owns(lock));
  if (waiter.completion != nullptr) return waiter.completion->ready();
  return in_flight_ == 0 && (!waiter.for_kernel || blocks_in_kernel_ == 0);
}

/// Wakes waiters whose condition holds: see Note [End of a completion].
void EngineBase::wake_waiters(const Lock& lock) noexcept {
  ARTESIAN_CHECK(owns(lock));
  for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (holds(lock, *waiter)) waiter->woken.notify_one();
  }
}

/// Sleeps until the waiter's condition holds (returns true) or the deadline passes (false).
bool EngineBase::sleep_until(Lock& lock, Waiter& waiter, Deadline deadline) noexcept {
  ARTESIAN_CHECK(owns(lock) && !on_progress_thread);
  Headway headway = Headway::Made;
  while (!holds(lock, waiter) && headway == Headway::Made) {
    headway = work_while_waiting(lock, deadline);
  }
  if (headway == Headway::TooLate) return false;
  waiter.next = std::exchange(waiters_, &waiter);
  const bool held =
      waiter.woken.wait_until(lock, time_point(deadline), [&] { return holds(lock, waiter); });
  Waiter** link = &waiters_;
  while (*link != &waiter) {
    ARTESIAN_CHECK(*link != nullptr);
    link = &(*link)->next;
  }
  *link = waiter.next;
  return held;
}

Result<void> EngineBase::wait(Completion& completion, Deadline deadline) noexcept {
  if (completion.ready()) return {};
  Lock locked = lock();
  // Read once, as a completion with a callback becomes ready without the lock.
  const auto state = completion.state_.load(std::memory_order_acquire);
  if (state == Completion::State::Ready) return {};
  ARTESIAN_CHECK(state == Completion::State::InFlight);  // otherwise it would never finish
  Waiter waiter{.completion = &completion};
  if (sleep_until(locked, waiter, deadline)) return {};
  Error error = make_error(ErrorCode::Timeout, "a transfer is not finished by its deadline; " +
                                                   describe_in_flight(locked));
  error.file = completion.request_.file->path();
  error.offset = completion.request_.offset;
  error.length = completion.request_.length;
  return error;
}

Result<void> EngineBase::drain(Deadline deadline) noexcept {
  Lock locked = lock();
  Waiter waiter;
  if (sleep_until(locked, waiter, deadline)) return {};
  return make_error(ErrorCode::Timeout,
                    fmt::format("{} transfers are not finished by the deadline; {}", in_flight_,
                                describe_in_flight(locked)));
}

/// Removes a completion from its queue, if it is in one, so that its other blocks are not handed
/// out.
bool EngineBase::drop_queued(const Lock& lock, Completion& completion) noexcept {
  ARTESIAN_CHECK(owns(lock));
  if (!completion.queued_) return false;
  ARTESIAN_CHECK(queued_ != 0 && blocks_left_ >= completion.blocks_left_, queued_, blocks_left_);
  queue_of(completion).remove(completion);
  completion.queued_ = false;
  --queued_;
  blocks_left_ -= completion.blocks_left_;
  return true;
}

void EngineBase::cancel(Completion& completion) noexcept {
  bool ended = false;
  {
    const Lock locked = lock();
    if (!completion.in_flight() || completion.cancelled_) return;
    completion.cancelled_ = true;
    if (!drop_queued(locked, completion)) return;  // every block is in the kernel, or done
    if (completion.blocks_taken_ == 0) {
      end(locked, completion, monotonic_ns());
      wake_waiters(locked);
      ended = true;
    }
  }
  if (ended) wake_all();
}

/// Ends a completion whose blocks may still be in the kernel.
void EngineBase::cut_off(const Lock& lock, Completion& completion) noexcept {
  ARTESIAN_CHECK(owns(lock) && completion.in_flight());
  completion.cancelled_ = true;
  const bool queued = drop_queued(lock, completion);
  // It has ended; its callback is still to run.
  if (!queued && completion.blocks_taken_ == 0) return;
  std::uint32_t cut = 0;
  for (Block* block = in_kernel_; block != nullptr; block = block->next) {
    if (block->completion != &completion) continue;
    block->completion = nullptr;
    ++cut;
  }
  ARTESIAN_CHECK(cut == completion.blocks_taken_, cut, completion.blocks_taken_);
  if (completion.blocks_taken_ != 0) {
    abandoned_any_.store(true);
    completion.blocks_taken_ = 0;
    completion.buffer_.abandon();
    fail(completion, abandonment_of(completion.request_));
  }
  end(lock, completion, monotonic_ns());
}

void EngineBase::abandon(Completion& completion) noexcept {
  {
    const Lock locked = lock();
    if (!completion.in_flight()) return;
    cut_off(locked, completion);
  }
  finish({}, 0);  // runs its callback, as the progress threads may all be stuck
}

EngineStatistics EngineBase::statistics() const noexcept {
  const Lock locked = lock();
  EngineStatistics copy = statistics_;
  copy.latency_us_p50 = latencies_.percentile_ns(50) / 1000;
  copy.latency_us_p95 = latencies_.percentile_ns(95) / 1000;
  copy.latency_us_p99 = latencies_.percentile_ns(99) / 1000;
  return copy;
}

/// One clause for each of the first blocks in the kernel, and the number of requests that are not
/// there. Only a block's progress thread knows how much of it is done.
std::string EngineBase::describe_in_flight(const Lock& lock) const {
  ARTESIAN_CHECK(owns(lock));
  constexpr std::uint64_t clauses_max = 8;
  const std::uint64_t now_ns = monotonic_ns();
  std::string text;
  std::uint64_t count = 0;
  for (const Block* block = in_kernel_; block != nullptr; block = block->next) {
    if (block->completion == nullptr || ++count > clauses_max) continue;
    text += fmt::format("{}{} of {} at offset {}, length {}, for {} ms", count == 1 ? "" : "; ",
                        reads(block->request()) ? "read" : "write", block->request().file->path(),
                        block->offset, block->length, (now_ns - block->taken_ns) / 1'000'000);
  }
  text = count == 0 ? "nothing is in the kernel" : "in the kernel: " + text;
  if (count > clauses_max) text += fmt::format("; and {} more", count - clauses_max);
  if (queued_ == 1) text += "; 1 request waits for its turn";
  if (queued_ > 1) text += fmt::format("; {} requests wait for their turn", queued_);
  return text;
}

/// Abandons everything in flight at stop()'s deadline, and accepts no more requests.
void EngineBase::cut_off_all(const Lock& lock) noexcept {
  for (const List& queue : queues_) {
    while (queue.head != nullptr) cut_off(lock, *queue.head);
  }
  for (Block* block = in_kernel_; block != nullptr; block = block->next) {
    if (block->completion != nullptr) cut_off(lock, *block->completion);
  }
  ARTESIAN_CHECK(queued_ == 0 && blocks_left_ == 0, queued_, blocks_left_);
  stopping_ = true;
}

/// Runs the callbacks of abandoned completions here, as the progress threads may all be stuck; also
/// those of requests that these callbacks submit. Waits for callbacks that progress threads are
/// running; callbacks must not wait, so this ends.
void EngineBase::run_last_callbacks() noexcept {
  Lock locked = lock();
  while (has_ended(locked)) {
    locked.unlock();
    finish({}, 0);
    locked.lock();
  }
  Waiter waiter;
  sleep_until(locked, waiter, Deadline::after_seconds(callbacks_seconds_max));
}

bool EngineBase::stop() noexcept {
  const std::uint64_t begin_ns = monotonic_ns();
  Lock locked = lock();
  Waiter all;
  if (sleep_until(locked, all, Deadline::after_seconds(options_.stop_seconds))) {
    Waiter rest{.for_kernel = true};  // abandoned before, with its own deadline
    sleep_until(locked, rest, Deadline::after_seconds(0.1));
  }
  const std::string report = in_flight_ == 0 ? std::string() : describe_in_flight(locked);
  cut_off_all(locked);
  locked.unlock();
  if (!report.empty()) {
    char text[32];
    const double seconds = seconds_since(begin_ns);
    std::snprintf(text, sizeof text, seconds < 10 ? "%.2f" : "%.0f", seconds);
    log(LogLevel::Error,
        "the disk has not answered for " + std::string(text) +
            " s; abandoned, with memory that is lost until the process ends: " + report);
  }
  run_last_callbacks();
  wake_all();
  locked.lock();
  return blocks_in_kernel_ == 0;
}

EngineOwner::~EngineOwner() {
  if (engine_->stop()) return;
  engine_->detach_threads();
  keep_for_ever(std::move(engine_));
}

}  // namespace artesian::aio
