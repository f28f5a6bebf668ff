// A line on a terminal that is redrawn in place. It is never wider than the terminal, since a line
// that wraps cannot be overwritten, and it makes room for log lines.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace artesian::tools {

/// A part of the line. If not all parts fit, those of the highest rank are left out first.
struct LineField {
  std::string text;
  int rank = 0;
};

/// The fields with two spaces between them, in at most `columns` columns (0: no limit). A last
/// remaining field that is wider is cut.
std::string fit_line(const std::vector<LineField>& fields, std::size_t columns);

/// Columns of this descriptor's terminal; 80 if unknown; 0 if it is not a terminal.
std::size_t terminal_columns(int descriptor);

/// During its life, log lines (base/log.h) replace the line on a terminal, which is then redrawn
/// below. One at a time. Thread: one; log lines may come from any.
class TerminalLine {
 public:
  explicit TerminalLine(int descriptor);
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  bool on_terminal() const noexcept { return terminal_; }
  /// Replaces the line; without a terminal, prints a line with all fields.
  void draw(const std::vector<LineField>& fields);
  /// Keeps the line as it is: later output is written below it.
  void finish();

 private:
  void write(const std::string& text) const;
  void write_above(const std::string& text);

  const int descriptor_;
  const bool terminal_;
  std::mutex mutex_;
  std::string drawn_;  // empty: no line is being redrawn
};

/// "WHAT: 42%" on a terminal's stderr, redrawn at each percent; without a terminal nothing.
class PercentLine {
 public:
  explicit PercentLine(std::string what);
  ~PercentLine() { line_.finish(); }
  void show(std::uint64_t done, std::uint64_t all);

 private:
  const std::string what_;
  int shown_ = -1;
  TerminalLine line_;
};

}  // namespace artesian::tools
