// The figures of a training run, for people and programs: JSONL, progress line, final table.
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

/// --log-jsonl: one object per optimizer step and nothing else. Truncated at the start, or appended
/// to if a run is resumed (log_cut.h). A line that cannot be written does not end the training: the
/// whole line is missing, the first such failure gives a warning, later lines are tried again, and
/// close() returns the error.
class StepLog {
 public:
  enum class Begin : std::uint8_t { Anew, GoOn };
  /// Figures in a line that are not in the step's result.
  struct Beside {
    double tflops = 0.0;
    std::optional<std::string> digest;
    std::optional<double> held_out_loss;
  };
  /// Opens the log. Errors: Io. An empty path: no log; "-": stdout.
  static Result<StepLog> open(const std::string& path, Begin begin = Begin::Anew);
  /// Appends one line.
  void write(const zero3::StepResult& result, const Beside& beside);
  /// The last line written, including its end; empty if there is none.
  const std::string& last_line() const noexcept { return last_line_; }
  /// Makes all lines so far durable. Errors: Io, NoSpace.
  Result<void> sync() noexcept;
  /// Call it after the last line. Errors: Io, NoSpace: lines are missing.
  Result<void> close();

 private:
  bool append(const std::string& line);

  std::string path_;
  Descriptor file_;
  // whether to cut off a partial line; not on stdout, which others write to as well
  bool cuts_ = true;
  std::string last_line_;
  std::uint64_t size_ = 0;   // bytes of complete lines
  std::uint64_t lines_ = 0;  // lines passed to write()
  std::uint64_t missing_ = 0;
  std::optional<Error> first_;  // why the first missing line is missing
};

/// The progress line on stderr: redrawn in place on a terminal, as far as its fields fit; otherwise
/// a line every few seconds.
class Progress {
 public:
  struct Options {
    bool quiet = false;
    std::uint64_t steps_total = 0;
    std::uint64_t steps_per_print = 0;  // 0: no separate lines
    bool breakdown = false;             // as wall_clock_breakdown
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
  double step_seconds_ = 0.0;  // smoothed, to estimate the time left
  std::uint64_t printed_ns_ = 0;
  int percent_ = -1;
};

/// Collects the figures of a run and prints its final table.
class Summary {
 public:
  enum class DeviceMemory : std::uint8_t { OfTheProcess, OfAGpu };
  /// `own_written`: bytes that this rank wrote to NVMe; the result has those of all ranks.
  void add(const zero3::StepResult& result, const std::optional<double>& held_out_loss,
           std::uint64_t own_written);
  std::uint64_t steps() const noexcept { return steps_; }
  /// True if there were steps and all were skipped, so that no weight has changed.
  bool all_skipped() const noexcept { return steps_ != 0 && steps_ == skipped_; }
  const zero3::StepResult& last() const noexcept { return last_; }
  /// Prints the summary, with a line for each folder of swap files if there are several, and one
  /// rank. `paths`: those of this rank. `io`: description of how their bytes were moved; empty: no
  /// line.
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
