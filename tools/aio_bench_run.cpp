#include "tools/aio_bench_run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "base/units.h"
#include "pinned/pool.h"
#include "tools/bench_pattern.h"

namespace artesian::bench {
namespace {

using aio::Completion;
using aio::Engine;
using aio::Operation;

std::uint64_t block_count(const RunOptions& options) {
  return round_up(options.size, options.engine.block_size) / options.engine.block_size;
}

std::uint64_t slot_count(const RunOptions& options) {
  const std::uint64_t depth = std::uint64_t{options.engine.queue_depth} * options.engine.threads;
  return std::min(depth, block_count(options));
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

enum class Check : std::uint8_t { Nothing, Sampled, Whole };

/// What the file holds, and the buffers between passes.
struct Ground {
  const RunOptions& options;
  const std::atomic<int>& stop;
  std::unique_ptr<File> file;
  std::unique_ptr<pinned::Pool> pool;
  Pattern pattern;
  std::vector<std::uint32_t> pass_of_block;  // the pass that wrote it last
};

/// Moves the blocks of the file in order through an engine. Each slot owns a buffer and submits its
/// next block from the callback of the last, so that the queue never runs dry.
class Sweep {
 public:
  Sweep(Ground& ground, Engine& engine, Operation operation, Check check)
      : ground_(ground),
        engine_(engine),
        operation_(operation),
        check_(check),
        blocks_(ground.pass_of_block.size()),
        in_flight_(blocks_) {}

  /// Goes over the file once, or until the time is over. `first_pass` numbers what is written.
  Result<void> run(double seconds, std::uint32_t first_pass);
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Compares every byte that the buffers hold after the run.
  bool buffers_are_right() const;
  bool wrong() const noexcept { return wrong_; }

 private:
  struct Slot {
    Completion completion;
    Sweep* sweep = nullptr;
    std::uint64_t block = 0;
    std::uint64_t length = 0;
    BufferLease kept;  // once this slot has nothing more to move
  };

  static void finished(Completion& completion, void* context) noexcept;
  void finish(Slot& slot) noexcept;
  bool prepare(Slot& slot, BufferLease& buffer) noexcept;
  std::optional<std::uint64_t> next_sequence() noexcept;

  Ground& ground_;
  Engine& engine_;
  const Operation operation_;
  const Check check_;
  const std::uint64_t blocks_;
  std::deque<Slot> slots_;
  std::uint32_t first_pass_ = 0;
  std::uint64_t end_ns_ = 0;  // 0 = one pass
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<bool> wrong_ = false;
  std::atomic<bool> failed_ = false;
  std::vector<std::atomic<bool>> in_flight_;  // by block: a lap must not meet the one before
  std::mutex mutex_;
  std::optional<Error> error_;  // the first; under mutex_
};

Result<void> Sweep::run(double seconds, std::uint32_t first_pass) {
  first_pass_ = first_pass;
  if (seconds > 0) end_ns_ = Deadline::after_seconds(seconds).at_ns;
  std::vector<Completion*> list;
  const std::uint64_t count = slot_count(ground_.options);
  for (std::uint64_t index = 0; index < count; ++index) {
    ARTESIAN_TRY(buffer, ground_.pool->lease(ground_.options.engine.block_size));
    Slot& slot = slots_.emplace_back();
    slot.sweep = this;
    if (operation_ == Operation::Write) ground_.pattern.fill({buffer.data(), buffer.size()});
    if (prepare(slot, buffer)) list.push_back(&slot.completion);
  }
  engine_.submit(list);
  // Callbacks stop by themselves: at the end, at an error or when the user says so.
  ARTESIAN_TRY_VOID(engine_.drain(Deadline{}));
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  if (ground_.stop != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
  return {};
}

std::optional<std::uint64_t> Sweep::next_sequence() noexcept {
  if (failed_ || ground_.stop != 0) return std::nullopt;
  if (end_ns_ != 0 && system_clock().now_ns() >= end_ns_) return std::nullopt;
  while (true) {
    const std::uint64_t sequence = next_++;
    if (end_ns_ == 0 && sequence >= blocks_) return std::nullopt;
    if (!in_flight_[sequence % blocks_].exchange(true)) return sequence;
  }
}

bool Sweep::prepare(Slot& slot, BufferLease& buffer) noexcept {
  const std::optional<std::uint64_t> sequence = next_sequence();
  if (!sequence) {
    slot.kept = std::move(buffer);
    return false;
  }
  const std::uint64_t block_size = ground_.options.engine.block_size;
  slot.block = *sequence % blocks_;
  const std::uint64_t offset = slot.block * block_size;
  slot.length = std::min(block_size, ground_.options.size - offset);
  if (operation_ == Operation::Write) {
    const auto pass = static_cast<std::uint32_t>(first_pass_ + *sequence / blocks_);
    ground_.pass_of_block[slot.block] = pass;
    Pattern::stamp({buffer.data(), slot.length}, offset, pass);
  }
  slot.completion.prepare({.operation = operation_,
                           .file = ground_.file.get(),
                           .offset = offset,
                           .length = slot.length},
                          std::move(buffer), finished, &slot);
  return true;
}

void Sweep::finished(Completion&, void* context) noexcept {
  auto* slot = static_cast<Slot*>(context);
  slot->sweep->finish(*slot);
}

void Sweep::finish(Slot& slot) noexcept {
  auto result = slot.completion.result();
  if (!result) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    if (!error_) error_ = result.error();
    return;
  }
  bytes_ += *result;
  BufferLease buffer = slot.completion.take_buffer();
  const std::span<const std::byte> moved(buffer.data(), slot.length);
  const std::uint64_t offset = slot.block * ground_.options.engine.block_size;
  const std::uint32_t pass = ground_.pass_of_block[slot.block];
  if (check_ == Check::Sampled && !Pattern::sampled(moved, offset, pass)) wrong_ = true;
  if (check_ == Check::Whole && !ground_.pattern.whole(moved, offset, pass)) wrong_ = true;
  in_flight_[slot.block] = false;
  Completion* const list[] = {&slot.completion};
  if (prepare(slot, buffer)) engine_.submit(list);
}

bool Sweep::buffers_are_right() const {
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.length == 0 || ground_.pattern.whole({slot.kept.data(), slot.length},
                                                     slot.block * ground_.options.engine.block_size,
                                                     ground_.pass_of_block[slot.block]);
  });
}

Result<std::unique_ptr<Engine>> make(const Ground& ground, bool timed) {
  aio::EngineOptions options = ground.options.engine;
  if (!timed) options.single_submit = false;
  if (!timed) options.overlap_events = true;
  const auto kind = ground.options.kind;
  auto made = kind == RunOptions::Kind::Auto
                  ? aio::make_best_engine(options)
                  : aio::make_engine(kind == RunOptions::Kind::IoUring ? aio::EngineKind::IoUring
                                                                       : aio::EngineKind::Threads,
                                     options);
  // Where the limit of locked memory has refused the pool, which was said, it refuses this too.
  if (made && ground.pool->statistics().locked) {
    const std::span<std::byte> ranges[] = {ground.pool->range()};
    (*made)->register_memory(ranges);
  }
  return made;
}

/// A file that no directory names any more.
Result<std::unique_ptr<File>> open_file(const RunOptions& options) {
  std::random_device device;
  const std::string path = options.directory + "/artesian-aio-bench-" + std::to_string(getpid()) +
                           "-" + std::to_string(device());
  ARTESIAN_TRY(file,
               system_files().open(path, {.create = Create::Exclusive, .direct = options.direct}));
  ARTESIAN_TRY_VOID(system_files().remove(path));
  ARTESIAN_TRY_VOID(file->allocate(options.size));
  return file;
}

Result<void> fill(Ground& ground) {
  ARTESIAN_TRY(engine, make(ground, false));
  Sweep sweep(ground, *engine, Operation::Write, Check::Nothing);
  ARTESIAN_TRY_VOID(sweep.run(0, 0));
  ARTESIAN_TRY_VOID(ground.file->sync());
  // A buffered read is to meet the disk as well.
  posix_fadvise(ground.file->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<bool> check_written(Ground& ground) {
  ARTESIAN_TRY(engine, make(ground, false));
  Sweep sweep(ground, *engine, Operation::Read, Check::Whole);
  ARTESIAN_TRY_VOID(sweep.run(0, 0));
  return !sweep.wrong() && sweep.bytes() == ground.options.size;
}

}  // namespace

std::uint64_t buffer_bytes(const RunOptions& options) noexcept {
  return slot_count(options) * options.engine.block_size;
}

Result<RunResult> run(const RunOptions& options, const std::atomic<int>& stop) {
  ARTESIAN_TRY(file, open_file(options));
  ARTESIAN_TRY(pool, pinned::Pool::create({.bytes = buffer_bytes(options), .name = "buffers"}));
  Ground ground{.options = options,
                .stop = stop,
                .file = std::move(file),
                .pool = std::move(pool),
                .pattern = Pattern(options.engine.block_size),
                .pass_of_block = std::vector<std::uint32_t>(block_count(options))};
  ARTESIAN_TRY_VOID(fill(ground));
  ARTESIAN_TRY(engine, make(ground, true));
  RunResult result;
  result.kind = engine->kind();
  result.direct = ground.file->direct();
  const bool reads = options.operation == Operation::Read;
  {
    Sweep sweep(ground, *engine, options.operation, reads ? Check::Sampled : Check::Nothing);
    const double cpu_before = cpu_seconds();
    const std::uint64_t begin_ns = system_clock().now_ns();
    ARTESIAN_TRY_VOID(sweep.run(options.seconds, 1));
    result.seconds = static_cast<double>(system_clock().now_ns() - begin_ns) * 1e-9;
    result.cpu_seconds = cpu_seconds() - cpu_before;
    result.bytes = sweep.bytes();
    result.statistics = engine->statistics();
    result.verified = reads && !sweep.wrong() && sweep.buffers_are_right();
  }
  if (!reads) {
    ARTESIAN_TRY(right, check_written(ground));
    result.verified = right;
  }
  return result;
}

}  // namespace artesian::bench
