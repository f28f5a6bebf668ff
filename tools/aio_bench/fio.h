// Runs fio as a measuring program and reads its results, for comparisons with aio_bench.
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
  int descriptor = -1;     // descriptor of the file, which may be unnamed
  std::uint64_t size = 0;  // bytes of the file
  Access access = Access::Read;
  std::uint64_t block_size = 0;
  std::uint32_t queue_depth = 0;
  const char* engine = "io_uring";
  bool direct = true;
  bool huge_pages = false;  // --mem=mmaphuge; else plain memory
  // buffers registered with io_uring, which the memlock limit may refuse
  bool fixed_buffers = true;
  std::uint64_t seconds = 0;  // 0: one pass over the file
};

struct FioResult {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  double latency_us_p50 = 0;
  double latency_us_p99 = 0;
};

/// Returns the version, such as "fio-3.33". Errors: Unsupported (not installed, or does not run).
Result<std::string> fio_version(const std::atomic<int>& stop);

std::vector<std::string> fio_arguments(const FioJob& job);

/// Parses fio's JSON output. Errors: Invalid.
Result<FioResult> parse_fio(std::string_view output, Access access);

/// Runs a job. Errors: Cancelled (fio is stopped, too), Unsupported, Io (fio failed, with its last
/// line), Invalid.
Result<FioResult> run_fio(const FioJob& job, const std::atomic<int>& stop);

}  // namespace artesian::bench
