#include "tools/shell/terminal_line.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace artesian::tools {
namespace {

constexpr const char* clear = "\r\033[K";
constexpr std::size_t columns_unknown = 80;

std::size_t width_of(const std::vector<LineField>& fields) {
  std::size_t width = 0;
  for (const LineField& field : fields) width += field.text.size() + (width == 0 ? 0 : 2);
  return width;
}

}  // namespace

std::string fit_line(const std::vector<LineField>& fields, std::size_t columns) {
  std::vector<LineField> kept = fields;
  while (columns != 0 && kept.size() > 1 && width_of(kept) > columns) {
    kept.erase(std::max_element(
        kept.begin(), kept.end(),
        [](const LineField& left, const LineField& right) { return left.rank < right.rank; }));
  }
  std::string line;
  for (const LineField& field : kept) line += (line.empty() ? "" : "  ") + field.text;
  if (columns != 0 && line.size() > columns) line.resize(columns);
  return line;
}

std::size_t terminal_columns(int descriptor) {
  if (::isatty(descriptor) != 1) return 0;
  struct winsize size {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return columns_unknown;
  return size.ws_col;
}

TerminalLine::TerminalLine(int descriptor)
    : descriptor_(descriptor), terminal_(terminal_columns(descriptor) != 0) {
  if (!terminal_) return;
  set_log_sink(
      [this](LogLevel level, std::string_view line) { write_above(log_text(level, line) + "\n"); });
}

TerminalLine::~TerminalLine() {
  if (terminal_) set_log_sink({});
}

void TerminalLine::write(const std::string& text) const {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(descriptor_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // not a terminal
    done += static_cast<std::size_t>(count);
  }
}

void TerminalLine::write_above(const std::string& text) {
  const std::lock_guard lock(mutex_);
  write(drawn_.empty() ? text : clear + text + drawn_);
}

void TerminalLine::draw(const std::vector<LineField>& fields) {
  if (!terminal_) return write(fit_line(fields, 0) + "\n");
  const std::size_t columns = terminal_columns(descriptor_);  // the window may have been resized
  const std::lock_guard lock(mutex_);
  // The last column is left empty, as some terminals wrap once it is written.
  drawn_ = fit_line(fields, columns > 1 ? columns - 1 : 1);
  write(clear + drawn_);
}

void TerminalLine::finish() {
  const std::lock_guard lock(mutex_);
  if (!drawn_.empty()) write("\n");
  drawn_.clear();
}

PercentLine::PercentLine(std::string what) : what_(std::move(what)), line_(STDERR_FILENO) {}

void PercentLine::show(std::uint64_t done, std::uint64_t all) {
  const int percent = static_cast<int>(all == 0 ? 100 : done * 100 / all);
  if (!line_.on_terminal() || percent == shown_) return;
  shown_ = percent;
  line_.draw({{fmt::format("{}: {}%", what_, percent)}});
}

}  // namespace artesian::tools
