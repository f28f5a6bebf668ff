#include "pinned/aligned_mapping.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/check.h"
#include "base/huge_page.h"
#include "base/units.h"

namespace artesian::pinned {

std::byte* map_aligned(std::uint64_t bytes, int protection, int flags) noexcept {
  ARTESIAN_CHECK(bytes % 4096 == 0, bytes);
  const std::uint64_t mapped_bytes = bytes + huge_page_size;  // room for aligning the start
  if (bytes == 0 || mapped_bytes < bytes) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const mapped =
      mmap(nullptr, mapped_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uint64_t head = round_up(start, huge_page_size) - start;
  const std::uint64_t tail = huge_page_size - head;
  auto* const data = static_cast<std::byte*>(mapped) + head;
  // Unmapping the slack of our own mapping can only fail at the limit on the number of mappings;
  // the slack was never touched, so keeping it then costs only addresses.
  if (head != 0) (void)munmap(mapped, head);
  if (tail != 0) (void)munmap(data + bytes, tail);
  return data;
}

}  // namespace artesian::pinned
