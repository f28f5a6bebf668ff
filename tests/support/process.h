// Child processes for tests that need a second process, a lower limit or another user.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace artesian::test_support {

/// The seed of a random test: the environment's ARTESIAN_TEST_SEED, or `fallback`; printed.
inline std::uint64_t test_seed(std::uint64_t fallback) {
  const char* given = std::getenv("ARTESIAN_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : fallback;
  std::printf("seed %llu (repeat with ARTESIAN_TEST_SEED)\n",
              static_cast<unsigned long long>(seed));
  return seed;
}

/// True if the long part of the suite is to run (ARTESIAN_SOAK=1).
inline bool soaking() {
  const char* given = std::getenv("ARTESIAN_SOAK");
  return given != nullptr && given[0] == '1';
}

/// Runs `body` in a forked child; returns its exit status, or minus the signal that ended it.
/// `body` returns the status and must not use gtest assertions.
template <typename Body>
int run_in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace artesian::test_support
