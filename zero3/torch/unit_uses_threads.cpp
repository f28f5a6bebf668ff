// UnitUses with several threads: the lock, a stack of calls for each thread, and backwards that run
// on another thread than their caller's.
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "zero3/torch/unit_use.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

/// Takes the lock. After a failed backward, its last node may still be running on a device's thread
/// when the caller already knows; this waits for it.
std::unique_lock<std::recursive_mutex> UnitUses::alone() const {
  constexpr auto pause = std::chrono::milliseconds(1);
  constexpr int pauses = 500;
  std::unique_lock held(link_->mutex);
  if (current_task() != no_task) return held;
  for (int left = pauses; left > 0 && backward_runs(); --left) {
    held.unlock();
    std::this_thread::sleep_for(pause);
    held.lock();
  }
  return held;
}

bool UnitUses::backward_runs() const {
  return std::any_of(tasks_.begin(), tasks_.end(),
                     [](const Task& task) { return !task.runs.expired(); });
}

Result<void> UnitUses::check_no_backward_elsewhere() const {
  if (current_task() != no_task || !backward_runs()) return {};
  return make_error(ErrorCode::Invalid,
                    "a backward of the model runs on another thread; wait until it has returned");
}

/// Hooks run on the forward's stream, which must be the engine's.
Result<void> UnitUses::check_stream_of(const char* call) const {
  return device_ == nullptr ? Result<void>() : check_stream(*device_, call);
}

/// This thread's calls; null if it has none.
UnitUses::Frames* UnitUses::frames() {
  const auto found = stacks_.find(at::RecordFunction::currentThreadId());
  return found == stacks_.end() ? nullptr : &found->second;
}

void UnitUses::push(Frame frame) {
  const std::lock_guard held(depths_);
  stacks_[frame.thread].push_back(std::move(frame));
}

/// Removes this thread's innermost call.
void UnitUses::pop() {
  const std::lock_guard held(depths_);
  const auto found = stacks_.find(at::RecordFunction::currentThreadId());
  ARTESIAN_CHECK(found != stacks_.end());
  found->second.pop_back();
  if (found->second.empty()) stacks_.erase(found);
}

std::size_t UnitUses::depth() const {
  const std::lock_guard held(depths_);
  const auto found = stacks_.find(at::RecordFunction::currentThreadId());
  return found == stacks_.end() ? 0 : found->second.size();
}

void UnitUses::lend(std::uint32_t parameter, bool lent) {
  const std::lock_guard held(link_->mutex);
  watch_.lend(parameter, lent);
}

Result<void> UnitUses::begin_call(Pass pass) {
  ARTESIAN_TRY_VOID(read_words());
  if (has_failed(current_task())) {
    return make_error(ErrorCode::Invalid, "the backward that this call belongs to has failed");
  }
  if (current_task() != no_task) return release_ahead();
  ARTESIAN_TRY_VOID(check_no_backward_elsewhere());
  ARTESIAN_TRY_VOID(check_stream_of("forward"));
  if (stacks_.empty()) return begin_pass(pass);
  if (pass == Pass::Evaluate || !evaluating_ || frames() != nullptr) return {};
  return make_error(ErrorCode::Invalid,
                    "the model is evaluated by another thread; train it once that has ended");
}

Result<void> UnitUses::end_call(bool failed) {
  pop();
  if (!stacks_.empty() || current_task() != no_task) return {};
  if (std::exchange(evaluating_, false)) return core_.end_evaluation(failed);
  // Other ranks wait where this one would have gone on.
  if (failed && core_.meets_in_passes()) {
    damaged_ = true;
    core_.break_pass();
  }
  return {};
}

Result<void> UnitUses::unwind() {
  const auto held_alone = alone();
  return unwind_calls(/*of_all_threads=*/false);
}

Result<void> UnitUses::unwind_calls(bool of_all_threads) {
  std::unordered_map<std::uint64_t, Frames> broken;
  {
    const std::lock_guard held(depths_);
    if (of_all_threads) {
      broken.swap(stacks_);
    } else if (auto own = stacks_.extract(at::RecordFunction::currentThreadId()); !own.empty()) {
      broken.insert(std::move(own));
    }
  }
  if (broken.empty()) return {};
  const bool evaluated = evaluating_;
  if (stacks_.empty()) evaluating_ = false;
  if (!evaluated) {
    damaged_ = true;
    core_.break_pass();
  }
  for (const auto& [thread, calls] : broken) {
    for (auto frame = calls.rbegin(); frame != calls.rend(); ++frame) {
      ARTESIAN_TRY_VOID(release_all(frame->stages));
    }
  }
  const bool over = evaluated && stacks_.empty();
  return over ? core_.end_evaluation(/*refused=*/true) : Result<void>();
}

}  // namespace artesian::zero3
