#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace artesian {
namespace {

struct LogState {
  std::mutex mutex;
  LogSink sink;
  LogLevel level = LogLevel::Info;
  std::string program = "artesian";
  std::set<std::string, std::less<>> seen;
};

LogState& state() {
  // Never destroyed, as a thread may outlive main (aio/engine_base.h, Note [Abandoned transfers]).
  static auto* const log_state = new LogState;
  return *log_state;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::Info: return "note";
    case LogLevel::Warning: return "warning";
    case LogLevel::Error: return "error";
  }
  return "error";
}

}  // namespace

std::string log_text(LogLevel level, std::string_view line) {
  return state().program + ": " + level_name(level) + ": " + std::string(line);
}

void set_log_program(std::string name) {
  const std::lock_guard lock(state().mutex);
  state().program = std::move(name);
}

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(state().mutex);
  // The former sink is destroyed at the end of the call, after the lock is released.
  state().sink.swap(sink);
}

void set_log_level(LogLevel level) noexcept {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

void log(LogLevel level, std::string_view line) {
  const std::lock_guard lock(state().mutex);
  if (level < state().level) return;
  if (state().sink) {
    state().sink(level, line);
    return;
  }
  std::fputs((log_text(level, line) + "\n").c_str(), stderr);
}

void log_once(LogLevel level, std::string_view line) {
  {
    const std::lock_guard lock(state().mutex);
    if (level < state().level || !state().seen.emplace(line).second) return;
  }
  log(level, line);
}

}  // namespace artesian
