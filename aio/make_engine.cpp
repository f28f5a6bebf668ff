#include <sys/resource.h>

#include <cerrno>
#include <fstream>

#include "aio/io_uring.h"
#include "aio/threads.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::aio {
namespace {

Result<void> check_options(const EngineOptions& options) {
  if (options.block_size == 0 || options.block_size % 4096 != 0 ||
      options.block_size > block_size_max) {
    return make_error(ErrorCode::Invalid, "block_size: got " + std::to_string(options.block_size) +
                                              ", allowed a multiple of 4096 from 4096 to " +
                                              std::to_string(block_size_max));
  }
  if (options.queue_depth == 0 || options.queue_depth > queue_depth_max) {
    return make_error(ErrorCode::Invalid, "queue_depth: got " +
                                              std::to_string(options.queue_depth) +
                                              ", allowed 1 to " + std::to_string(queue_depth_max));
  }
  if (options.threads == 0 || options.threads > threads_max) {
    return make_error(ErrorCode::Invalid, "threads: got " + std::to_string(options.threads) +
                                              ", allowed 1 to " + std::to_string(threads_max));
  }
  if (!(options.stop_seconds >= 0 && options.stop_seconds <= 1e6)) {
    return make_error(
        ErrorCode::Invalid,
        "stop_seconds: got " + std::to_string(options.stop_seconds) + ", allowed 0 to 1000000");
  }
  return {};
}

/// Why the kernel refused io_uring, and what to do, as far as can be known.
std::string reason_of(int system_error, const EngineOptions& options) {
  int disabled = 0;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  switch (system_error) {
    case ENOSYS: return "this kernel has no io_uring, or a seccomp filter hides it";
    case EOPNOTSUPP: return "this kernel is older than 5.7";
    case EMFILE: {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      return std::to_string(options.threads) + " rings need " +
             std::to_string(2 * options.threads) + " file descriptors, of " +
             std::to_string(limit.rlim_cur) + " for the whole process (ulimit -n)";
    }
    case ENOMEM: return "the locked-memory limit is too low (ulimit -l)";
    case EPERM:
    case EACCES:
      return disabled != 0 ? "sysctl kernel.io_uring_disabled is " + std::to_string(disabled)
                           : std::string("a seccomp filter refuses it, as in most containers");
    default: return system_error_text(system_error);
  }
}

}  // namespace

const char* engine_kind_name(EngineKind kind) noexcept {
  return kind == EngineKind::IoUring ? "io_uring" : "threads";
}

Result<std::unique_ptr<Engine>> make_engine(EngineKind kind,
                                            const EngineOptions& options) noexcept {
  ARTESIAN_TRY_VOID(check_options(options));
  if (kind == EngineKind::Threads) return make_threads(options);
  auto engine = make_io_uring(options);
  if (!engine && engine.error().code == ErrorCode::Unsupported) {
    engine.error().message += " (" + reason_of(engine.error().system_error, options) + ")";
  }
  return engine;
}

Result<std::unique_ptr<Engine>> make_best_engine(const EngineOptions& options) noexcept {
  auto engine = make_engine(EngineKind::IoUring, options);
  if (engine || engine.error().code == ErrorCode::Invalid) return engine;
  const Error& error = engine.error();
  log_once(LogLevel::Warning,
           "io_uring is not available: " + reason_of(error.system_error, options) + " (" +
               system_error_text(error.system_error) + "); using the thread pool");
  return make_engine(EngineKind::Threads, options);
}

}  // namespace artesian::aio
