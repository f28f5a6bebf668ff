#include "base/process_cpus.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace artesian {
namespace {

// The kernel's own calls: libc's may be a sanitizer's, which is not ready yet.
unsigned long cpus[1024 / sizeof(unsigned long)];  // 8192 processors
long size = 0;                                     // in bytes; 0: not noted

}  // namespace

void note_process_cpus() noexcept {
  const long got = syscall(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
  size = got > 0 ? got : 0;
}

void use_process_cpus() noexcept {
  if (size == 0) return;
  // Fails if a container was given other processors since: then the thread stays where it is.
  (void)syscall(SYS_sched_setaffinity, 0, static_cast<unsigned long>(size), cpus);
}

}  // namespace artesian
