#include "base/detached_call.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>

namespace artesian::detail {

Result<void> start_detached(std::function<void()> body) noexcept {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits the mask
  Result<void> outcome;
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error& error) {
    outcome = make_error(ErrorCode::Exhausted,
                         "no more threads: the limit of the user (ulimit -u) or of a control group "
                         "(pids.max)",
                         error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return outcome;
}

bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& woken,
                Deadline deadline, const std::function<bool()>& ready) noexcept {
  while (!ready()) {
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline.at_ns) return false;
    // Waits in steps, as a deadline may be the end of time, which would overflow.
    const std::uint64_t left_ns = std::min<std::uint64_t>(deadline.at_ns - now_ns, 1'000'000'000);
    woken.wait_for(lock, std::chrono::nanoseconds(left_ns));
  }
  return true;
}

Error call_is_late(const std::string& what) {
  return make_error(ErrorCode::Timeout, what + " has not ended in time: the disk does not answer");
}

}  // namespace artesian::detail
