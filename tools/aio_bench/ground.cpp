#include "tools/aio_bench/ground.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "tiering/host_nodes.h"
#include "tools/aio_bench/sweep.h"

namespace artesian::bench {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A pass over all files, in full batches, whatever the later measurements are.
Transfers one_pass(Access access, Transfers transfers) {
  transfers.access = access;
  transfers.seconds = 0;
  transfers.engine.single_submit = false;
  transfers.engine.overlap_events = true;
  transfers.engine.polling = aio::Polling::None;
  return transfers;
}

/// For Sweep::run.
std::function<void()> telling(const Sweep& sweep, std::uint64_t size, const PassWatch& watch) {
  if (!watch) return nullptr;
  constexpr double every_s = 0.2;
  const std::uint64_t begin_ns = monotonic_ns();
  return [&sweep, size, &watch, begin_ns, told_s = -every_s]() mutable {
    const double gone_s = seconds_since(begin_ns);
    const std::uint64_t done = sweep.bytes_read() + sweep.bytes_written();
    if (done == 0 || gone_s < told_s + every_s) return;
    told_s = gone_s;
    watch({.done = done, .size = size, .seconds = gone_s});
  };
}

Result<BenchFile> open_new_file(const std::string& directory, Direct direct) {
  std::random_device device;
  const std::string path =
      fmt::format("{}/artesian-aio-bench-{}-{}", directory, getpid(), device());
  BenchFile opened;
  ARTESIAN_TRY(file, system_files().open(path, {.create = Create::Exclusive, .direct = direct}));
  opened.file = std::move(file);
  opened.name.reset(new std::string(path));
  return opened;
}

/// Tries the calls that are made on the file later. File systems that address files by path fail
/// them (ENOENT, ESTALE); fio opens the file by its descriptor.
bool works_without_name(File& file) {
  constexpr std::uint64_t tried = 4096;
  const auto lacks_name = [](const Error& error) {
    return error.system_error == ENOENT || error.system_error == ESTALE;
  };
  const auto size = file.size();
  if (!size.has_value()) return !lacks_name(size.error());
  const auto allocated = file.allocate(tried);
  if (!allocated.has_value()) return !lacks_name(allocated.error());
  const auto synced = file.sync();
  if (!synced.has_value()) return !lacks_name(synced.error());
  if (::access("/proc/self/fd", X_OK) != 0) return true;
  const std::string own = fmt::format("/proc/self/fd/{}", file.descriptor());
  const int again = ::open(own.c_str(), O_RDWR | O_CLOEXEC);
  const int system_error = errno;
  if (again >= 0) ::close(again);
  return again >= 0 || (system_error != ENOENT && system_error != ESTALE);
}

}  // namespace

double Pass::gb_per_s() const noexcept {
  return static_cast<double>(done) / std::max(seconds, 1e-9) * 1e-9;
}

double Pass::seconds_left() const noexcept {
  const auto rest = static_cast<double>(size - std::min(done, size));
  return rest * seconds / std::max(static_cast<double>(done), 1.0);
}

void BenchFile::RemoveName::operator()(std::string* path) const noexcept {
  (void)system_files().remove(*path).has_value();
  delete path;
}

Result<BenchFile> create_bench_file(const std::string& directory, Direct direct,
                                    std::uint64_t size) {
  ARTESIAN_TRY(unnamed, open_new_file(directory, direct));
  const std::string path = *unnamed.name;
  ARTESIAN_TRY_VOID(system_files().remove(path));
  std::unique_ptr<std::string>(unnamed.name.release()).reset();
  if (works_without_name(*unnamed.file)) {
    ARTESIAN_TRY_VOID(unnamed->allocate(size));
    return unnamed;
  }
  unnamed.file.reset();
  log_once(LogLevel::Warning, "the file system of " + directory +
                                  " cannot sync a file without a name: the temporary file keeps "
                                  "its name, and stays if the program is killed");
  ARTESIAN_TRY(named, open_new_file(directory, direct));
  ARTESIAN_TRY_VOID(named->allocate(size));
  return named;
}

const char* access_name(Access access) noexcept {
  switch (access) {
    case Access::Read: return "read";
    case Access::Write: return "write";
    case Access::Mixed: break;
  }
  return "mixed";
}

std::uint64_t slot_count(const aio::EngineOptions& engine, std::uint64_t size) noexcept {
  const std::uint64_t depth = std::uint64_t{engine.queue_depth} * engine.threads;
  return std::min(depth, round_up(size, engine.block_size) / engine.block_size);
}

double Measurement::gb_per_s() const noexcept {
  return static_cast<double>(bytes()) / std::max(seconds, 1e-9) * 1e-9;
}

Result<std::unique_ptr<Ground>> Ground::create(const GroundOptions& options,
                                               const std::atomic<int>& stop) {
  std::unique_ptr<Ground> ground(new Ground(options, stop));
  const std::uint64_t size = round_up(options.size / options.directories.size(), 4096);
  for (const std::string& directory : options.directories) {
    ARTESIAN_TRY(file, create_bench_file(directory, options.direct, size));
    const std::uint64_t granules = round_up(size, options.granule) / options.granule;
    ground->files_.push_back(
        {.file = std::move(file), .size = size, .writers = std::vector<Writer>(granules)});
  }
  // Like a training's pool, so that the figures apply to training.
  ARTESIAN_TRY(pool, pinned::Pool::create(
                         {.bytes = options.buffer_bytes,
                          .name = "buffers",
                          .nodes = tiering::nodes_of_host(std::nullopt, options.directories)}));
  ground->pool_ = std::move(pool);
  ground->pool_->fault_in();  // logs a warning if they are not on 2 MiB pages
  // Fills every buffer with the pattern once: later passes change only the first words of sectors.
  const std::span<std::byte> range = ground->pool_->range();
  for (std::uint64_t at = 0; at < range.size(); at += options.granule) {
    ground->pattern_.fill(range.subspan(at, std::min(options.granule, range.size() - at)));
  }
  return ground;
}

bool Ground::direct() const noexcept {
  return std::all_of(files_.begin(), files_.end(),
                     [](const WorkFile& file) { return file.file->direct(); });
}

Result<aio::EngineKind> Ground::kind_of(const Transfers& transfers) const {
  ARTESIAN_TRY(engine, make_engine(transfers));
  return engine->kind();
}

Result<std::unique_ptr<aio::Engine>> Ground::make_engine(const Transfers& transfers) const {
  aio::EngineOptions options = transfers.engine;
  options.stop_seconds = 1;  // a Sweep has already waited for all transfers
  auto made = transfers.kind == nullptr ? aio::make_best_engine(options)
                                        : aio::make_engine(*transfers.kind, options);
  // If the limit on locked memory refused the pool, which was logged, it refuses this as well.
  if (made && pool_->statistics().locked) {
    const std::span<std::byte> ranges[] = {pool_->range()};
    (*made)->register_memory(ranges);
  }
  return made;
}

std::uint64_t Ground::size() const noexcept {
  std::uint64_t size = 0;
  for (const WorkFile& file : files_) size += file.size;
  return size;
}

Result<void> Ground::fill(const Transfers& transfers, const PassWatch& watch) {
  const Transfers filling = one_pass(Access::Write, transfers);
  ARTESIAN_TRY(engine, make_engine(filling));
  Sweep sweep(*this, *engine, filling, Sweep::Check::Nothing);
  ARTESIAN_TRY_VOID(sweep.prepare());
  ARTESIAN_TRY_VOID(sweep.run(telling(sweep, size(), watch)));
  ++pass_next_;
  return drop_cache();
}

Result<void> Ground::drop_cache() {
  for (const WorkFile& file : files_) {
    ARTESIAN_TRY_VOID(file.file->sync());  // dirty pages would stay in the cache
    posix_fadvise(file.file->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }
  return {};
}

Result<bool> Ground::all_right(const Transfers& transfers, const PassWatch& watch) {
  const Transfers reading = one_pass(Access::Read, transfers);
  ARTESIAN_TRY(engine, make_engine(reading));
  Sweep sweep(*this, *engine, reading, Sweep::Check::Whole);
  ARTESIAN_TRY_VOID(sweep.prepare());
  ARTESIAN_TRY_VOID(sweep.run(telling(sweep, size(), watch)));
  return sweep.right() && sweep.bytes_read() == size();
}

namespace {

/// Returns the polling in effect for these transfers; only direct transfers poll for completions.
aio::Polling polling_of(const aio::Engine& engine, const aio::EngineStatistics& statistics) {
  const aio::Polling polling = engine.polling();
  if (!aio::polls_completion(polling) || statistics.blocks_direct != 0) return polling;
  log_once(LogLevel::Warning,
           "polling: nothing is polled (iopoll), as transfers go through the page cache");
  return aio::polls_submission(polling) ? aio::Polling::Submission : aio::Polling::None;
}

}  // namespace

Result<Measurement> Ground::measure(const Transfers& transfers, const Watch& watch) {
  ARTESIAN_TRY(engine, make_engine(transfers));
  Measurement result;
  result.kind = engine->kind();
  Sweep sweep(*this, *engine, transfers, Sweep::Check::Spot);
  ARTESIAN_TRY_VOID(sweep.prepare());
  const double cpu_before = cpu_seconds();
  const std::uint64_t begin_ns = monotonic_ns();
  const auto gone = [&] { return seconds_since(begin_ns); };
  ARTESIAN_TRY_VOID(sweep.run([&] {
    const double second = gone() - result.seconds;
    if (second < 1) return;
    const std::uint64_t bytes_before = result.bytes();
    result.seconds += second;
    result.bytes_read = sweep.bytes_read();
    result.bytes_written = sweep.bytes_written();
    const auto bytes = static_cast<double>(result.bytes() - bytes_before);
    result.gb_per_s_by_second.push_back(bytes / second * 1e-9);
    if (watch) watch(result);
  }));
  result.seconds = static_cast<double>(sweep.end_ns() - begin_ns) * 1e-9;
  // Marking buffers is not counted as part of a transfer, as it is not for the first pass either.
  // Neither is checking progress: fio's parent process does that, and fio counts only its jobs.
  const double others = sweep.marking_cpu_seconds() + sweep.watching_cpu_seconds();
  result.cpu_seconds = std::max(0.0, cpu_seconds() - cpu_before - others);
  pass_next_ += sweep.laps();
  result.bytes_read = sweep.bytes_read();
  result.bytes_written = sweep.bytes_written();
  result.statistics = engine->statistics();
  result.polling = polling_of(*engine, result.statistics);
  result.direct = result.statistics.blocks_direct == result.statistics.blocks;
  result.right = sweep.right();
  return result;
}

}  // namespace artesian::bench
