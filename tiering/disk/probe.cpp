#include "tiering/disk/probe.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t piece_size_max = 2 << 20;
constexpr std::size_t pieces_in_flight = 8;

// Some disks and hypervisors store zeros, or any repetition, without writing them.
void fill_incompressible(BufferLease& buffer, std::uint64_t stream) {
  ARTESIAN_CHECK(buffer.size() % sizeof(std::uint64_t) == 0, buffer.size());
  for (std::uint64_t i = 0; i < buffer.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random_word(0, stream, i);
    std::memcpy(buffer.data() + i, &word, sizeof(word));
  }
}

// Runs passes over the range through a ring of pieces.
class DiskProbe {
 public:
  DiskProbe(File& file, Extent range, aio::Engine& engine, Deadline deadline)
      : file_(file), range_(range), engine_(engine), deadline_(deadline) {}

  DiskProbe(const DiskProbe&) = delete;
  DiskProbe& operator=(const DiskProbe&) = delete;

  Result<void> take_buffers(pinned::Pool& pool) noexcept {
    ARTESIAN_CHECK(depth_ == 0, depth_);  // done once
    piece_size_ = std::min(piece_size_max, range_.length);
    while (depth_ == 0) {
      for (BufferLease& buffer : buffers_) {
        auto lease = pool.lease(piece_size_);
        if (!lease.has_value() && depth_ == 0 && piece_size_ == sector_size) {
          return std::move(lease).error();
        }
        if (!lease.has_value()) break;
        buffer = std::move(lease).value();
        fill_incompressible(buffer, depth_);
        ++depth_;
      }
      if (depth_ == 0) piece_size_ = round_up(piece_size_ / 2, sector_size);
    }
    ARTESIAN_CHECK(piece_size_ != 0 && piece_size_ % sector_size == 0, piece_size_);
    pieces_ = range_.length / piece_size_;
    ARTESIAN_CHECK(depth_ != 0 && pieces_ != 0, depth_, range_.length);
    return {};
  }

  Result<DiskSpeed> run(double seconds) noexcept {
    // The first write to reserved space also converts reserved blocks to written ones, which later
    // steps need not pay for: it is not counted.
    ARTESIAN_TRY(first_write, pass(aio::Operation::Write, seconds));
    ARTESIAN_CHECK(first_write > 0);
    ARTESIAN_TRY(write, pass(aio::Operation::Write, seconds));
    ARTESIAN_TRY(read, pass(aio::Operation::Read, seconds));
    ARTESIAN_CHECK(read > 0 && write > 0, read, write);
    return DiskSpeed{.read_bytes_per_s = read, .write_bytes_per_s = write};
  }

  bool timed_out() const noexcept { return timed_out_; }

  // Abandons hung transfers: this object may be destroyed, and the buffers that the kernel may
  // still use are lost (base/buffer.h, Note [Abandoned memory]).
  void abandon() noexcept {
    ARTESIAN_CHECK(timed_out_);
    for (aio::Completion& completion : completions_) engine_.abandon(completion);
  }

 private:
  // Bytes per second of one pass, ended early after `seconds`. No pass goes beyond what the first
  // one has written, as reading reserved space without data costs the disk nothing.
  Result<double> pass(aio::Operation operation, double seconds) noexcept {
    const std::uint64_t start_ns = monotonic_ns();
    const auto limit_ns = static_cast<std::uint64_t>(seconds * 1e9);
    ARTESIAN_CHECK(pieces_ > 0 && depth_ > 0, pieces_, depth_);
    std::uint64_t started = 0;
    std::uint64_t finished = 0;
    Result<void> outcome;
    for (;;) {
      const bool in_time = started == 0 || monotonic_ns() - start_ns < limit_ns;
      while (outcome.has_value() && in_time && started < pieces_ && started - finished < depth_) {
        submit(operation, started++);
      }
      if (finished == started) break;
      auto ended = finish(finished++);
      if (outcome.has_value() && !ended.has_value()) outcome = std::move(ended);
      if (timed_out_) break;
    }
    ARTESIAN_CHECK(finished <= started && started <= pieces_, finished, started, pieces_);
    ARTESIAN_CHECK(finished == started || timed_out_, finished, started);
    pieces_ = std::min(pieces_, finished);
    if (!outcome.has_value()) return std::move(outcome).error();
    const std::uint64_t elapsed_ns = std::max<std::uint64_t>(monotonic_ns() - start_ns, 1);
    return static_cast<double>(finished * piece_size_) * 1e9 / static_cast<double>(elapsed_ns);
  }

  void submit(aio::Operation operation, std::uint64_t piece) noexcept {
    const std::size_t slot = piece % depth_;
    ARTESIAN_CHECK(!completions_[slot].in_flight(), slot);
    ARTESIAN_CHECK((piece + 1) * piece_size_ <= range_.length, piece, range_.length);
    ARTESIAN_CHECK(buffers_[slot].size() >= piece_size_, slot, buffers_[slot].size());
    const aio::Request request{.operation = operation,
                               .priority = aio::Priority::Demand,
                               .file = &file_,
                               .offset = range_.offset + piece * piece_size_,
                               .length = piece_size_};
    completions_[slot].prepare(request, std::move(buffers_[slot]));
    aio::Completion* const list[] = {&completions_[slot]};
    engine_.submit(list);
  }

  Result<void> finish(std::uint64_t piece) noexcept {
    const std::size_t slot = piece % depth_;
    auto waited = engine_.wait(completions_[slot], deadline_);
    if (!waited.has_value()) {
      timed_out_ = true;
      return waited;
    }
    buffers_[slot] = completions_[slot].take_buffer();
    ARTESIAN_TRY(moved, completions_[slot].result());
    ARTESIAN_CHECK(moved == piece_size_, moved, piece_size_);
    return {};
  }

  File& file_;
  const Extent range_;
  aio::Engine& engine_;
  const Deadline deadline_;
  std::uint64_t piece_size_ = 0;
  std::size_t depth_ = 0;  // buffers in use
  std::uint64_t pieces_ = 0;
  bool timed_out_ = false;
  std::array<BufferLease, pieces_in_flight> buffers_;
  std::array<aio::Completion, pieces_in_flight> completions_;
};

}  // namespace

Result<DiskSpeed> probe_disk(File& file, Extent range, aio::Engine& engine, pinned::Pool& pool,
                             const DiskProbeOptions& options, Deadline deadline) noexcept {
  ARTESIAN_CHECK(range.length >= sector_size, range.length);
  ARTESIAN_CHECK(range.offset % sector_size == 0 && range.length % sector_size == 0, range.offset);
  ARTESIAN_CHECK(options.bytes >= sector_size && options.seconds > 0, options.bytes);
  range.length = std::min(range.length, round_down(options.bytes, sector_size));
  DiskProbe probe(file, range, engine, deadline);
  ARTESIAN_TRY_VOID(probe.take_buffers(pool));
  auto speed = probe.run(options.seconds);
  if (probe.timed_out()) probe.abandon();
  return speed;
}

}  // namespace artesian::tiering
