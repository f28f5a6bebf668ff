// The figures of a training run as people and programs read them: JSONL, progress line, end table.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "tools/shell/terminal_line.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {

/// --log-jsonl: one object per optimizer step and nothing else. Truncated at start, or appended to
/// where a run goes on (log_cut.h). A line that cannot be written must not cost the training: it is
/// missing as a whole, the first such one is a warning, later ones are tried again, and close() is
/// the error.
class StepLog {
 public:
  enum class Begin : std::uint8_t { Anew, GoOn };
  /// Figures of a line that are not in the step's result.
  struct Beside {
    double tflops = 0.0;
    std::optional<std::string> digest;
    std::optional<double> held_out_loss;
  };
  /// Errors: Io. An empty path logs nowhere, "-" to stdout.
  static Result<StepLog> open(const std::string& path, Begin begin = Begin::Anew);
  /// Appends one line.
  void write(const zero3::StepResult& result, const Beside& beside);
  /// The last line given, with its end; empty: none yet.
  const std::string& last_line() const noexcept { return last_line_; }
  /// Makes all lines so far durable. Errors: Io, NoSpace.
  Result<void> sync() noexcept;
  /// After the last. Errors: Io, NoSpace: lines are missing.
  Result<void> close();

 private:
  bool append(const std::string& line);

  std::string path_;
  Descriptor file_;
  bool cuts_ = true;  // cut off a partial line; not on stdout, where others write
  std::string last_line_;
  std::uint64_t size_ = 0;   // bytes of whole lines in it
  std::uint64_t lines_ = 0;  // given
  std::uint64_t missing_ = 0;
  std::optional<Error> first_;  // why the first one is missing
};

/// The progress line on stderr: redrawn in place on a terminal, with what of it fits, else a line
/// every few seconds.
class Progress {
 public:
  struct Options {
    bool quiet = false;
    std::uint64_t steps_total = 0;
    std::uint64_t steps_per_print = 0;  // 0: never a line of its own
    bool breakdown = false;             // wall_clock_breakdown
    zero3::Budgets budgets;
  };
  explicit Progress(const Options& options);
  /// "initialising 42%", while the home tiers are filled.
  void initializing(std::uint64_t done, std::uint64_t total);
  /// "saving step 20: 42%", on a terminal, while state is copied into a checkpoint.
  void saving(std::uint64_t step, std::uint64_t done, std::uint64_t total);
  void step(const zero3::StepResult& result, const std::optional<double>& held_out_loss);
  /// Ends a line that is being redrawn.
  void finish() { line_.finish(); }

 private:
  std::vector<LineField> describe(const zero3::StepResult& result,
                                  const std::optional<double>& held_out_loss) const;

  Options options_;
  TerminalLine line_;
  double step_seconds_ = 0.0;  // smoothed, for the time left
  std::uint64_t printed_ns_ = 0;
  int percent_ = -1;
};

/// Gathers a run and prints its end table.
class Summary {
 public:
  enum class DeviceMemory : std::uint8_t { OfTheProcess, OfAGpu };
  /// `own_written`: what this rank wrote to NVMe; the result has what all did.
  void add(const zero3::StepResult& result, const std::optional<double>& held_out_loss,
           std::uint64_t own_written);
  std::uint64_t steps() const noexcept { return steps_; }
  /// True if there were steps and all were skipped: none changed a weight.
  bool all_skipped() const noexcept { return steps_ != 0 && steps_ == skipped_; }
  const zero3::StepResult& last() const noexcept { return last_; }
  /// Prints the summary, with a line for each folder of swap files if there are several, and one
  /// rank. `paths`: this rank's. `io`: how their bytes were moved; empty: no line.
  void print(std::FILE* out, const zero3::Budgets& budgets, DeviceMemory device,
             const std::vector<zero3::SwapPathUse>& paths, const std::string& io,
             const zero3::KeptInputs& inputs, std::uint32_t ranks) const;

 private:
  void print_wear(std::FILE* out, const std::vector<zero3::SwapPathUse>& paths,
                  std::uint32_t ranks) const;
  void print_process(std::FILE* out) const;

  std::uint64_t steps_ = 0;
  std::uint64_t skipped_ = 0;
  std::uint64_t taken_back_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t bytes_written_ = 0;  // by all ranks
  std::uint64_t own_written_ = 0;
  double seconds_ = 0.0;
  std::optional<double> held_out_first_, held_out_last_;
  zero3::StepResult first_;
  zero3::StepResult last_;
};

}  // namespace artesian::tools
