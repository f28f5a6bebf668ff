// How the commands of aio_bench read their flags: all faults of a command line are reported at
// once, one line each, WHAT: WHERE: got X, allowed Y; FIX.
#pragma once

#include <CLI/CLI.hpp>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/aio_bench/ground.h"

namespace artesian::bench {

inline constexpr const char* program = "aio_bench";

class Faults {
 public:
  void add(const std::string& what, const std::string& where, const std::string& got,
           const std::string& allowed, const std::string& fix);
  /// Adds a line that already has this form.
  void add_line(const std::string& line);
  bool any() const noexcept { return !text_.empty(); }
  /// Prints at most five faults. Returns the exit code for faults that are known before the start.
  int print() const;

 private:
  std::string text_;
};

/// The flags of one command, as typed.
class FlagReader {
 public:
  FlagReader(const CLI::App& app, Faults& faults);

  bool given(const std::string& flag) const;
  std::string text(const std::string& flag, const std::string& absent = "") const;
  std::uint64_t size(const std::string& flag, const std::string& absent);
  /// Reads a size, rounded up to a multiple of 4096, with a note if it was rounded.
  std::uint64_t file_size(const std::string& flag, const std::string& absent);
  std::uint64_t block_size(const std::string& flag, const std::string& absent);
  std::uint32_t count(const std::string& flag, std::uint32_t absent, std::uint32_t max);
  /// Reads a number above `low` and at most `high`; `absent` if the flag is absent.
  double number(const std::string& flag, double absent, double low, double high,
                const std::string& fix);
  /// Reads one of the words; the first if the flag is absent or wrong.
  std::string word(const std::string& flag, const std::vector<std::string>& words);
  /// Returns the engine; null means "auto".
  const aio::EngineKind* engine(const std::string& flag);
  /// Reads a value with the words of artesian.polling.
  aio::Polling polling(const std::string& flag);
  /// Checks that this is an existing, writable directory.
  void check_directory(const std::string& flag, const std::string& path);
  std::string directory(const std::string& flag);
  std::vector<std::string> directories(const std::string& flag);
  /// Reads the path of a file that can be written; empty if absent; "-" is allowed if `dash`.
  enum class Dash : std::uint8_t { No, Yes };
  std::string output(const std::string& flag, Dash dash);
  Faults& faults() noexcept { return faults_; }

 private:
  const CLI::App& app_;
  Faults& faults_;
};

/// Returns the file that writing to `path` reaches, behind all links, even if the file does not
/// exist yet.
std::string write_target(const std::string& path);

/// Checks, once the flags are right, what depends on the machine: the free space.
void check_space(const std::string& directory, std::uint64_t size, Faults& faults);
void check_memory(std::uint64_t needed, const std::string& flags, Faults& faults);

/// Logs a note if the file has fewer blocks than the flags would keep in flight.
void note_few_blocks(const aio::EngineOptions& engine, std::uint64_t size);

void add_value(CLI::App& app, const char* flag, const char* type, const std::string& description);
void add_switch(CLI::App& app, const char* flag, const std::string& description);

/// "io_uring, threads or auto".
std::string engine_words();

/// The signal that requested a stop, or 0. A second signal ends the process at once.
const std::atomic<int>& stop_signal() noexcept;
/// From now on signals are only recorded, and exceeding a file-size limit or writing to a closed
/// stdout is an error of the write.
void note_signals() noexcept;

/// Writes to the file, or to stdout for "-". Reports errors, and returns whether there were none.
bool write_output(const std::string& target, const std::string& text);

/// Prints why a measurement failed and returns the exit code for that.
int report_failure(const Error& error);

}  // namespace artesian::bench
