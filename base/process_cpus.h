// The processors that the process was started with: those of `taskset`, of a container, or all.
//
// OpenMP with OMP_PROC_BIND binds the thread that loads it (the main thread) to one processor, and
// every thread started from there inherits that. Threads that wait for a disk should run where
// there is room. The original set cannot be found out later, so our programs note it before any
// library is initialised (tools/shell/process_setup.cpp). If it was not noted, threads stay where
// they are started.
#pragma once

namespace artesian {

/// Records the calling thread's processors as those of the process. Allocates nothing and needs no
/// initialised library, so that it can run from .preinit_array. Call it before other threads start.
void note_process_cpus() noexcept;

/// Lets the calling thread run on all processors of the process, if they were recorded.
void use_process_cpus() noexcept;

}  // namespace artesian
