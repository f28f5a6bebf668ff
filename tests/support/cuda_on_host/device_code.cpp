#include "tests/support/cuda_on_host/device_code.h"

#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/check.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace artesian::test_support {
namespace {

constexpr unsigned warp = 32;

// A fiber runs the block's threads one after the other. At a shuffle it stops, and another fiber
// continues with the threads that have not begun.
struct Fiber {
  ucontext_t context{};
  std::vector<std::byte> stack = std::vector<std::byte>(128 << 10);
};

class Block {
 public:
  explicit Block(const std::function<void()>& thread)
      : thread_(thread), threads_(blockDim.x), given_(threads_), waiting_(threads_) {}

  void run();
  std::uint64_t shuffle(std::uint64_t value, unsigned source, unsigned width);
  void run_threads() {
    while (next_ < threads_) {
      threadIdx.x = next_++;
      thread_();
    }
  }

 private:
  void go(Fiber* fiber);
  void exchange(unsigned first, unsigned end);

  const std::function<void()>& thread_;
  const unsigned threads_;
  unsigned next_ = 0;
  Fiber* current_ = nullptr;
  ucontext_t scheduler_{};
  std::vector<std::uint64_t> given_;
  std::vector<std::uint64_t> taken_;
  std::vector<Fiber*> waiting_;  // by thread
};

Block* block = nullptr;
std::vector<std::unique_ptr<Fiber>> fibers;  // all that were made; they are reused
std::size_t fibers_used = 0;

void Block::go(Fiber* fiber) {
  current_ = fiber;
  ARTESIAN_CHECK(swapcontext(&scheduler_, &fiber->context) == 0);
}

void Block::run() {
  for (fibers_used = 0; next_ < threads_; ++fibers_used) {
    if (fibers_used == fibers.size()) fibers.push_back(std::make_unique<Fiber>());
    Fiber* fiber = fibers[fibers_used].get();
    ARTESIAN_CHECK(getcontext(&fiber->context) == 0);
    fiber->context.uc_stack = {fiber->stack.data(), 0, fiber->stack.size()};
    fiber->context.uc_link = &scheduler_;
    makecontext(
        &fiber->context, [] { block->run_threads(); }, 0);
    go(fiber);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned first = 0; first < threads_; first += warp) {
      if (waiting_[first] == nullptr) continue;
      exchange(first, first + warp < threads_ ? first + warp : threads_);
      any = true;
    }
  }
  for (const Fiber* fiber : waiting_) ARTESIAN_CHECK(fiber == nullptr);
}

/// One shuffle of a warp, once all of its threads have reached it.
void Block::exchange(unsigned first, unsigned end) {
  taken_ = given_;
  for (unsigned thread = first; thread < end; ++thread) {
    ARTESIAN_CHECK(waiting_[thread] != nullptr, first, thread);
    Fiber* fiber = nullptr;
    std::swap(fiber, waiting_[thread]);
    go(fiber);
  }
}

std::uint64_t Block::shuffle(std::uint64_t value, unsigned source, unsigned width) {
  const unsigned me = threadIdx.x;
  given_[me] = value;
  waiting_[me] = current_;
  ARTESIAN_CHECK(swapcontext(&current_->context, &scheduler_) == 0);
  threadIdx.x = me;
  return taken_[me / width * width + source % width];
}

}  // namespace

std::uint64_t shuffle(std::uint64_t value, unsigned source, unsigned width) {
  return block->shuffle(value, source, width);
}

void run_grid(dim3 grid, dim3 block_size, const std::function<void()>& thread) {
  gridDim = grid;
  blockDim = block_size;
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
      Block running(thread);
      block = &running;
      running.run();
    }
  }
  block = nullptr;
}

}  // namespace artesian::test_support
