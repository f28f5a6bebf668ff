// The line on a terminal that is drawn again and again in place: as wide as the terminal and never
// wider, since a line that wraps cannot be drawn over; and out of the way of what is logged.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace artesian::tools {

/// A part of the line. Where they do not all fit, those of the highest rank go first, whole.
struct LineField {
  std::string text;
  int rank = 0;
};

/// The fields with two spaces between them, at most `columns` wide, 0: as wide as they are. A last
/// field that alone is wider is cut.
std::string fit_line(const std::vector<LineField>& fields, std::size_t columns);

/// Columns of the terminal that this descriptor is; 80 where it does not say; 0: it is none.
std::size_t terminal_columns(int descriptor);

/// While it lives, on a terminal, what is logged (base/log.h) takes the place of the line, which
/// then is drawn again below. One at a time. Thread: one; log lines come from any.
class TerminalLine {
 public:
  explicit TerminalLine(int descriptor);
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  bool on_terminal() const noexcept { return terminal_; }
  /// Replaces the line; where this is no terminal, writes one of all fields.
  void draw(const std::vector<LineField>& fields);
  /// Leaves the line as it is: what comes next is written below.
  void finish();

 private:
  void write(const std::string& text) const;
  void write_above(const std::string& text);

  const int descriptor_;
  const bool terminal_;
  std::mutex mutex_;
  std::string drawn_;  // empty: no line is being drawn
};

/// "WHAT: 42%" on stderr where that is a terminal, drawn anew with each percent; elsewhere nothing.
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
