#include "tools/aio_bench_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace artesian::bench {
namespace {

std::size_t columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::show(const std::string& stage, double gone_s, double planned_s,
                    const std::string& detail) {
  const double share = std::clamp(gone_s / planned_s, 0.0, 1.0);
  const double left = (1 - share) * planned_s;
  char line[240];
  if (!terminal_) {
    if (stage == stage_) return;
    stage_ = stage;
    std::fprintf(stderr, "aio_bench: %s, about %.0f s left\n", stage.c_str(), left);
    return;
  }
  constexpr std::size_t width = 24;
  const auto full = static_cast<std::size_t>(share * width);
  const std::string bar = std::string(full, '#') + std::string(width - full, '.');
  const int length = std::snprintf(line, sizeof line, "[%s] %3.0f%% %3.0f s left  %s  %s",
                                   bar.c_str(), share * 100, left, stage.c_str(), detail.c_str());
  const std::size_t shown =
      std::min({static_cast<std::size_t>(std::max(length, 0)), sizeof line - 1, columns() - 1});
  std::fprintf(stderr, "\r%.*s\x1b[K", static_cast<int>(shown), line);
  shown_ = true;
}

void Progress::clear() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

}  // namespace artesian::bench
