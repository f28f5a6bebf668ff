#include "base/clock.h"

#include <time.h>

namespace artesian {
namespace {

class MonotonicClock final : public Clock {
 public:
  std::uint64_t now_ns() noexcept override {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
           static_cast<std::uint64_t>(now.tv_nsec);
  }
};

}  // namespace

Clock& system_clock() noexcept {
  // Never destroyed: a thread may outlive main (aio/engine_base.h, Note [Abandoned transfers]).
  static auto* const clock = new MonotonicClock;
  return *clock;
}

Deadline Deadline::after_seconds(double seconds) noexcept {
  return Deadline{system_clock().now_ns() + static_cast<std::uint64_t>(seconds * 1e9)};
}

}  // namespace artesian
