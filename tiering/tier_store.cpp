#include "tiering/tier_store.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"
#include "base/units.h"
#include "tiering/block_checksums.h"
#include "tiering/in_flight.h"
#include "tiering/superblock.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sector_size = 4096;  // what every range is a multiple of
constexpr std::uint64_t block_bytes_max = 1 << 20;
constexpr std::uint64_t sample_stride = 16;  // Verify::Sample looks at every 16th block

struct Shard {
  Shard(ShardOptions given, std::uint32_t index, std::uint64_t run_id)
      : options(std::move(given)),
        blocks(round_up(options.bytes, options.block_bytes) / options.block_bytes),
        checksums(run_id, index, blocks) {}

  ShardOptions options;
  std::uint64_t blocks;
  BlockChecksums checksums;
  BufferLease memory;  // device and host homes
  Extent extent;       // nvme homes
};

Error naming(const ShardOptions& shard, const char* doing, Error error) {
  error.message = std::string(doing) + " shard " + shard.name + ": " + error.message;
  return error;
}

void check_shard(const ShardOptions& shard, std::size_t directories) {
  ARTESIAN_CHECK(shard.bytes > 0 && shard.bytes % sector_size == 0, shard.name, shard.bytes);
  ARTESIAN_CHECK(shard.block_bytes > 0 && shard.block_bytes % sector_size == 0, shard.block_bytes);
  ARTESIAN_CHECK(shard.block_bytes <= block_bytes_max, shard.block_bytes);
  ARTESIAN_CHECK(shard.home != Tier::Nvme || shard.path < directories, shard.path, directories);
}

}  // namespace

class TierStore::Impl {
 public:
  Impl(const TierStoreOptions& options, aio::Engine& engine) : options_(options), engine_(engine) {}
  ~Impl();

  Result<void> make_homes(std::vector<ShardOptions> shards, pinned::Pool& device,
                          pinned::Pool& host, FileSystem& files) noexcept;
  Result<void> close() noexcept;
  void transfer(aio::Completion& completion, ShardId id, ByteRange range, BufferLease buffer,
                aio::Operation operation, aio::Priority priority) noexcept;
  void check_sealed(const Shard& shard, ByteRange range) const noexcept;
  Result<void> await(aio::Completion& completion, ShardId id) noexcept;
  Error timeout(Error error) const;
  Error corrupt(const Shard& shard, std::uint64_t block, BlockChecksums::Finding finding);

  Shard& at(ShardId id) noexcept {
    const auto index = static_cast<std::size_t>(id);
    ARTESIAN_CHECK(index < shards_.size(), index, shards_.size());
    return shards_[index];
  }
  bool compares(std::uint64_t block) const noexcept {
    return options_.verify == Verify::Full ||
           (options_.verify == Verify::Sample && block % sample_stride == 0);
  }
  Deadline deadline() const noexcept {
    return Deadline::after_seconds(stalled_ns_ != 0 ? 0.0 : options_.wait_seconds);
  }

  const TierStoreOptions options_;
  aio::Engine& engine_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<SwapFile>> swap_files_;
  InFlightTable in_flight_;
  std::uint64_t bytes_read_ = 0;
  std::uint64_t bytes_written_ = 0;
  std::atomic<std::uint64_t> blocks_verified_{0};
  std::atomic<std::uint64_t> verify_failures_{0};
  bool close_called_ = false;
  std::uint64_t stalled_ns_ = 0;  // when a wait ran into its deadline; 0: something came back since
};

TierStore::Impl::~Impl() {
  ARTESIAN_CHECK(close_called_);
  if (swap_files_.empty()) return;
  // close() ran into its deadline: the kernel may still use these descriptors, which must not be
  // given to other files. They go with the process; the next run reclaims what they leave.
  in_flight_.abandon();
  for (auto& swap : swap_files_) keep_for_ever(std::move(swap));
}

Result<void> TierStore::Impl::make_homes(std::vector<ShardOptions> shards, pinned::Pool& device,
                                         pinned::Pool& host, FileSystem& files) noexcept {
  std::vector<std::uint64_t> payloads(options_.directories.size(), 0);
  shards_.reserve(shards.size());
  for (ShardOptions& options : shards) {
    check_shard(options, payloads.size());
    const auto index = static_cast<std::uint32_t>(shards_.size());
    shards_.emplace_back(std::move(options), index, options_.run_id);
    Shard& shard = shards_.back();
    if (shard.options.home == Tier::Nvme) {
      payloads[shard.options.path] += shard.options.bytes;
      continue;
    }
    // Homes last for the whole run: from the high end, so that staging at the low end stays whole.
    pinned::Pool& pool = shard.options.home == Tier::Device ? device : host;
    auto lease = pool.lease(shard.options.bytes, pinned::Placement::High);
    if (!lease.has_value()) {
      return naming(shard.options, "cannot place", std::move(lease).error());
    }
    shard.memory = std::move(lease).value();
  }
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const SwapFileOptions options{.directory = options_.directories[i],
                                  .rank = options_.rank,
                                  .run_id = options_.run_id,
                                  .bytes = payloads[i]};
    ARTESIAN_TRY(swap, SwapFile::create(options, files));
    swap_files_.push_back(std::move(swap));
  }
  for (Shard& shard : shards_) {
    if (shard.options.home != Tier::Nvme) continue;
    ARTESIAN_TRY(extent, swap_files_[shard.options.path]->allocate(shard.options.bytes));
    ARTESIAN_CHECK(extent.length == shard.options.bytes, extent.length, shard.options.bytes);
    shard.extent = extent;
  }
  return {};
}

Result<void> TierStore::Impl::close() noexcept {
  close_called_ = true;
  if (in_flight_.any()) {
    auto drained = engine_.drain(deadline());
    // Only our own transfers count: others may share the engine.
    if (!drained.has_value() && in_flight_.any()) {
      stalled_ns_ = system_clock().now_ns();
      return timeout(std::move(drained).error());
    }
    ARTESIAN_CHECK(!in_flight_.any());
  }
  Result<void> outcome;
  // Last made, first removed: a directory may lie inside another.
  for (auto swap = swap_files_.rbegin(); swap != swap_files_.rend(); ++swap) {
    auto closed = (*swap)->close();
    if (outcome.has_value() && !closed.has_value()) outcome = std::move(closed);
  }
  swap_files_.clear();
  shards_.clear();
  return outcome;
}

void TierStore::Impl::check_sealed(const Shard& shard, ByteRange range) const noexcept {
  const std::uint64_t block_bytes = shard.options.block_bytes;
  const std::uint64_t end = range.offset + range.length;
  ARTESIAN_CHECK(range.offset % block_bytes == 0, range.offset, block_bytes);
  ARTESIAN_CHECK(end % block_bytes == 0 || end == shard.options.bytes, end, block_bytes);
  if (options_.verify == Verify::Off) return;
  for (std::uint64_t block = range.offset / block_bytes; block * block_bytes < end; ++block) {
    ARTESIAN_CHECK(shard.checksums.generation(block) != 0, shard.options.name, block);
  }
}

void TierStore::Impl::transfer(aio::Completion& completion, ShardId id, ByteRange range,
                               BufferLease buffer, aio::Operation operation,
                               aio::Priority priority) noexcept {
  ARTESIAN_CHECK(!close_called_);
  Shard& shard = at(id);
  ARTESIAN_CHECK(shard.options.home == Tier::Nvme, shard.options.name);
  ARTESIAN_CHECK(range.offset % sector_size == 0, shard.options.name, range.offset);
  ARTESIAN_CHECK(range.length > 0 && range.length % sector_size == 0, range.length);
  ARTESIAN_CHECK(range.offset < shard.options.bytes, range.offset, shard.options.bytes);
  ARTESIAN_CHECK(range.length <= shard.options.bytes - range.offset, range.offset, range.length);
  ARTESIAN_CHECK(buffer.size() >= range.length, buffer.size(), range.length);
  const bool writes = operation == aio::Operation::Write;
  if (writes) check_sealed(shard, range);
  const aio::Request request{.operation = operation,
                             .priority = priority,
                             .file = &swap_files_[shard.options.path]->file(),
                             .offset = shard.extent.offset + range.offset,
                             .length = range.length};
  ARTESIAN_CHECK(request.offset % request.file->alignment() == 0, request.offset);
  in_flight_.begin(completion, static_cast<std::uint32_t>(id), request, std::move(buffer),
                   deadline());
  (writes ? bytes_written_ : bytes_read_) += range.length;
  aio::Completion* const list[] = {&completion};
  engine_.submit(list);
}

Error TierStore::Impl::timeout(Error error) const {
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", options_.wait_seconds);
  error.message = "no answer from the disk within " + std::string(seconds) +
                  " s; in flight: " + in_flight_.describe(system_clock().now_ns());
  return error;
}

Error TierStore::Impl::corrupt(const Shard& shard, std::uint64_t block,
                               BlockChecksums::Finding finding) {
  verify_failures_.fetch_add(1, std::memory_order_relaxed);
  const bool never = finding == BlockChecksums::Finding::NeverSealed;
  const std::string generation = std::to_string(shard.checksums.generation(block));
  Error error = make_error(
      ErrorCode::Corrupt,
      "shard " + shard.options.name + ", block " + std::to_string(block) +
          (never ? ": was never written, so there is nothing to read"
                 : ": is not what was written (checksum differs at generation " + generation +
                       "): flipped, stale or misplaced bytes; check the disk"));
  const std::uint64_t offset = block * shard.options.block_bytes;
  error.offset = offset;
  error.length = std::min(shard.options.block_bytes, shard.options.bytes - offset);
  if (shard.options.home == Tier::Nvme) {
    error.file = swap_files_[shard.options.path]->file().path();
    error.offset += shard.extent.offset;
  }
  return error;
}

Result<std::unique_ptr<TierStore>> TierStore::open(const TierStoreOptions& options,
                                                   std::vector<ShardOptions> shards,
                                                   pinned::Pool& device, pinned::Pool& host,
                                                   aio::Engine& engine,
                                                   FileSystem& files) noexcept {
  auto impl = std::make_unique<Impl>(options, engine);
  auto made = impl->make_homes(std::move(shards), device, host, files);
  if (made.has_value()) return std::unique_ptr<TierStore>(new TierStore(std::move(impl)));
  (void)impl->close().has_value();  // the first error is the one to tell
  return std::move(made).error();
}

TierStore::TierStore(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

TierStore::~TierStore() = default;  // Impl checks that close() was called

Result<void> TierStore::close() noexcept {
  return impl_->close();
}

const ShardOptions& TierStore::shard(ShardId id) const noexcept {
  return impl_->at(id).options;
}

std::byte* TierStore::memory(ShardId id) noexcept {
  const Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(shard.options.home != Tier::Nvme, shard.options.name);
  ARTESIAN_CHECK(shard.memory.size() >= shard.options.bytes, shard.memory.size());
  return shard.memory.data();
}

void TierStore::read(aio::Completion& completion, ShardId id, ByteRange range, BufferLease target,
                     aio::Priority priority) noexcept {
  impl_->transfer(completion, id, range, std::move(target), aio::Operation::Read, priority);
}

void TierStore::write(aio::Completion& completion, ShardId id, ByteRange range, BufferLease source,
                      aio::Priority priority) noexcept {
  impl_->transfer(completion, id, range, std::move(source), aio::Operation::Write, priority);
}

/// Until it is ready, and says how it went.
Result<void> TierStore::Impl::await(aio::Completion& completion, ShardId id) noexcept {
  const ShardOptions& options = at(id).options;
  const bool reads = completion.request().operation == aio::Operation::Read;
  const char* const doing = reads ? "reading" : "writing";
  auto waited = engine_.wait(completion, deadline());
  if (!waited.has_value()) {
    stalled_ns_ = system_clock().now_ns();
    return naming(options, doing, timeout(std::move(waited).error()));
  }
  if (completion.finished_ns() > stalled_ns_) stalled_ns_ = 0;
  in_flight_.settle(completion);
  auto moved = completion.result();
  if (!moved.has_value()) return naming(options, doing, std::move(moved).error());
  ARTESIAN_CHECK(*moved == completion.request().length, *moved, completion.request().length);
  return {};
}

Result<void> TierStore::wait(aio::Completion& completion, ShardId id) noexcept {
  ARTESIAN_TRY_VOID(impl_->await(completion, id));
  if (impl_->options_.timeline == nullptr) return {};
  const aio::Request& request = completion.request();
  const bool reads = request.operation == aio::Operation::Read;
  impl_->options_.timeline->add(reads ? Lane::NvmeRead : Lane::NvmeWrite,
                                impl_->at(id).options.name, completion.submitted_ns(),
                                completion.finished_ns(), request.length);
  return {};
}

Result<void> TierStore::finish_writes(ShardId id) noexcept {
  const auto shard = static_cast<std::uint32_t>(id);
  while (aio::Completion* write = impl_->in_flight_.write_of(shard)) {
    ARTESIAN_TRY_VOID(impl_->await(*write, id));
  }
  return {};
}

bool TierStore::writing(ShardId id) const noexcept {
  return impl_->in_flight_.writing(static_cast<std::uint32_t>(id));
}

void TierStore::seal(ShardId id, std::uint64_t block, const std::byte* data) noexcept {
  Shard& shard = impl_->at(id);
  if (impl_->compares(block)) {
    shard.checksums.seal(block, data, block_length(id, block));
  } else {
    shard.checksums.seal_unchecked(block);
  }
}

Result<void> TierStore::verify(ShardId id, std::uint64_t block, const std::byte* data) noexcept {
  const Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(block < shard.blocks, shard.options.name, block);
  if (!impl_->compares(block)) return {};
  impl_->blocks_verified_.fetch_add(1, std::memory_order_relaxed);
  const auto finding = shard.checksums.compare(block, data, block_length(id, block));
  if (finding == BlockChecksums::Finding::Match) return {};
  return impl_->corrupt(shard, block, finding);
}

std::uint64_t TierStore::block_length(ShardId id, std::uint64_t block) const noexcept {
  const Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(block < shard.blocks, shard.options.name, block, shard.blocks);
  const std::uint64_t offset = block * shard.options.block_bytes;
  return std::min(shard.options.block_bytes, shard.options.bytes - offset);
}

Result<DiskSpeed> TierStore::probe_disk(std::uint32_t path, pinned::Pool& staging) noexcept {
  ARTESIAN_CHECK(path < impl_->swap_files_.size(), path, impl_->swap_files_.size());
  ARTESIAN_CHECK(impl_->bytes_written_ == 0, impl_->bytes_written_);  // it would be overwritten
  SwapFile& swap = *impl_->swap_files_[path];
  if (swap.bytes_used() == 0) return DiskSpeed{};
  const Extent range{.offset = superblock_region_size, .length = swap.bytes_used()};
  auto speed =
      tiering::probe_disk(swap.file(), range, impl_->engine_, staging, {}, impl_->deadline());
  const bool stalled = !speed.has_value() && speed.error().code == ErrorCode::Timeout;
  if (stalled) impl_->stalled_ns_ = system_clock().now_ns();
  return speed;
}

TierStoreStatistics TierStore::statistics() const noexcept {
  return {.bytes_read = impl_->bytes_read_,
          .bytes_written = impl_->bytes_written_,
          .blocks_verified = impl_->blocks_verified_.load(std::memory_order_relaxed),
          .verify_failures = impl_->verify_failures_.load(std::memory_order_relaxed)};
}

}  // namespace artesian::tiering
