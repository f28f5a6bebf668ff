#include "tools/process_setup.h"

#include <malloc.h>
#include <signal.h>
#include <stdlib.h>

#include <csignal>

namespace artesian::tools {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

void on_stop(int number) {
  stop_signal = number;
  ::signal(SIGINT, SIG_DFL);  // a second one, of either kind, ends the process at once
  ::signal(SIGTERM, SIG_DFL);
}

// LibTorch's OpenMP reads its settings when it is loaded, before main: a .preinit_array entry of
// the program is the only code of ours that runs earlier. Waiting threads must sleep: a spinning
// one slows the progress threads and the compute team alike.
void set_passive_waiting(int, char**, char**) {
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
}

__attribute__((section(".preinit_array"),
               used)) void (*const preinit)(int, char**, char**) = set_passive_waiting;

}  // namespace

void set_up_process() {
  // One arena and early mmap: freed activations go back to the system, so that peak memory is what
  // is in use and not what was.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  struct sigaction action {};
  action.sa_handler = on_stop;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not the end
}

int stop_requested() {
  return stop_signal;
}

int stop_exit_code() {
  return 128 + stop_signal;
}

}  // namespace artesian::tools
