#include "base/process_cpus.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace artesian {
namespace {

// Raw system calls, as libc's may be intercepted by a sanitizer that is not ready yet.
unsigned long cpus[1024 / sizeof(unsigned long)];  // 8192 processors
long size = 0;                                     // in bytes; 0 if not recorded

}  // namespace

void note_process_cpus() noexcept {
  const long got = syscall(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
  size = got > 0 ? got : 0;
}

void use_process_cpus() noexcept {
  if (size == 0) return;
  // Fails if the container's processors were changed meanwhile: then the thread stays where it is.
  (void)syscall(SYS_sched_setaffinity, 0, static_cast<unsigned long>(size), cpus);
}

}  // namespace artesian
