#include "base/clock.h"

#include <time.h>

namespace artesian {

std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

double seconds_since(std::uint64_t begin_ns) noexcept {
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

Deadline Deadline::after_seconds(double seconds) noexcept {
  return Deadline{monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9)};
}

}  // namespace artesian
