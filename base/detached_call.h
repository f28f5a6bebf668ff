// Calls that may hang: a disk that does not answer blocks the thread that asks, and nothing can end
// that. So such a call runs on a thread of its own, which is never joined and owns all that it
// uses; a waiter gives up at a deadline.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace artesian {

namespace detail {
/// Starts a thread that blocks the process's signals. Errors: Exhausted.
Result<void> start_detached(std::function<void()> body) noexcept;
/// Waits on `woken` until `ready` holds or the deadline passes. Returns whether it holds.
bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& woken,
                Deadline deadline, const std::function<bool()>& ready) noexcept;
Error call_is_late(const std::string& what);
}  // namespace detail

/// A call that runs or has ended. Copies refer to the same call.
template <typename T>
class DetachedCall {
 public:
  /// `call` must own what it uses; `what` names it in errors. Errors: Exhausted.
  static Result<DetachedCall> start(const std::string& what,
                                    std::function<Result<T>()> call) noexcept {
    DetachedCall made;
    made.state_ = std::make_shared<State>();
    made.state_->what = what;
    auto started = detail::start_detached([state = made.state_, call = std::move(call)]() mutable {
      auto outcome = call();
      (void)outcome.has_value();  // the waiter may have stopped waiting
      call = nullptr;             // freed before the waiter learns of the end
      const std::lock_guard lock(state->mutex);
      state->outcome.emplace(std::move(outcome));
      state->woken.notify_all();
    });
    if (!started.has_value()) return std::move(started).error();
    return made;
  }
  bool done() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->outcome.has_value();
  }
  /// Waits until the call has ended or the deadline passes. Returns whether it has ended.
  bool done_within(Deadline deadline) const noexcept {
    std::unique_lock lock(state_->mutex);
    return detail::wait_until(lock, state_->woken, deadline,
                              [&] { return state_->outcome.has_value(); });
  }
  /// Takes the result; once, and only after the call has ended. Errors: those of the call.
  Result<T> take() noexcept {
    const std::lock_guard lock(state_->mutex);
    ARTESIAN_CHECK(state_->outcome.has_value());
    return std::move(*state_->outcome);
  }
  /// The error for a call that has not ended in time.
  Error late() const { return detail::call_is_late(state_->what); }
  /// Waits and takes the result. Errors: those of the call; Timeout: it is still running.
  Result<T> wait(Deadline deadline) noexcept {
    if (!done_within(deadline)) return late();
    return take();
  }

 private:
  struct State {
    std::string what;
    std::mutex mutex;
    std::condition_variable woken;
    std::optional<Result<T>> outcome;
  };
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive the waiter
};

}  // namespace artesian
