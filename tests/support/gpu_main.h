// The main of test programs that need a GPU: without one they exit with 77, which CTest takes for
// skipped.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace artesian::test_support {

/// Runs all tests if the machine has a GPU. `prepare` is called before them; if it returns a
/// message, that is why they cannot run. Returns the program's exit code.
template <typename Prepare>
int run_gpu_tests(int count, char** arguments, Prepare prepare) {
  testing::InitGoogleTest(&count, arguments);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  const std::string failed = prepare();
  if (failed.empty()) return RUN_ALL_TESTS();
  std::printf("%s\n", failed.c_str());
  return 1;
}

inline int run_gpu_tests(int count, char** arguments) {
  return run_gpu_tests(count, arguments, [] { return std::string(); });
}

}  // namespace artesian::test_support
