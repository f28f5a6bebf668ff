// LaneEngine: an engine of lanes. One lane is a queue of the kernel (an io_uring, an AIO context)
// with its progress thread, which alone touches it. Lanes share the queues of EngineBase: each
// takes what it has free slots for, so that a slow lane delays no other.
//
// Note [Wake-up]: a lane sets `asleep` before it checks the queues, and submitters queue before
// they check `asleep`, with the mutex taken in between. So either the lane sees the work, or the
// submitter sees a sleeping lane and writes its eventfd. A lane whose slots are all taken is not
// asleep: it checks the queues again when a block ends. Only its own thread knows how many slots of
// a sleeping lane are free; so a lane that has filled its slots and leaves blocks behind wakes the
// next lane. A lane's own thread that submits from a callback wakes nobody: it checks the queues
// after its callbacks, before it sleeps.
//
// Note [Plugging]: when more than two transfers are submitted in one call, the kernel holds them
// back until the last is prepared, and merges neighbours. For small blocks that saves work (16 KiB
// x 32 in one call reads + 13% against calls of 4); larger ones only reach an idle disk later.
// Measured at 1 MiB x 32, in calls of at most two against one call: read + 9%, write + 10%; at 128
// KiB x 32 and x 128, in calls of at most four: read + 13% and + 15% (medians of 9, interleaved).
// So a call hands over at most 512 KiB, or two blocks.
//
// A Queue has the functions of Ring (aio/ring.h), the first of its kind.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "aio/answer.h"
#include "aio/fixed_buffers.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::aio {

template <typename Queue>
class LaneEngine final : public EngineBase {
 public:
  LaneEngine(EngineKind kind, const EngineOptions& options, FaultSeam* faults) noexcept
      : EngineBase(kind, options, faults),
        blocks_per_call_(options.single_submit
                             ? 1
                             : std::max<std::uint64_t>(2, bytes_per_call / options.block_size)) {}
  ~LaneEngine() override {
    ARTESIAN_CHECK(stop());
    for (const auto& lane : lanes_) lane->thread.join();
  }
  LaneEngine(const LaneEngine&) = delete;
  LaneEngine& operator=(const LaneEngine&) = delete;

  /// Errors: Unsupported (with the kernel's errno), Exhausted (no more threads).
  Result<void> start() noexcept;
  std::uint32_t rings() const noexcept override {
    return Queue::registers_memory ? static_cast<std::uint32_t>(lanes_.size()) : 0;
  }
  int register_with_ring(std::uint32_t ring,
                         std::span<const std::span<std::byte>> ranges) noexcept override;
  /// Asks the first lane: all lanes use the same kernel.
  Polling polling() const noexcept override { return lanes_.front()->queue.polling(); }
  void detach_threads() noexcept override {
    for (const auto& lane : lanes_) lane->thread.detach();
  }

 private:
  static constexpr std::uint64_t bytes_per_call = 512 << 10;  // see Note [Plugging]

  /// A call that only the lane's own thread may make on its queue, made on behalf of another
  /// thread.
  enum class Ask : std::uint8_t { Nothing, Open, Register };

  struct Lane {
    Queue queue;
    std::vector<Block> blocks;
    std::vector<Block*> free;
    std::vector<Block*> done;
    FixedBuffers buffers;
    std::atomic<bool> asleep = false;
    std::thread::id id;   // the lane's thread; set by it before anything is submitted
    Ask ask = Ask::Open;  // `ask` and `answer` are guarded by the mutex
    int answer = 0;       // errno
    std::thread thread;
  };

  void wake(std::uint64_t blocks) noexcept override;
  void wake_all() noexcept override {
    for (const auto& lane : lanes_) lane->queue.wake();
  }
  void run(Lane& lane) noexcept;
  bool open(Lane& lane) noexcept;
  bool fill(Lane& lane) noexcept;
  void reap(Lane& lane) noexcept;
  bool prepare(Lane& lane, Block& block) noexcept;
  void answer_ask(Lane& lane, Lock& lock) noexcept;
  int await_answer(Lane& lane, Lock& lock) noexcept;

  const std::uint64_t blocks_per_call_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::condition_variable answered_;
};

template <typename Queue>
Result<void> LaneEngine<Queue>::start() noexcept {
  while (lanes_.size() < options_.threads) {
    auto lane = std::make_unique<Lane>();
    lane->blocks.resize(options_.queue_depth);
    for (Block& block : lane->blocks) lane->free.push_back(&block);
    lane->done.reserve(options_.queue_depth);
    try {
      lane->thread = std::thread([this, raw = lane.get()] { run(*raw); });
    } catch (const std::system_error& failure) {
      return make_error(ErrorCode::Exhausted, "cannot start an I/O thread", failure.code().value());
    }
    Lock locked = lock();
    const int failure = await_answer(*lane, locked);
    locked.unlock();
    if (failure != 0) {
      lane->thread.join();
      return make_error(ErrorCode::Unsupported,
                        std::string("cannot set up ") + engine_kind_name(kind()), failure);
    }
    lanes_.push_back(std::move(lane));
  }
  return {};
}

template <typename Queue>
int LaneEngine<Queue>::register_with_ring(std::uint32_t ring,
                                          std::span<const std::span<std::byte>> ranges) noexcept {
  ARTESIAN_CHECK(ring < rings(), ring, rings());
  Lock locked = lock();
  ARTESIAN_CHECK(in_flight(locked) == 0, in_flight(locked));
  Lane& lane = *lanes_[ring];
  ARTESIAN_CHECK(lane.ask == Ask::Nothing);
  lane.buffers = FixedBuffers(ranges);  // the queue reads it only for transfers
  lane.ask = Ask::Register;
  lane.queue.wake();
  return await_answer(lane, locked);
}

template <typename Queue>
int LaneEngine<Queue>::await_answer(Lane& lane, Lock& lock) noexcept {
  ARTESIAN_CHECK(lock.owns_lock());
  answered_.wait(lock, [&] { return lane.ask == Ask::Nothing; });
  return lane.answer;
}

template <typename Queue>
void LaneEngine<Queue>::answer_ask(Lane& lane, Lock& lock) noexcept {
  ARTESIAN_CHECK(lock.owns_lock() && lane.ask != Ask::Nothing);
  lane.answer = lane.ask == Ask::Open ? lane.queue.open(options_.queue_depth, options_.polling)
                                      : lane.queue.register_buffers(lane.buffers);
  lane.ask = Ask::Nothing;
  answered_.notify_all();
}

template <typename Queue>
void LaneEngine<Queue>::wake(std::uint64_t blocks) noexcept {
  for (const auto& lane : lanes_) {
    if (blocks == 0) return;
    if (!lane->asleep.load() || !lane->asleep.exchange(false)) continue;
    if (lane->id != std::this_thread::get_id()) lane->queue.wake();
    blocks -= std::min<std::uint64_t>(blocks, options_.queue_depth);
  }
}

template <typename Queue>
void LaneEngine<Queue>::run(Lane& lane) noexcept {
  enter_progress_thread();
  lane.id = std::this_thread::get_id();
  if (!open(lane)) return;
  while (fill(lane)) {
    // Without overlap_events all transfers in the kernel complete before more are taken.
    lane.queue.wait(options_.overlap_events ? 1 : std::max(1u, lane.queue.blocks_pending()));
    reap(lane);
  }
  lane.queue.close();
}

template <typename Queue>
bool LaneEngine<Queue>::open(Lane& lane) noexcept {
  Lock locked = lock();
  answer_ask(lane, locked);
  if (lane.answer != 0) lane.queue.close();
  return lane.answer == 0;
}

/// Takes blocks and queues their transfers. Returns whether the lane should continue.
template <typename Queue>
bool LaneEngine<Queue>::fill(Lane& lane) noexcept {
  while (true) {
    // Each block is either free or pending in the queue.
    ARTESIAN_CHECK(lane.free.size() + lane.queue.blocks_pending() == lane.blocks.size(),
                   lane.free.size(), lane.queue.blocks_pending());
    const bool may_take = options_.overlap_events || lane.queue.blocks_pending() == 0;
    const std::span<Block*> slots(lane.free.data(), may_take ? lane.free.size() : 0);
    lane.asleep.store(!slots.empty());
    Lock locked = lock();
    if (lane.ask != Ask::Nothing) answer_ask(lane, locked);
    const std::size_t count = take(locked, slots);
    ARTESIAN_CHECK(count <= slots.size(), count, slots.size());
    const bool full = count == slots.size();
    const bool leaves_blocks = full && has_blocks(locked);
    const bool ended = has_ended(locked);
    const bool last = stopping(locked) && count == 0 && lane.queue.blocks_pending() == 0;
    locked.unlock();
    if (full) lane.asleep.store(false);
    if (leaves_blocks) wake(1);  // see Note [Wake-up]
    lane.done.clear();
    for (std::size_t index = 0; index < count; ++index) {
      if (!prepare(lane, *slots[index])) lane.done.push_back(slots[index]);
    }
    lane.free.erase(lane.free.begin(), lane.free.begin() + static_cast<std::ptrdiff_t>(count));
    if (!ended && lane.done.empty()) return !last;
    lane.free.insert(lane.free.end(), lane.done.begin(), lane.done.end());
    finish(lane.done,
           0);  // runs the callbacks of completions that ended without the kernel; they may submit
  }
}

/// Returns whether the block was queued: false if it was abandoned.
template <typename Queue>
bool LaneEngine<Queue>::prepare(Lane& lane, Block& block) noexcept {
  bool stalls = false;
  if constexpr (requires { lane.queue.poll(block, 0); }) {
    const int descriptor = stalls_on(block);
    stalls = descriptor >= 0;
    if (stalls) lane.queue.poll(block, descriptor);
  }
  if (abandoned_any()) lane.queue.stop_registering_files();
  if (!stalls) {
    const std::uint64_t length = length_to_ask(block);
    if (length == 0) return false;
    lane.queue.prepare(block, length);
  }
  if (lane.queue.blocks_queued() >= blocks_per_call_) lane.queue.submit();
  return true;
}

template <typename Queue>
void LaneEngine<Queue>::reap(Lane& lane) noexcept {
  lane.done.clear();
  for (const Answer& answer : lane.queue.reap()) {
    ARTESIAN_CHECK(answer.block >= lane.blocks.data() &&
                   answer.block < lane.blocks.data() + lane.blocks.size());
    const bool goes_on = settle(*answer.block, answer.result) == Verdict::Continue;
    if (!goes_on || !prepare(lane, *answer.block)) lane.done.push_back(answer.block);
  }
  const std::uint64_t submit_calls = lane.queue.exchange_submit_calls();
  if (lane.done.empty() && submit_calls == 0) return;
  for (Block* block : lane.done) lane.free.push_back(block);
  finish(lane.done, submit_calls);
}

}  // namespace artesian::aio
