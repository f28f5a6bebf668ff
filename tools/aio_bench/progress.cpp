#include "tools/aio_bench/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "base/units.h"
#include "tools/shell/print.h"
#include "tools/shell/terminal_line.h"

namespace artesian::bench {

std::string fitted(const ProgressLine& line, std::size_t columns) {
  const double planned = line.gone_s + line.left_s;
  const double share = planned > 0 ? std::clamp(line.gone_s / planned, 0.0, 1.0) : 0;
  const std::size_t width = columns >= 110 ? 24 : columns >= 70 ? 12 : 0;
  const auto full = static_cast<std::size_t>(share * static_cast<double>(width));
  std::string text;
  if (width > 0) text = "[" + std::string(full, '#') + std::string(width - full, '.') + "] ";
  text += tools::print("%3.0f%% %3.0f s left", share * 100, line.left_s);
  for (const std::string* part : {&line.stage, &line.rate, &line.detail}) {
    if (!part->empty()) text += "  " + *part;
  }
  // A line that fills the last column would wrap.
  return text.substr(0, std::max<std::size_t>(columns, 2) - 1);
}

ProgressLine pass_line(const std::string& verb, std::uint64_t size, const Pass& now) {
  return {.stage = verb + " " + format_size(size),
          .gone_s = now.seconds,
          .left_s = now.seconds_left(),
          .rate = tools::print("%.2f GB/s", now.gb_per_s()),
          .detail = {},
          .worth_s = now.seconds < 1 ? 1e9 : 3};
}

Progress::Progress() : terminal_(tools::terminal_columns(STDERR_FILENO) != 0) {
  if (!terminal_) return;
  set_log_sink([this](LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex_);
    wipe();
    std::fprintf(stderr, "%s\n", log_text(level, line).c_str());
  });
}

Progress::~Progress() {
  if (!terminal_) return;
  set_log_sink({});
  clear();
}

void Progress::show(const ProgressLine& line) {
  const std::lock_guard lock(mutex_);
  if (terminal_) {
    std::fprintf(stderr, "\r%s\x1b[K",
                 fitted(line, tools::terminal_columns(STDERR_FILENO)).c_str());
    shown_ = true;
    return;
  }
  if (line.stage == stage_ || line.left_s < line.worth_s) return;
  stage_ = line.stage;
  log(LogLevel::Info, tools::print("%s, about %.0f s left", line.stage.c_str(), line.left_s));
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  wipe();
}

void Progress::wipe() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

}  // namespace artesian::bench
