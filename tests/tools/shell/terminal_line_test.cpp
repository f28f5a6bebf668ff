// Proves that a line that is drawn in place fits the terminal, by dropping whole fields, the least
// important ones first, and that log lines meanwhile start on a line of their own: on a real
// (pseudo) terminal, and on a pipe.
#include "tools/shell/terminal_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>

#include "base/log.h"

namespace artesian::tools {
namespace {

const std::vector<LineField> fields{{"step 3/9", 0}, {"fast", 2}, {"loss 1.5", 1}};

TEST(FitLine, DropsWholeFieldsTheLeastImportantFirst) {
  EXPECT_EQ(fit_line(fields, 0), "step 3/9  fast  loss 1.5");
  EXPECT_EQ(fit_line(fields, 24), "step 3/9  fast  loss 1.5");
  EXPECT_EQ(fit_line(fields, 23), "step 3/9  loss 1.5");
  EXPECT_EQ(fit_line(fields, 18), "step 3/9  loss 1.5");
  EXPECT_EQ(fit_line(fields, 17), "step 3/9");
  EXPECT_EQ(fit_line(fields, 8), "step 3/9");
  EXPECT_EQ(fit_line(fields, 4), "step");
  EXPECT_EQ(fit_line({}, 10), "");
}

/// Returns the bytes that have reached the other end so far.
std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> bytes;
  struct pollfd readable {
    .fd = descriptor, .events = POLLIN, .revents = 0
  };
  while (::poll(&readable, 1, 0) == 1 && (readable.revents & POLLIN) != 0) {
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
  return text;
}

class Terminal {
 public:
  Terminal() : ours_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(::grantpt(ours_), 0);
    EXPECT_EQ(::unlockpt(ours_), 0);
    std::array<char, 100> name{};
    EXPECT_EQ(::ptsname_r(ours_, name.data(), name.size()), 0);
    theirs_ = ::open(name.data(), O_RDWR | O_NOCTTY);
    EXPECT_GE(theirs_, 0);
  }
  ~Terminal() {
    ::close(theirs_);
    ::close(ours_);
  }
  void resize(unsigned short columns) {
    struct winsize size {};
    size.ws_col = columns;
    EXPECT_EQ(::ioctl(ours_, TIOCSWINSZ, &size), 0);
  }
  int descriptor() const { return theirs_; }
  std::string shown() const { return read_all(ours_); }

 private:
  int ours_;
  int theirs_ = -1;
};

TEST(TerminalLine, FitsTheTerminalAsItIsNow) {
  Terminal terminal;
  EXPECT_EQ(terminal_columns(terminal.descriptor()), 80u);  // the terminal does not tell
  TerminalLine line(terminal.descriptor());
  ASSERT_TRUE(line.on_terminal());
  line.draw(fields);
  EXPECT_EQ(terminal.shown(), "\r\033[Kstep 3/9  fast  loss 1.5");
  terminal.resize(24);  // the last column stays empty
  line.draw(fields);
  EXPECT_EQ(terminal.shown(), "\r\033[Kstep 3/9  loss 1.5");
  line.finish();
  line.finish();
  EXPECT_EQ(terminal.shown(), "\r\n");
}

TEST(TerminalLine, WhatIsLoggedTakesItsPlaceAndTheLineComesBelow) {
  const Terminal terminal;
  {
    TerminalLine line(terminal.descriptor());
    log(LogLevel::Info, "before");
    EXPECT_EQ(terminal.shown(), "artesian: note: before\r\n");
    line.draw({{"step 1"}});
    EXPECT_EQ(terminal.shown(), "\r\033[Kstep 1");
    log(LogLevel::Warning, "meanwhile");
    EXPECT_EQ(terminal.shown(), "\r\033[Kartesian: warning: meanwhile\r\nstep 1");
    line.finish();
    EXPECT_EQ(terminal.shown(), "\r\n");
    log(LogLevel::Info, "after");
    EXPECT_EQ(terminal.shown(), "artesian: note: after\r\n");
  }
  testing::internal::CaptureStderr();
  log(LogLevel::Info, "later");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "artesian: note: later\n");
  EXPECT_EQ(terminal.shown(), "");
}

TEST(TerminalLine, WhatIsNoTerminalGetsWholeLines) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  {
    TerminalLine line(ends[1]);
    EXPECT_FALSE(line.on_terminal());
    line.draw(fields);
    line.draw({{"step 4"}});
    line.finish();
    EXPECT_EQ(read_all(ends[0]), "step 3/9  fast  loss 1.5\nstep 4\n");
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace artesian::tools
