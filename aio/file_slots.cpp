#include "aio/file_slots.h"

namespace artesian::aio {

int FileSlots::open(io_uring& ring) noexcept {
  std::array<int, std::tuple_size_v<decltype(slots_)>> nothing;
  nothing.fill(-1);
  const int answer =
      io_uring_register_files(&ring, nothing.data(), static_cast<unsigned>(nothing.size()));
  usable_ = answer >= 0;
  return usable_ ? 0 : -answer;
}

std::int16_t FileSlots::enter(io_uring& ring, int descriptor) noexcept {
  if (!usable_) return none;
  std::int16_t found = none;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = slots_[index];
    if (slot.pending != 0 && slot.descriptor != descriptor) continue;
    found = static_cast<std::int16_t>(index);
    // Otherwise the slot is free, and the file may be in a later slot.
    if (slot.pending != 0) break;
  }
  if (found == none) return none;
  Slot& slot = slots_[static_cast<std::size_t>(found)];
  ARTESIAN_CHECK(slot.pending != 0 || !slot.registered);  // removed with its last transfer
  slot.descriptor = descriptor;
  if (++slot.pending < pending_min || slot.registered) return found;
  const auto index = static_cast<unsigned>(found);
  // If the kernel refuses, for instance for lack of memory, the next transfer tries again.
  slot.registered = io_uring_register_files_update(&ring, index, &slot.descriptor, 1) == 1;
  return found;
}

void FileSlots::leave(io_uring& ring, std::int16_t at) noexcept {
  if (at == none) return;
  ARTESIAN_CHECK(at > none && at < static_cast<std::int16_t>(slots_.size()), at);
  Slot& slot = slots_[static_cast<std::size_t>(at)];
  ARTESIAN_CHECK(slot.pending != 0);
  if (--slot.pending != 0 || !slot.registered) return;
  const int nothing = -1;
  const int answer = io_uring_register_files_update(&ring, static_cast<unsigned>(at), &nothing, 1);
  slot.registered = false;
  if (answer == 1) return;
  // The file must not remain open in the table.
  stop();
  io_uring_unregister_files(&ring);
}

}  // namespace artesian::aio
