// FileSlots: a ring's table of registered files. For a file in this table the kernel need not look
// up the descriptor at each transfer.
//
// Note [Registered files]: the table keeps its files open, with their locks and their disk space,
// and a descriptor number in it keeps its meaning. So a file is registered only while transfers of
// it are in this ring, and is removed before the last of them is given back: from then on the file
// may be closed and its number reused. (Abandoned transfers break this rule: after the first one,
// no file is registered any more.) Registering and removing cost a system call of half a
// microsecond each; so a file is registered only once `pending_min` transfers of it are in the
// ring, as happens while blocks stream.
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

  /// Makes the table. Returns 0 or an errno, after which transfers use their descriptors.
  int open(io_uring& ring) noexcept;
  /// From now on transfers use their descriptors.
  void stop() noexcept { usable_ = false; }

  /// Counts a transfer in its descriptor's slot, and returns the slot; `none` if no slot is free.
  std::int16_t enter(io_uring& ring, int descriptor) noexcept;
  /// True if the file of this slot is registered, at the slot's index.
  bool registered(std::int16_t slot) const noexcept {
    ARTESIAN_CHECK(slot >= none && slot < static_cast<std::int16_t>(slots_.size()), slot);
    return usable_ && slot != none && slots_[static_cast<std::size_t>(slot)].registered;
  }
  /// Ends the count of a completed transfer in this slot.
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
