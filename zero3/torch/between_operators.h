// BetweenOperators: runs other work on this thread while a module computes, each time LibTorch is
// about to run an operator. The thread pool is idle at that moment, so that the work competes with
// nothing.
#pragma once

#include <cstdint>
#include <functional>

namespace artesian::zero3 {

/// From construction to destruction, calls `work` before each operator that is dispatched on this
/// thread, outside of parallel regions; but not for operators that `work` runs itself. An empty
/// function is never called. `work` must outlive this and must not throw.
class BetweenOperators {
 public:
  explicit BetweenOperators(const std::function<void()>& work);
  ~BetweenOperators();
  BetweenOperators(const BetweenOperators&) = delete;
  BetweenOperators& operator=(const BetweenOperators&) = delete;

 private:
  const std::function<void()>* before_;  // callback of an outer scope
  std::uint64_t handle_ = 0;             // handle of LibTorch's callback; 0 if there is none
};

}  // namespace artesian::zero3
