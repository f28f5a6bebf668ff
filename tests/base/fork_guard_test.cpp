// Proves that a lock ends with the process that took it, whatever children it has forked. In
// children its descriptor leads to /dev/null, and files without a lock stay as they were.
#include "base/fork_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/file_system.h"
#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

std::unique_ptr<File> open_or_make(const std::string& path, Create create) {
  return system_files().open(path, {.create = create, .direct = Direct::Never}).value();
}

bool is_null_device(int descriptor) {
  struct stat there {};
  struct stat null {};
  return fstat(descriptor, &there) == 0 && stat("/dev/null", &null) == 0 &&
         there.st_rdev == null.st_rdev;
}

TEST(ForkGuard, AChildThatLivesOnDoesNotHoldTheLock) {
  const test_support::TemporaryDirectory directory;
  auto first = open_or_make(directory.file("lock"), Create::Exclusive);
  ASSERT_TRUE(first->lock().has_value());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    (void)!write(ends[1], "r", 1);
    for (;;) pause();
  }
  char ready = 0;
  ASSERT_EQ(read(ends[0], &ready, 1), 1);  // the child has passed its fork
  auto second = open_or_make(directory.file("lock"), Create::Never);
  EXPECT_FALSE(second->lock().has_value());  // the fork has not released it
  first.reset();
  EXPECT_TRUE(second->lock().has_value());
  close(ends[0]);
  close(ends[1]);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(ForkGuard, TheChildsDestructorsCloseNothingElse) {
  const test_support::TemporaryDirectory directory;
  auto locked = open_or_make(directory.file("lock"), Create::Exclusive);
  auto plain = open_or_make(directory.file("plain"), Create::Exclusive);
  ASSERT_TRUE(locked->lock().has_value());
  ASSERT_TRUE(locked->lock().has_value());  // locking again changes nothing
  const int status = test_support::run_in_child([&] {
    if (!is_null_device(locked->descriptor()) || is_null_device(plain->descriptor())) return 2;
    if ((fcntl(locked->descriptor(), F_GETFD) & FD_CLOEXEC) == 0) return 3;
    const auto before = test_support::Baseline::now();
    const int number = locked->descriptor();
    locked.reset();
    if (fcntl(number, F_GETFD) >= 0) return 4;
    return test_support::Baseline::now().descriptors + 1 == before.descriptors ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(plain->write_at("x", 1, 0).has_value());
}

TEST(ForkGuard, AClosedFileIsForgotten) {
  const test_support::TemporaryDirectory directory;
  auto locked = open_or_make(directory.file("lock"), Create::Exclusive);
  ASSERT_TRUE(locked->lock().has_value());
  const int number = locked->descriptor();
  locked.reset();
  auto next = open_or_make(directory.file("next"), Create::Exclusive);
  ASSERT_EQ(next->descriptor(), number);  // the number is used again
  EXPECT_EQ(test_support::run_in_child([&] { return is_null_device(number) ? 1 : 0; }), 0);
}

}  // namespace
}  // namespace artesian
