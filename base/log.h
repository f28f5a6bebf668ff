// A small rank-aware logger. Programs write lines to stderr; an embedding trainer installs a sink.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace artesian {

enum class LogLevel : std::uint8_t { Info, Warning, Error };

using LogSink = std::function<void(LogLevel, std::string_view line)>;

/// Replaces where lines go; an empty sink restores stderr ("artesian: note|warning|error: ...").
/// When it returns, no thread is in the former sink. A sink that needs another lock (an
/// interpreter's) must not be replaced, nor anything logged, by a thread that holds that.
void set_log_sink(LogSink sink);

/// A line as it goes to stderr without a sink, for one that writes there, too.
std::string log_text(LogLevel level, std::string_view line);

/// The name that lines begin with: the program's; "artesian" until it is set.
void set_log_program(std::string name);

/// Lines below this level are dropped. Default: Info.
void set_log_level(LogLevel level) noexcept;

/// Writes one line. Thread-safe.
void log(LogLevel level, std::string_view line);

/// Writes the line the first time it is given in this process, and never again.
void log_once(LogLevel level, std::string_view line);

}  // namespace artesian
