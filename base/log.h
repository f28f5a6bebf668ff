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
/// When it returns, no thread runs the former sink. If a sink takes another lock (such as Python's
/// GIL), a thread that holds that lock must neither replace the sink nor log.
void set_log_sink(LogSink sink);

/// Formats a line as it is written to stderr without a sink, for sinks that write to stderr, too.
std::string log_text(LogLevel level, std::string_view line);

/// Sets the program name that lines begin with; "artesian" by default.
void set_log_program(std::string name);

/// Lines below this level are dropped. Default: Info.
void set_log_level(LogLevel level) noexcept;

/// Writes one line. Thread-safe.
void log(LogLevel level, std::string_view line);

/// Writes the line only the first time that it is given in this process.
void log_once(LogLevel level, std::string_view line);

}  // namespace artesian
