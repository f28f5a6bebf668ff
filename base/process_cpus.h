// The processors of the process, as it was started: of `taskset`, a container, or all.
//
// OpenMP with OMP_PROC_BIND binds the thread that loads it, so the main one, to one of them, and
// every thread that is started from there inherits that. Threads that wait for a disk are to go
// where there is room. What the process had before nobody can say later, so a program of ours notes
// it before any library is initialised (tools/shell/process_setup.cpp). Where nobody has, threads
// stay where they are started.
#pragma once

namespace artesian {

/// Notes the calling thread's processors as those of the process. Allocates nothing and needs
/// nothing to be initialised: for .preinit_array. Before other threads.
void note_process_cpus() noexcept;

/// Lets the calling thread run on all processors of the process, if they were noted.
void use_process_cpus() noexcept;

}  // namespace artesian
