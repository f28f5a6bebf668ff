// Route: the way between the home of some state and the processor that works on it. A placement
// decides it once, for each unit and kind of state. Code that moves bytes follows the route instead
// of deriving it from the device, the tier of the home and the dtypes.
#pragma once

#include <cstdint>

namespace artesian::tiering {

enum class Route : std::uint8_t {
  InPlace,   // the host works on the home itself; nothing moves
  OnDevice,  // a separate device works on the home itself; nothing moves
  Memory,    // the CPU copies or expands it between two places in memory that it can access
  Disk,      // read from NVMe into host-accessible memory, and written from there
  Queues,    // moved by a separate device's queues; bytes on NVMe pass through host memory
};

/// True if the home itself is worked on, without moving.
constexpr bool stays(Route route) noexcept {
  return route == Route::InPlace || route == Route::OnDevice;
}

/// True if one end of the route is a separate device.
constexpr bool ends_at_device(Route route) noexcept {
  return route == Route::OnDevice || route == Route::Queues;
}

}  // namespace artesian::tiering
