// FileSlots: a ring's table of registered files. A transfer of a file that stands there needs no
// look-up of its descriptor in the kernel.
//
// Note [Registered files]: the table holds files open: their locks, their space, and above all what
// their numbers stand for. So a file is there only while transfers of it are in this ring, and is
// out again before the last of them is given back: from then on it may be closed, and its number be
// another file's. (Abandoned transfers break that: once there is one, nothing is put in any more.)
// Putting in and taking out are a call each, half a microsecond; so a file is put in only once
// `pending_min` transfers of it are in the ring, which is the case while blocks stream.
#pragma once

#include <liburing.h>

#include <array>
#include <cstdint>

#include "base/check.h"

namespace artesian::aio {

class FileSlots {
 public:
  static constexpr std::int16_t none = -1;
  static constexpr std::uint32_t pending_min = 8;

  /// Makes the table. Returns 0 or an errno, after which transfers go by their descriptors.
  int open(io_uring& ring) noexcept;
  /// From now on transfers go by their descriptors.
  void stop() noexcept { usable_ = false; }

  /// Counts a transfer in its descriptor's slot, and returns the slot; `none` without room.
  std::int16_t enter(io_uring& ring, int descriptor) noexcept;
  /// True if the file of this slot stands in the table, at the slot's index.
  bool registered(std::int16_t slot) const noexcept {
    ARTESIAN_CHECK(slot >= none && slot < static_cast<std::int16_t>(slots_.size()), slot);
    return usable_ && slot != none && slots_[static_cast<std::size_t>(slot)].registered;
  }
  /// Ends the count of a transfer in this slot: it has completed.
  void leave(io_uring& ring, std::int16_t slot) noexcept;

 private:
  struct Slot {
    int descriptor = -1;
    std::uint32_t pending = 0;
    bool registered = false;
  };

  std::array<Slot, 8> slots_;
  bool usable_ = false;
};

}  // namespace artesian::aio
