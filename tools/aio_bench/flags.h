// How the commands of aio_bench read their flags: each fault is one line, all of a command line at
// once, WHAT: WHERE: got X, allowed Y; FIX.
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
  /// One line that has this form already.
  void add_line(const std::string& line);
  bool any() const noexcept { return !text_.empty(); }
  /// Prints at most five. Returns the exit code of a fault that is knowable before the start.
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
  /// A size that is a multiple of 4096; says that it was rounded up to one.
  std::uint64_t file_size(const std::string& flag, const std::string& absent);
  std::uint64_t block_size(const std::string& flag, const std::string& absent);
  std::uint32_t count(const std::string& flag, std::uint32_t absent, std::uint32_t max);
  /// A number above `low` and up to `high`; `absent` where the flag is.
  double number(const std::string& flag, double absent, double low, double high,
                const std::string& fix);
  /// One of the words; the first where the flag is absent or wrong.
  std::string word(const std::string& flag, const std::vector<std::string>& words);
  /// Null is auto.
  const aio::EngineKind* engine(const std::string& flag);
  /// As artesian.polling has it.
  aio::Polling polling(const std::string& flag);
  /// An existing directory that can be written.
  void check_directory(const std::string& flag, const std::string& path);
  std::string directory(const std::string& flag);
  std::vector<std::string> directories(const std::string& flag);
  /// A file that can be written, or empty where absent; "-" too if `dash`.
  enum class Dash : std::uint8_t { No, Yes };
  std::string output(const std::string& flag, Dash dash);
  Faults& faults() noexcept { return faults_; }

 private:
  const CLI::App& app_;
  Faults& faults_;
};

/// The file that writing to `path` reaches: behind every link, also one that leads to none yet.
std::string write_target(const std::string& path);

/// Checks what only the machine can refuse, once the flags are right.
void check_space(const std::string& directory, std::uint64_t size, Faults& faults);
void check_memory(std::uint64_t needed, const std::string& flags, Faults& faults);

/// Logs a note if the file has fewer blocks than the flags would keep in flight.
void note_few_blocks(const aio::EngineOptions& engine, std::uint64_t size);

void add_value(CLI::App& app, const char* flag, const char* type, const std::string& description);
void add_switch(CLI::App& app, const char* flag, const std::string& description);

/// "io_uring, threads or auto".
std::string engine_words();

/// The signal that asked to stop, or 0. A second one ends the process at once.
const std::atomic<int>& stop_signal() noexcept;
/// From now on signals are only noted, and a file-size limit or a closed stdout is an error of the
/// write.
void note_signals() noexcept;

/// Writes to the file, "-" being stdout. Says what went wrong, and returns whether nothing did.
bool write_output(const std::string& target, const std::string& text);

/// Prints why a measurement failed and returns the exit code for it.
int report_failure(const Error& error);

}  // namespace artesian::bench
