#include "tools/aio_bench/sweep.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include "base/keep_for_ever.h"
#include "base/units.h"

namespace artesian::bench {
namespace {

/// How many of the first `count` blocks belong to an operation with this share.
std::uint64_t taken(double share, std::uint64_t count) {
  return static_cast<std::uint64_t>(std::floor(static_cast<double>(count) * share + 1e-9));
}

bool takes(double share, std::uint64_t sequence) {
  return taken(share, sequence + 1) != taken(share, sequence);
}

/// Returns the CPU time of the calling thread.
std::uint64_t cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

Sweep::Sweep(Ground& ground, aio::Engine& engine, const Transfers& transfers, Check check,
             double patience)
    : ground_(ground),
      engine_(engine),
      transfers_(transfers),
      check_(check),
      patience_seconds_(patience) {
  files_ = std::min(transfers.file_count, ground.files_.size() - transfers.file_first);
  ARTESIAN_CHECK(files_ > 0, transfers.file_first);
  const std::uint64_t block_size = transfers.engine.block_size;
  ARTESIAN_CHECK(block_size % ground.options_.granule == 0, block_size);
  blocks_ = files_ * (round_up(ground.files_.front().size, block_size) / block_size);
  in_flight_ = std::vector<std::atomic<bool>>(blocks_);
  const double share = transfers.read_share;
  switch (transfers.access) {
    case Access::Read: reads_per_block_ = 1; break;
    case Access::Write: writes_per_block_ = 1; break;
    case Access::Mixed:
      reads_per_block_ = std::min(1.0, share / (1 - share));
      writes_per_block_ = std::min(1.0, (1 - share) / share);
  }
}

Ground::WorkFile& Sweep::file_of(std::uint64_t block) const noexcept {
  return ground_.files_[transfers_.file_first + block % files_];
}

std::uint64_t Sweep::offset_of(std::uint64_t block) const noexcept {
  return block / files_ * transfers_.engine.block_size;
}

Result<void> Sweep::prepare() {
  const std::uint64_t count =
      std::min(blocks_, std::uint64_t{transfers_.engine.queue_depth} * transfers_.engine.threads);
  sequences_min_ = transfers_.seconds > 0 ? 2 * count : 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    ARTESIAN_TRY(buffer, ground_.pool_->lease(transfers_.engine.block_size));
    Slot& slot = slots_.emplace_back();
    slot.sweep = this;
    slot.kept = std::move(buffer);
    if (transfers_.access == Access::Write) {
      mark(slot, ground_.pass_next_, {slot.kept.data(), transfers_.engine.block_size});
    }
  }
  return {};
}

Result<void> Sweep::run(const std::function<void()>& watch) {
  if (transfers_.seconds > 0) until_ns_ = Deadline::after_seconds(transfers_.seconds).at_ns;
  std::uint64_t first = slots_.size();
  if (transfers_.access == Access::Mixed) {
    const double share = static_cast<double>(first) * transfers_.read_share;
    first = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::lround(share)), 1, first);
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t index = slots_.size(); index > first; --index) {
      idle_.push_back(&slots_[index - 1]);
    }
  }
  std::vector<Completion*> batch;
  batch_ = &batch;
  for (std::uint64_t index = 0; index < first; ++index) {
    if (!begin(slots_[index], std::move(slots_[index].kept))) break;
  }
  batch_ = nullptr;
  engine_.submit(batch);
  const std::uint64_t begin_ns = cpu_ns();
  await_end(watch);
  watching_cpu_ns_ = cpu_ns() - begin_ns;
  ARTESIAN_TRY_VOID(engine_.drain(Deadline{}));  // the last callbacks are about to return
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  if (ground_.stop_ != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
  return {};
}

/// Transfers end by themselves: at the end, after an error, or on the user's request.
void Sweep::await_end(const std::function<void()>& watch) {
  const double in_flight = static_cast<double>(slots_.size() * transfers_.engine.block_size);
  const double patience = patience_seconds_ + in_flight / 1e8;
  Deadline deadline = Deadline::after_seconds(patience);
  std::uint64_t moved = 0;
  std::unique_lock lock(mutex_);
  while (!still_.wait_for(lock, watch_every, [&] { return moving_ == 0; })) {
    lock.unlock();  // transfers continue during the call
    if (watch) watch();
    const std::uint64_t moved_now = bytes_read_ + bytes_written_;
    if (moved_now != moved) deadline = Deadline::after_seconds(patience);
    moved = moved_now;
    if (monotonic_ns() >= deadline.at_ns) return give_up(patience);
    lock.lock();
  }
}

/// Abandons the files as well, as a stuck call may still look up their descriptors.
void Sweep::give_up(double patience) {
  auto stalled = engine_.drain(Deadline::after_seconds(0));
  if (stalled.has_value()) return;  // the disk has just answered
  failed_ = true;
  std::unique_lock lock(mutex_);
  if (!error_) {
    error_ = std::move(stalled).error();
    error_->message = fmt::format("no answer from the disk within {} s: {}", std::lround(patience),
                                  error_->message);
  }
  while (moving_ > 0) {
    lock.unlock();
    for (Slot& slot : slots_) {
      if (slot.completion.in_flight()) engine_.abandon(slot.completion);
    }
    lock.lock();
    still_.wait_for(lock, watch_every, [&] { return moving_ == 0; });
  }
  for (Ground::WorkFile& each : ground_.files_) keep_for_ever(std::move(each.file.file));
}

std::optional<std::uint64_t> Sweep::next_sequence() noexcept {
  if (failed_ || ground_.stop_ != 0) return std::nullopt;
  if (until_ns_ != 0 && next_ >= sequences_min_ && monotonic_ns() >= until_ns_) {
    return std::nullopt;
  }
  while (true) {
    const std::uint64_t sequence = next_++;
    if (until_ns_ == 0 && sequence >= blocks_) return std::nullopt;
    if (!in_flight_[sequence % blocks_].exchange(true)) return sequence;
  }
}

/// Starts the slot's next block; false if none is left.
bool Sweep::begin(Slot& slot, BufferLease buffer) noexcept {
  const std::optional<std::uint64_t> sequence = next_sequence();
  if (!sequence) {
    slot.kept = std::move(buffer);
    return false;
  }
  slot.block = *sequence % blocks_;
  slot.length =
      std::min(transfers_.engine.block_size, file_of(slot.block).size - offset_of(slot.block));
  slot.pass = static_cast<std::uint32_t>(ground_.pass_next_ + *sequence / blocks_);
  const bool reads = takes(reads_per_block_, *sequence);
  slot.writes_back = reads && takes(writes_per_block_, *sequence);
  submit(slot, reads ? aio::Operation::Read : aio::Operation::Write, std::move(buffer));
  return true;
}

void Sweep::mark(Slot& slot, std::uint32_t pass, std::span<std::byte> memory) noexcept {
  const std::uint64_t granule = ground_.options_.granule;
  const auto granules = static_cast<std::uint32_t>(memory.size() / granule);
  slot.marked_pass = pass;
  slot.buffer_first = ground_.buffer_next_.fetch_add(granules);
  for (std::uint32_t index = 0; index < granules; ++index) {
    Pattern::mark(memory.subspan(index * granule, granule), slot.buffer_first + index);
  }
}

/// Stamps a block before it is written. Blocks that are written back keep the marks that were read.
void Sweep::stamp(Slot& slot, std::span<std::byte> block) noexcept {
  const std::uint64_t granule = ground_.options_.granule;
  Ground::Writer* writer = &file_of(slot.block).writers[offset_of(slot.block) / granule];
  std::uint32_t buffer = slot.buffer_first;
  for (std::uint64_t at = 0; at < block.size(); at += granule, ++writer, ++buffer) {
    const auto part = block.subspan(at, std::min(granule, block.size() - at));
    ground_.pattern_.stamp(part, offset_of(slot.block) + at, slot.pass);
    *writer = {.pass = slot.pass, .buffer = slot.writes_back ? writer->buffer : buffer};
  }
}

void Sweep::submit(Slot& slot, aio::Operation operation, BufferLease buffer) noexcept {
  const bool mixed = transfers_.access == Access::Mixed;
  aio::Priority priority = aio::Priority::Demand;
  if (mixed) priority = aio::Priority::OptimizerRead;
  if (operation == aio::Operation::Write) {
    if (mixed) priority = aio::Priority::WriteBack;
    // Otherwise, if buffers are written to the same places in every pass, a lost write would be
    // hidden.
    if (!slot.writes_back && slot.marked_pass != slot.pass) {
      const std::uint64_t begin_ns = cpu_ns();
      mark(slot, slot.pass, {buffer.data(), transfers_.engine.block_size});
      marking_cpu_ns_ += cpu_ns() - begin_ns;
    }
    stamp(slot, {buffer.data(), slot.length});
  }
  slot.completion.prepare({.operation = operation,
                           .priority = priority,
                           .file = file_of(slot.block).file.file.get(),
                           .offset = offset_of(slot.block),
                           .length = slot.length},
                          std::move(buffer), finished, &slot);
  ++moving_;
  Completion* const list[] = {&slot.completion};
  if (batch_ != nullptr) {
    batch_->push_back(&slot.completion);
  } else {
    engine_.submit(list);
  }
}

void Sweep::finished(Completion&, void* context) noexcept {
  auto* slot = static_cast<Slot*>(context);
  slot->sweep->finish(*slot);
  slot->sweep->leave();
}

void Sweep::leave() noexcept {
  if (moving_.fetch_sub(1) > 1) return;
  still_ns_ = monotonic_ns();
  const std::lock_guard lock(mutex_);  // run() is either before its check of moving_ or asleep
  still_.notify_all();
}

void Sweep::finish(Slot& slot) noexcept {
  auto result = slot.completion.result();
  if (!result) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    if (!error_) error_ = result.error();
    return;
  }
  const bool read = slot.completion.request().operation == aio::Operation::Read;
  (read ? bytes_read_ : bytes_written_) += *result;
  BufferLease buffer = slot.completion.take_buffer();
  if (read) slot.marked_pass.reset();
  if (read && !is_right(slot, {buffer.data(), slot.length}, check_)) wrong_ = true;
  if (read && slot.writes_back) {
    submit(slot, aio::Operation::Write, std::move(buffer));
    begin_an_idle_slot();
    return;
  }
  in_flight_[slot.block] = false;
  begin(slot, std::move(buffer));
}

void Sweep::begin_an_idle_slot() noexcept {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return;
    slot = idle_.back();
    idle_.pop_back();
  }
  begin(*slot, std::move(slot->kept));
}

bool Sweep::is_right(const Slot& slot, std::span<const std::byte> moved,
                     Check check) const noexcept {
  const std::uint64_t granule = ground_.options_.granule;
  const Ground::WorkFile& file = file_of(slot.block);
  const std::uint64_t begin = offset_of(slot.block);
  const auto good = [&](std::uint64_t at, const auto& look) {
    const auto part = moved.subspan(at, std::min(granule, moved.size() - at));
    return look(part, begin + at, file.writers[(begin + at) / granule]);
  };
  if (check == Check::Nothing) return true;
  if (check == Check::Spot) {
    const std::uint64_t granules = round_up(moved.size(), granule) / granule;
    const std::uint64_t turn = slot.block + slot.pass;
    return good(turn % granules * granule, [&](auto part, auto offset, auto writer) {
      return ground_.pattern_.spot(part, offset, writer.pass, turn / granules);
    });
  }
  for (std::uint64_t at = 0; at < moved.size(); at += granule) {
    const bool right = good(at, [&](auto part, auto offset, auto writer) {
      return ground_.pattern_.whole(part, offset, writer.pass, writer.buffer);
    });
    if (!right) return false;
  }
  return true;
}

bool Sweep::right() const {
  if (wrong_) return false;
  if (transfers_.access != Access::Read) return true;
  return std::all_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.length == 0 || is_right(slot, {slot.kept.data(), slot.length}, Check::Whole);
  });
}

}  // namespace artesian::bench
