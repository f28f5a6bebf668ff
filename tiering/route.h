// Route: the way between the home of some state and who works on it. A placement decides it once,
// for each unit and kind of state; whoever moves bytes goes by it, and does not derive it again
// from what device there is, which tier the home is in and which dtypes the two ends have.
#pragma once

#include <cstdint>

namespace artesian::tiering {

enum class Route : std::uint8_t {
  InPlace,   // the host works on the home itself: nothing moves
  OnDevice,  // a separate device does: nothing moves
  Memory,    // the CPU copies or expands it from one place that it reaches to another
  Disk,      // read from NVMe into memory that the host reaches, and written from there
  Queues,    // moved by a separate device's queues; bytes on NVMe pass through host memory
};

/// True if the home itself is worked on.
constexpr bool stays(Route route) noexcept {
  return route == Route::InPlace || route == Route::OnDevice;
}

/// True if a separate device is at one of its ends.
constexpr bool ends_at_device(Route route) noexcept {
  return route == Route::OnDevice || route == Route::Queues;
}

}  // namespace artesian::tiering
