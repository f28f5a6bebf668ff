// fio as a measuring program: started, waited for and read, so that aio_bench can compare.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/aio_bench/ground.h"

namespace artesian::bench {

struct FioJob {
  int descriptor = -1;     // descriptor of the file, which needs no name
  std::uint64_t size = 0;  // bytes of it
  Access access = Access::Read;
  std::uint64_t block_size = 0;
  std::uint32_t queue_depth = 0;
  const char* engine = "io_uring";
  bool direct = true;
  bool huge_pages = false;    // --mem=mmaphuge; else plain memory
  bool fixed_buffers = true;  // registered with io_uring, which the memlock limit may refuse
  std::uint64_t seconds = 0;  // 0: one pass over the file
};

struct FioResult {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  double latency_us_p50 = 0;
  double latency_us_p99 = 0;
};

/// "fio-3.33". Errors: Unsupported (not installed, does not run).
Result<std::string> fio_version(const std::atomic<int>& stop);

std::vector<std::string> fio_arguments(const FioJob& job);

/// Returns what fio's JSON says. Errors: Invalid.
Result<FioResult> parse_fio(std::string_view output, Access access);

/// Errors: Cancelled (stopped, fio too), Unsupported, Io (fio failed, with its last line), Invalid.
Result<FioResult> run_fio(const FioJob& job, const std::atomic<int>& stop);

}  // namespace artesian::bench
