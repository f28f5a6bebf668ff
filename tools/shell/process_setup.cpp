#include "tools/shell/process_setup.h"

#include <alloca.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "base/process_cpus.h"
#include "pinned/huge_pages.h"

namespace artesian::tools {
namespace {

volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t at_once = 0;
struct timespec stop_time {};  // written once, before stop_signal

/// Signals sent by terminals, batch systems and CPU time limits. They are often sent twice, or
/// followed by SIGTERM, so a second one does not end the process.
constexpr std::array soft_signals{SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

void on_stop(int number) {
  if (at_once != 0) ::_exit(128 + number);
  if (number == SIGINT || number == SIGTERM) {
    ::signal(SIGINT, SIG_DFL);  // a second SIGINT or SIGTERM ends the process at once
    ::signal(SIGTERM, SIG_DFL);
  }
  if (stop_signal != 0) return;
  ::clock_gettime(CLOCK_MONOTONIC, &stop_time);
  stop_signal = number;
}

/// Restarts the program with OMP_WAIT_POLICY in its environment, unless the user has set it.
/// Waiting threads must sleep, as spinning ones slow down progress threads and compute threads.
/// LibTorch's OpenMP reads the variable when it is loaded. Only a .preinit_array entry of the
/// program runs before that, and variables that it sets are lost, as libc initialises its
/// environment later. No memory is allocated, as a sanitizer's allocator may not be ready.
void set_passive_waiting(int, char** arguments, char** environment) {
  constexpr char name[] = "OMP_WAIT_POLICY=";
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (std::strncmp(environment[count], name, sizeof name - 1) == 0) return;
  }
  char policy[] = "OMP_WAIT_POLICY=passive";
  auto** const longer = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  std::copy_n(environment, count, longer);
  longer[count] = policy;
  longer[count + 1] = nullptr;
  char program[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return;  // slower, but correct
  program[length] = '\0';
  ::execve(program, arguments, longer);
}

/// Runs before libraries are initialised, of which OpenMP is one.
void prepare_for_openmp(int count, char** arguments, char** environment) {
  note_process_cpus();
  set_passive_waiting(count, arguments, environment);
}

__attribute__((section(".preinit_array"), used)) void (*const preinit)(int, char**,
                                                                       char**) = prepare_for_openmp;

}  // namespace

void set_up_process() {
  // Configures malloc with one arena and a low mmap threshold, so that freed memory returns to the
  // system, and peak memory is what is in use. Large tensors, which are allocated and freed in each
  // step, do not use malloc (zero3/torch/activation_memory.cpp), so after the first steps malloc no
  // longer calls the kernel. NOLINTBEGIN(concurrency-mt-unsafe): there is one thread yet
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  // NOLINTEND(concurrency-mt-unsafe)
  pinned::allow_huge_pages();
  struct sigaction action {};
  action.sa_handler = on_stop;
  sigemptyset(&action.sa_mask);  // blocks other signals, so that the first one is reported
  for (const int other : {SIGINT, SIGTERM}) sigaddset(&action.sa_mask, other);
  for (const int other : soft_signals) sigaddset(&action.sa_mask, other);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  for (const int soft : soft_signals) {
    struct sigaction before {};
    ::sigaction(soft, nullptr, &before);
    // Otherwise nohup's setting is kept.
    if (before.sa_handler != SIG_IGN) ::sigaction(soft, &action, nullptr);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit is an error of the write, not a signal
}

int stop_requested() {
  return stop_signal;
}

double seconds_since_stop() {
  if (stop_signal == 0) return 0.0;
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - stop_time.tv_sec) +
         static_cast<double>(now.tv_nsec - stop_time.tv_nsec) * 1e-9;
}

std::string stop_signal_name() {
  const char* const name = ::sigabbrev_np(stop_signal);
  return std::string("SIG") + (name == nullptr ? "?" : name);
}

int stop_exit_code() {
  return 128 + stop_signal;
}

StopAtOnce::StopAtOnce() {
  at_once = 1;
  if (stop_signal != 0) ::_exit(stop_exit_code());
}

StopAtOnce::~StopAtOnce() {
  at_once = 0;
}

}  // namespace artesian::tools
