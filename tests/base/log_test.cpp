// Proves that a line begins with the program's name, and that a line to be logged once is logged
// once: not again, and later if the level dropped it at first.
#include "base/log.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace artesian {
namespace {

TEST(Log, LinesBeginWithTheProgramsName) {
  EXPECT_EQ(log_text(LogLevel::Warning, "a line"), "artesian: warning: a line");
  set_log_program("aio_bench");
  EXPECT_EQ(log_text(LogLevel::Info, "a line"), "aio_bench: note: a line");
  set_log_program("artesian");
}

TEST(Log, WhatTheLevelDroppedWasNotSaid) {
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  set_log_level(LogLevel::Error);
  log_once(LogLevel::Warning, "once");
  EXPECT_TRUE(said.empty());
  set_log_level(LogLevel::Info);
  log_once(LogLevel::Warning, "once");
  log_once(LogLevel::Warning, "once");
  set_log_sink({});
  EXPECT_EQ(said, std::vector<std::string>{"once"});
}

TEST(Log, ASinkThatIsReplacedMayLogAsItEnds) {
  std::vector<std::string> said;
  std::shared_ptr<int> last(new int(0), [](const int* number) {
    delete number;
    log(LogLevel::Info, "the end");
  });
  set_log_sink([owned = std::move(last)](LogLevel, std::string_view) {});
  set_log_sink([&](LogLevel, std::string_view line) { said.emplace_back(line); });
  set_log_sink({});
  EXPECT_EQ(said, std::vector<std::string>{"the end"});
}

}  // namespace
}  // namespace artesian
