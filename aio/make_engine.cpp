#include <fmt/core.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>

#include "aio/io_uring.h"
#include "aio/libaio.h"
#include "aio/threads.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::aio {
namespace {

Result<void> check_options(const EngineOptions& options) {
  if (options.block_size == 0 || options.block_size % 4096 != 0 ||
      options.block_size > block_size_max) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("block_size: got {}, allowed a multiple of 4096 from 4096 to {}",
                                  options.block_size, block_size_max));
  }
  if (options.queue_depth == 0 || options.queue_depth > queue_depth_max) {
    return make_error(ErrorCode::Invalid, fmt::format("queue_depth: got {}, allowed 1 to {}",
                                                      options.queue_depth, queue_depth_max));
  }
  if (options.threads == 0 || options.threads > threads_max) {
    return make_error(ErrorCode::Invalid, fmt::format("threads: got {}, allowed 1 to {}",
                                                      options.threads, threads_max));
  }
  if (!(options.stop_seconds >= 0 && options.stop_seconds <= 1e6)) {
    return make_error(
        ErrorCode::Invalid,
        fmt::format("stop_seconds: got {:f}, allowed 0 to 1000000", options.stop_seconds));
  }
  return {};
}

/// Why such an engine is not available, and what to do, as far as known.
std::string reason_of(EngineKind kind, const Error& error, const EngineOptions& options) {
  if (error.code == ErrorCode::Exhausted) {
    return "no more threads: the limit of the user (ulimit -u) or of a control group (pids.max)";
  }
  const bool ring = kind == EngineKind::IoUring;
  const std::string name = engine_kind_name(kind);
  int disabled = 0;
  if (ring) std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  switch (error.system_error) {
    case ENOSYS: return "this kernel has no " + name + ", or a seccomp filter hides it";
    case EOPNOTSUPP: return std::string("this kernel is older than ") + (ring ? "5.7" : "4.18");
    case EAGAIN:
      if (ring) break;
      return "the machine's AIO requests are used up (sysctl fs.aio-max-nr)";
    case EMFILE: {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      return fmt::format("{} {} need {} file descriptors, of {} for the whole process (ulimit -n)",
                         options.threads, ring ? "rings" : "contexts",
                         (ring ? 2 : 1) * options.threads, limit.rlim_cur);
    }
    case ENOMEM:
      if (!ring) break;
      return "the locked-memory limit is too low (ulimit -l)";
    case EPERM:
    case EACCES:
      return disabled != 0 ? fmt::format("sysctl kernel.io_uring_disabled is {}", disabled)
                           : std::string("a seccomp filter refuses it, as in most containers");
    default: break;
  }
  return system_error_text(error.system_error);
}

Result<std::unique_ptr<Engine>> make_unchecked(EngineKind kind, const EngineOptions& options) {
  if (kind != EngineKind::IoUring && options.polling != Polling::None) {
    log_once(LogLevel::Warning, std::string("polling: ") + engine_kind_name(kind) +
                                    " does without, as io_uring alone can poll");
  }
  switch (kind) {
    case EngineKind::IoUring: return make_io_uring(options);
    case EngineKind::Libaio: return make_libaio(options);
    case EngineKind::Threads: break;
  }
  return make_threads(options);
}

}  // namespace

const char* engine_kind_name(EngineKind kind) noexcept {
  switch (kind) {
    case EngineKind::IoUring: return "io_uring";
    case EngineKind::Libaio: return "libaio";
    case EngineKind::Threads: break;
  }
  return "threads";
}

const char* polling_name(Polling polling) noexcept {
  switch (polling) {
    case Polling::Submission: return "sqpoll";
    case Polling::Completion: return "iopoll";
    case Polling::Both: return "both";
    case Polling::None: break;
  }
  return "off";
}

std::string polling_words() {
  std::string words;
  for (const Polling& polling : pollings) {
    if (!words.empty()) words += &polling == std::end(pollings) - 1 ? " or " : ", ";
    words += polling_name(polling);
  }
  return words;
}

Result<std::unique_ptr<Engine>> make_engine(EngineKind kind,
                                            const EngineOptions& options) noexcept {
  ARTESIAN_TRY_VOID(check_options(options));
  auto engine = make_unchecked(kind, options);
  if (!engine) engine.error().message += " (" + reason_of(kind, engine.error(), options) + ")";
  return engine;
}

Result<std::unique_ptr<Engine>> make_best_engine(const EngineOptions& options) noexcept {
  ARTESIAN_TRY_VOID(check_options(options));
  std::string refusals;
  for (const EngineKind kind : {EngineKind::IoUring, EngineKind::Libaio}) {
    auto engine = make_unchecked(kind, options);
    const std::string name = engine_kind_name(kind);
    if (engine && !refusals.empty()) log_once(LogLevel::Warning, refusals + "using " + name);
    if (engine) return engine;
    refusals += name + " is not available: " + reason_of(kind, engine.error(), options) + " (" +
                system_error_text(engine.error().system_error) + "); ";
  }
  auto pool = make_engine(EngineKind::Threads, options);
  if (pool) log_once(LogLevel::Warning, refusals + "using the thread pool");
  return pool;
}

}  // namespace artesian::aio
