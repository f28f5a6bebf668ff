// keep_for_ever: for memory that the kernel may still write to although nobody waits any longer, as
// after a disk has stopped answering. Such memory must never be freed or reused, so its owner leaks
// it here instead of destroying it; it is freed when the process ends.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace artesian {

namespace detail {
/// Kept reachable, so that leak checkers do not report it.
inline void keep_for_ever(void* object) noexcept {
  static std::mutex mutex;
  static auto* const kept = new std::vector<void*>;  // not destroyed at exit
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(object);
}
}  // namespace detail

template <typename T>
void keep_for_ever(std::unique_ptr<T> object) noexcept {
  if (object != nullptr) detail::keep_for_ever(object.release());
}

}  // namespace artesian
