// Settings that our programs make first: allocator, pages, OpenMP, signals.
#pragma once

#include <string>

namespace artesian::tools {

/// Call first in main. SIGINT (Ctrl-C) and SIGTERM then only set a flag; a second one ends the
/// process. SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU also set the flag, but never end the process;
/// signals ignored at the program's start remain ignored.
void set_up_process();

/// The signal that requested a stop, or 0.
int stop_requested();

/// Seconds since that signal; 0 if there was none.
double seconds_since_stop();

/// The signal's name, such as "SIGTERM".
std::string stop_signal_name();

/// 128 plus the signal: 143 for SIGTERM.
int stop_exit_code();

/// During its life the first signal, or one received before, ends the process at once with that
/// exit code, as there is nothing to finish or to clean up. One at a time.
class StopAtOnce {
 public:
  StopAtOnce();
  ~StopAtOnce();
  StopAtOnce(const StopAtOnce&) = delete;
  StopAtOnce& operator=(const StopAtOnce&) = delete;
};

}  // namespace artesian::tools
