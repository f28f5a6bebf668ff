#include "aio/threads.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace artesian::aio {
namespace {

// Note [Idle workers]: each sleeps on its own condition variable. glibc before 2.41 can lose a
// notify_one if several threads wait on one condition variable (its bug 25847), and the block for
// which the worker was woken would stay in the queue.
//
// Note [Caller]: all workers may be stuck in the kernel for ever, but the callback of a request
// that was cancelled or failed before its turn must still run, and not on the thread that cancels
// or submits. So there is one more thread for callbacks of requests that ended without a worker.
// Awake workers run such callbacks, too.

class ThreadPool final : public EngineBase {
 public:
  ThreadPool(const EngineOptions& options, FaultSeam* faults) noexcept
      : EngineBase(EngineKind::Threads, options, faults) {}
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Errors: Exhausted (no more threads).
  Result<void> start() noexcept;
  void detach_threads() noexcept override {
    caller_.detach();
    for (std::thread& worker : workers_) worker.detach();
  }

 private:
  void wake(std::uint64_t blocks) noexcept override;
  void wake_all() noexcept override;
  Result<void> start_workers() noexcept;
  void run() noexcept;
  void run_caller() noexcept;
  void call_idle(const Lock& lock, std::uint64_t count) noexcept;
  void sleep(Lock& lock) noexcept;
  bool may_take(const Lock& lock) const noexcept;
  void move(Block& block) const noexcept;

  /// A sleeping worker; lies on its stack: Note [Idle workers].
  struct Idle {
    std::condition_variable called;
    bool is_called = false;
    Idle* next = nullptr;
  };

  std::thread caller_;
  std::condition_variable caller_woken_;
  std::vector<std::thread> workers_;
  Idle* idle_ = nullptr;   // idle workers that were not called; the last to fall asleep first
  bool draining_ = false;  // without overlap_events: no new blocks until all have ended
};

Result<void> ThreadPool::start() noexcept {
  ARTESIAN_CHECK(workers_.empty() && !caller_.joinable());
  try {
    caller_ = std::thread([this] { run_caller(); });
  } catch (const std::system_error& failure) {
    return make_error(ErrorCode::Exhausted, "cannot start an I/O thread", failure.code().value());
  }
  return start_workers();
}

Result<void> ThreadPool::start_workers() noexcept {
  const std::uint64_t wanted = std::uint64_t{options_.queue_depth} * options_.threads;
  const auto count = static_cast<std::size_t>(std::min(wanted, workers_max));
  const Lock locked = lock();  // workers read workers_
  workers_.reserve(count);
  try {
    while (workers_.size() < count) workers_.emplace_back([this] { run(); });
  } catch (const std::system_error& failure) {
    if (workers_.empty()) {
      return make_error(ErrorCode::Exhausted, "cannot start an I/O thread", failure.code().value());
    }
  }
  return {};
}

ThreadPool::~ThreadPool() {
  ARTESIAN_CHECK(stop());
  if (caller_.joinable()) caller_.join();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::wake_all() noexcept {
  const Lock locked = lock();
  caller_woken_.notify_one();
  if (stopping(locked)) call_idle(locked, workers_max);
}

/// Runs callbacks: see Note [Caller].
void ThreadPool::run_caller() noexcept {
  enter_progress_thread();
  Lock locked = lock();
  while (true) {
    caller_woken_.wait(locked, [&] { return has_ended(locked) || stopping(locked); });
    if (!has_ended(locked)) return;
    locked.unlock();
    finish({}, 0);
    locked.lock();
  }
}

void ThreadPool::wake(std::uint64_t blocks) noexcept {
  call_idle(lock(), blocks);
}

/// Notifies while holding the lock: once an idle worker gets the lock, its condition variable is
/// gone.
void ThreadPool::call_idle(const Lock& lock, std::uint64_t count) noexcept {
  ARTESIAN_CHECK(lock.owns_lock());
  for (; count != 0 && idle_ != nullptr; --count) {
    Idle& worker = *std::exchange(idle_, idle_->next);
    ARTESIAN_CHECK(!worker.is_called);
    worker.is_called = true;
    worker.called.notify_one();
  }
}

/// Sleeps until called.
void ThreadPool::sleep(Lock& lock) noexcept {
  ARTESIAN_CHECK(lock.owns_lock());
  Idle self;
  self.next = std::exchange(idle_, &self);
  self.called.wait(lock, [&] { return self.is_called; });
}

bool ThreadPool::may_take(const Lock& lock) const noexcept {
  return has_ended(lock) || (has_work(lock) && !draining_);
}

void ThreadPool::run() noexcept {
  enter_progress_thread();
  Block block;
  Block* const slot = &block;
  Lock locked = lock();
  while (true) {
    while (!may_take(locked) && !stopping(locked)) sleep(locked);
    if (!may_take(locked)) return;
    const bool taken = !draining_ && take(locked, {&slot, 1}) == 1;
    const std::uint64_t moving = blocks_in_kernel(locked);
    ARTESIAN_CHECK(moving <= workers_.size(), moving, workers_.size());  // one block each
    const bool full = moving == workers_.size();
    if (!options_.overlap_events && taken) draining_ = full || !has_work(locked);
    locked.unlock();
    std::uint64_t calls = 0;
    if (taken) {
      move(block);
      calls = block.continued + 1;
    }
    finish({&slot, taken ? 1u : 0u}, calls);
    locked.lock();
    if (draining_ && blocks_in_kernel(locked) == 0) {
      draining_ = false;
      call_idle(locked, workers_max);
    }
  }
}

void ThreadPool::move(Block& block) const noexcept {
  const Request& request = block.request();
  std::int64_t result = 0;
  do {
    std::byte* const memory = block.memory + block.done;
    const auto offset = static_cast<off_t>(block.offset + block.done);
    const std::uint64_t length = length_to_ask(block);
    result = request.operation == Operation::Read
                 ? pread(block.descriptor, memory, length, offset)
                 : pwrite(block.descriptor, memory, length, offset);
    if (result < 0) result = -errno;
  } while (settle(block, result) == Verdict::Continue);
}

}  // namespace

Result<std::unique_ptr<Engine>> make_threads(const EngineOptions& options,
                                             FaultSeam* faults) noexcept {
  auto engine = std::make_unique<ThreadPool>(options, faults);
  ARTESIAN_TRY_VOID(engine->start());
  return std::unique_ptr<Engine>(std::make_unique<EngineOwner>(std::move(engine)));
}

}  // namespace artesian::aio
