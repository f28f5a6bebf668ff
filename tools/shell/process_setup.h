// What a program of ours sets before anything else: allocator, pages, OpenMP, signals.
#pragma once

#include <string>

namespace artesian::tools {

/// Call first in main. SIGINT (Ctrl-C) and SIGTERM then only set a flag; a second one ends the
/// process. SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU set it, too, however often they come; those that
/// are ignored when the program starts stay so.
void set_up_process();

/// The signal that asked to stop, or 0.
int stop_requested();

/// Seconds since it came; 0 if none has.
double seconds_since_stop();

/// Its name, as "SIGTERM".
std::string stop_signal_name();

/// 128 and the signal: 143 for SIGTERM.
int stop_exit_code();

/// While it lives there is nothing to finish or to tidy up, and the first signal ends the process,
/// with that exit code; so does one that came before. One at a time.
class StopAtOnce {
 public:
  StopAtOnce();
  ~StopAtOnce();
  StopAtOnce(const StopAtOnce&) = delete;
  StopAtOnce& operator=(const StopAtOnce&) = delete;
};

}  // namespace artesian::tools
