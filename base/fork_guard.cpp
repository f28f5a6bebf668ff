#include "base/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace artesian {
namespace {

struct Guarded {
  std::mutex mutex;
  std::vector<int> descriptors;
};

Guarded& guarded() {
  static auto* const all = new Guarded;  // not destroyed, as a fork may happen during exit
  return *all;
}

// The mutex is held during each fork, so that the child's copy of the list is consistent.
void before_fork() {
  guarded().mutex.lock();
}

void in_parent() {
  guarded().mutex.unlock();
}

// Uses only calls that are allowed between fork and exec. The number stays in use, so that
// destructors in the child close no other file.
void in_child() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int descriptor : guarded().descriptors) {
    if (nothing < 0 || dup3(nothing, descriptor, O_CLOEXEC) < 0) close(descriptor);
  }
  if (nothing >= 0) close(nothing);
  guarded().descriptors.clear();
  guarded().mutex.unlock();
}

}  // namespace

void guard_from_children(int descriptor) noexcept {
  static const int installed = pthread_atfork(before_fork, in_parent, in_child);
  ARTESIAN_CHECK(installed == 0, installed);
  const std::lock_guard<std::mutex> lock(guarded().mutex);
  guarded().descriptors.push_back(descriptor);
}

void close_guarded(int descriptor) noexcept {
  const std::lock_guard<std::mutex> lock(guarded().mutex);
  std::erase(guarded().descriptors, descriptor);
  close(descriptor);
}

}  // namespace artesian
