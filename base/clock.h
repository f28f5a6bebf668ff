// Time comes in through an interface, so that a seeded simulation runs the same code.
#pragma once

#include <cstdint>
#include <limits>

namespace artesian {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Nanoseconds since an arbitrary start; never goes back.
  virtual std::uint64_t now_ns() noexcept = 0;
};

/// CLOCK_MONOTONIC. One object for the process; lives for ever.
Clock& system_clock() noexcept;

/// The latest moment that a wait may last until, on the system clock.
struct Deadline {
  std::uint64_t at_ns = std::numeric_limits<std::uint64_t>::max();

  /// A deadline `seconds` from now on the system clock.
  static Deadline after_seconds(double seconds) noexcept;
};

}  // namespace artesian
