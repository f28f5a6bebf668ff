// One benchmark of aio_bench: sequential transfers over a temporary file of its own.
//
// The file is unlinked as soon as it is open: whatever ends the program, nothing stays behind. It
// is filled before, and checked after, the timed part. Buffers are the pinned pool's.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "aio/engine.h"

namespace artesian::bench {

struct RunOptions {
  std::string directory;  // must exist
  aio::Operation operation = aio::Operation::Read;
  std::uint64_t size = std::uint64_t{1} << 30;  // bytes, multiple of 4096
  aio::EngineOptions engine = {.block_size = 1 << 20, .queue_depth = 32};
  enum class Kind : std::uint8_t { IoUring, Threads, Auto } kind = Kind::Auto;
  Direct direct = Direct::IfAligned;
  double seconds = 0;  // repeats until so many are over; 0 = one pass
};

struct RunResult {
  aio::EngineKind kind = aio::EngineKind::Threads;
  bool direct = false;
  std::uint64_t bytes = 0;  // moved in the timed part
  double seconds = 0;
  double cpu_seconds = 0;  // user and system, all threads, timed part
  aio::EngineStatistics statistics;
  bool verified = false;  // what was moved was compared, and is right
};

/// Bytes of memory that the run's buffers take.
std::uint64_t buffer_bytes(const RunOptions& options) noexcept;

/// Runs it. `stop` ends it early, with Cancelled. Errors: Io, NoSpace, Unsupported, Exhausted.
Result<RunResult> run(const RunOptions& options, const std::atomic<int>& stop);

}  // namespace artesian::bench
