#include "tiering/tier_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"
#include "base/units.h"
#include "tiering/disk/group.h"
#include "tiering/in_flight.h"
#include "tiering/superblock.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t sample_stride = 16;  // Verify::Sample checks every 16th block
constexpr std::uint64_t probe_bytes = 64 << 20;
constexpr std::uint64_t probe_bytes_min = 16 << 20;  // smaller probes say nothing about a disk
constexpr std::uint32_t shadow_bit = 1u << 31;  // set in a checksum's seed, beside the shard's id
constexpr double probe_seconds = 0.4;           // over all paths, in each direction

/// The places of a shard's blocks on nvme, and the checksums of their last write.
struct NvmeBlocks {
  std::vector<Segment> segments;            // empty for homes in memory; offsets are file offsets
  std::optional<BlockChecksums> checksums;  // created when the space is reserved

  /// Index of the segment with this byte.
  std::size_t segment_of(std::uint64_t offset) const noexcept {
    const auto after = std::upper_bound(
        segments.begin(), segments.end(), offset,
        [](std::uint64_t at, const Segment& segment) { return at < segment.begin; });
    ARTESIAN_CHECK(after != segments.begin(), offset);
    return static_cast<std::size_t>(after - segments.begin()) - 1;
  }
  std::uint64_t seals() const noexcept {
    std::uint64_t sum = 0;
    for (std::uint64_t block = 0; block < checksums->blocks(); ++block) {
      sum += checksums->generation(block);
    }
    return sum;
  }
};

struct Shard {
  explicit Shard(ShardOptions given)
      : options(std::move(given)),
        blocks(round_up(options.bytes, options.block_bytes) / options.block_bytes) {}

  ShardOptions options;
  std::uint64_t blocks;
  BufferLease memory;  // for device and host homes
  NvmeBlocks place;
  std::optional<NvmeBlocks> shadow;
  bool shadowed = false;           // whether writes go to the shadow
  std::uint64_t sealed_until = 0;  // how far the shadow's blocks are sealed

  NvmeBlocks& written() noexcept { return shadowed ? *shadow : place; }
  std::uint64_t end_of(const NvmeBlocks& at, std::size_t segment) const noexcept {
    return segment + 1 < at.segments.size() ? at.segments[segment + 1].begin : options.bytes;
  }
};

Error naming(const ShardOptions& shard, const char* doing, Error error) {
  error.message = std::string(doing) + " shard " + shard.name + ": " + error.message;
  return error;
}

void check_shard(const ShardOptions& shard, std::size_t volumes) {
  ARTESIAN_CHECK(shard.bytes > 0 && shard.bytes % sector_size == 0, shard.name, shard.bytes);
  ARTESIAN_CHECK(shard.block_bytes > 0 && shard.block_bytes % sector_size == 0, shard.block_bytes);
  ARTESIAN_CHECK(shard.home != Tier::Nvme || shard.volume < volumes, shard.volume, volumes);
}

/// Moves the segments in this path's file forward by `by` bytes.
void move_segments(NvmeBlocks& place, std::size_t path, std::uint64_t by) noexcept {
  for (Segment& segment : place.segments) {
    if (segment.path == path) segment.offset += by;
  }
}

/// The given volumes, or one for each directory, with equal weights.
std::vector<Volume> volumes_of(const TierStoreOptions& options) {
  ARTESIAN_CHECK(options.disks.empty() || options.disks.size() == options.directories.size());
  std::vector<Volume> volumes;
  for (const auto& paths : options.volumes) volumes.push_back({.paths = paths});
  for (std::uint32_t path = 0; options.volumes.empty() && path < options.directories.size();
       ++path) {
    volumes.push_back({.paths = {path}});
  }
  for (Volume& volume : volumes) volume.weights.assign(volume.paths.size(), 1.0);
  return volumes;
}

}  // namespace

class TierStore::Impl {
 public:
  Impl(const TierStoreOptions& options, aio::Engine& engine)
      : options_(options),
        engine_(engine),
        volumes_(volumes_of(options)),
        disks_(options.directories.size()),
        bytes_(options.directories.size()) {}
  ~Impl();

  Result<void> make_homes(std::vector<ShardOptions> shards, pinned::Pool& device,
                          pinned::Pool& host, FileSystem& files) noexcept;
  Result<void> make_memory_homes(std::vector<ShardOptions> shards, pinned::Pool& device,
                                 pinned::Pool& host) noexcept;
  Result<void> make_swap_files(FileSystem& files, pinned::Pool& staging) noexcept;
  Striping striping() const;
  Striping lay_out();
  Result<void> grow(std::vector<ShardOptions> shards, std::span<const ShardId> shadowed) noexcept;
  std::vector<std::uint64_t> bytes_to_probe() const;
  Result<void> weigh_paths(pinned::Pool& staging) noexcept;
  Result<void> probe(std::uint32_t path, std::uint64_t bytes, double seconds,
                     pinned::Pool& staging) noexcept;
  std::vector<PathDisk> disks_of(const Volume& volume) const;
  void name_disks() noexcept;
  Result<void> close() noexcept;
  void transfer(Transfer& transfer, ShardId id, ByteRange range, BufferLease buffer,
                aio::Operation operation, aio::Priority priority) noexcept;
  Result<void> finish(aio::Completion& completion, std::uint32_t path) noexcept;
  void add_span(const Transfer& transfer, const Shard& shard);
  void check_sealed(Shard& shard, ByteRange range) const noexcept;
  Error timeout(Error error) const;
  Error no_answer(Error error, const std::string& what) const;
  BlockChecksums::Owner owner(std::uint32_t shard) const noexcept {
    return {.run_id = options_.run_id, .rank = options_.rank, .shard = shard};
  }
  Error corrupt(const Shard& shard, std::uint64_t block, BlockChecksums::Finding finding);
  std::uint64_t sum(ShardId id, std::uint64_t block, BlockChecksums::Generation generation,
                    ByteRange part, const std::byte* data) noexcept;

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
  std::deque<Shard> shards_;
  std::vector<std::unique_ptr<SwapFile>> swap_files_;
  std::vector<Volume> volumes_;
  std::vector<PathDisk> disks_;  // one for each directory; speeds are 0 if unknown
  InFlightTable in_flight_;
  std::vector<PathBytes> bytes_;  // one for each directory
  std::atomic<std::uint64_t> blocks_verified_{0};
  std::atomic<std::uint64_t> verify_failures_{0};
  bool close_called_ = false;
  std::uint64_t stalled_ns_ = 0;  // when a wait reached its deadline; 0: a transfer has ended since
  // Set if a disk hung while it was measured. The kernel may still use its file, and nothing shows
  // when that ends, as in_flight_ does not contain those transfers.
  std::optional<Error> abandoned_;
};

TierStore::Impl::~Impl() {
  ARTESIAN_CHECK(close_called_);
  if (swap_files_.empty()) return;
  // close() has reached its deadline: the kernel may still use these descriptors, which must not be
  // reused for other files. They are released with the process; the next run reclaims the files.
  in_flight_.abandon();
  for (auto& swap : swap_files_) keep_for_ever(std::move(swap));
}

Result<void> TierStore::Impl::make_homes(std::vector<ShardOptions> shards, pinned::Pool& device,
                                         pinned::Pool& host, FileSystem& files) noexcept {
  ARTESIAN_TRY_VOID(make_memory_homes(std::move(shards), device, host));
  ARTESIAN_TRY_VOID(make_swap_files(files, host));
  // Small blocks of more state than any disk holds would need more memory than there is.
  for (std::uint32_t index = 0; index < shards_.size(); ++index) {
    shards_[index].place.checksums.emplace(owner(index), shards_[index].blocks);
  }
  return {};
}

Result<void> TierStore::Impl::make_memory_homes(std::vector<ShardOptions> shards,
                                                pinned::Pool& device, pinned::Pool& host) noexcept {
  for (ShardOptions& options : shards) {
    check_shard(options, volumes_.size());
    shards_.emplace_back(std::move(options));
    Shard& shard = shards_.back();
    if (shard.options.home == Tier::Nvme) continue;
    // Homes last for the whole run: they are taken from the high end, so that the low end stays
    // free for staging.
    pinned::Pool& pool = shard.options.home == Tier::Device ? device : host;
    auto lease = pool.lease(shard.options.bytes, pinned::Placement::High);
    if (!lease.has_value()) {
      return naming(shard.options, "cannot place", std::move(lease).error());
    }
    shard.memory = std::move(lease).value();
  }
  return {};
}

/// Uses the weights as they are now.
Striping TierStore::Impl::striping() const {
  return Striping({.volumes = volumes_,
                   .paths = static_cast<std::uint32_t>(options_.directories.size()),
                   .stripe_bytes = options_.stripe_bytes});
}

/// Places the segments of every shard.
Striping TierStore::Impl::lay_out() {
  Striping laid_out = striping();
  for (Shard& shard : shards_) {
    const ShardOptions& options = shard.options;
    if (options.home != Tier::Nvme) continue;
    shard.place.segments = laid_out.place(options.volume, options.bytes, options.block_bytes);
  }
  return laid_out;
}

Result<void> TierStore::Impl::grow(std::vector<ShardOptions> shards,
                                   std::span<const ShardId> shadowed) noexcept {
  Striping laid_out = striping();
  const auto place = [&](const ShardOptions& shard) {
    ARTESIAN_CHECK(shard.home == Tier::Nvme, shard.name);
    return NvmeBlocks{.segments = laid_out.place(shard.volume, shard.bytes, shard.block_bytes),
                      .checksums = {}};
  };
  std::vector<NvmeBlocks> places;
  for (const ShardOptions& shard : shards) {
    check_shard(shard, volumes_.size());
    places.push_back(place(shard));
  }
  for (const ShardId id : shadowed) places.push_back(place(at(id).options));
  const std::vector<std::uint64_t>& payloads = laid_out.payloads();
  // All payloads, before any is allocated.
  for (std::size_t path = 0; path < payloads.size(); ++path) {
    SwapFile& swap = *swap_files_[path];
    if (payloads[path] != 0)
      ARTESIAN_TRY_VOID(swap.grow_into_half(swap.bytes_used() + payloads[path]));
  }
  for (std::size_t path = 0; path < payloads.size(); ++path) {
    if (payloads[path] == 0) continue;
    ARTESIAN_TRY(extent, swap_files_[path]->allocate(payloads[path]));
    for (NvmeBlocks& given : places) move_segments(given, path, extent.offset);
  }
  auto given = places.begin();
  for (ShardOptions& options : shards) {
    const auto index = static_cast<std::uint32_t>(shards_.size());
    Shard& shard = shards_.emplace_back(std::move(options));
    shard.place = std::move(*given++);
    shard.place.checksums.emplace(owner(index), shard.blocks);
  }
  for (const ShardId id : shadowed) {
    ARTESIAN_CHECK(!at(id).shadow.has_value(), at(id).options.name);
    const std::uint32_t seed = static_cast<std::uint32_t>(id) | shadow_bit;
    at(id).shadow = std::move(*given++);
    at(id).shadow->checksums.emplace(owner(seed), at(id).blocks);
  }
  ARTESIAN_CHECK(given == places.end());
  return {};
}

/// Files on one file system share its disk, and so do those on several file systems of one disk.
void TierStore::Impl::name_disks() noexcept {
  std::vector<std::vector<std::string>> names(swap_files_.size());
  for (std::size_t path = 0; path < names.size() && names.size() > 1; ++path) {
    const auto status = swap_files_[path]->file().status();
    names[path] = disk_names_of(options_.directories[path]);
    if (status.has_value()) names[path].push_back(fmt::format("device {}", status->device));
  }
  const std::vector<std::uint64_t> groups = groups_by_disk(names);
  for (std::size_t path = 0; path < names.size(); ++path) disks_[path].device = groups[path];
  if (!options_.disks.empty()) disks_ = options_.disks;
}

/// Creates the swap files. If bytes are divided by speed, a file must exist before it can be
/// measured; it gets its size afterwards.
Result<void> TierStore::Impl::make_swap_files(FileSystem& files, pinned::Pool& staging) noexcept {
  const bool striped = std::any_of(volumes_.begin(), volumes_.end(),
                                   [](const Volume& volume) { return volume.paths.size() > 1; });
  std::vector<std::uint64_t> payloads = lay_out().payloads();
  for (std::size_t path = 0; path < payloads.size(); ++path) {
    const SwapFileOptions options{.directory = options_.directories[path],
                                  .rank = options_.rank,
                                  .run_id = options_.run_id,
                                  .bytes = striped ? 0 : payloads[path]};
    ARTESIAN_TRY(swap, SwapFile::create(options, files));
    swap_files_.push_back(std::move(swap));
  }
  ARTESIAN_CHECK(swap_files_.size() == payloads.size(), swap_files_.size(), payloads.size());
  name_disks();
  if (striped) {
    ARTESIAN_TRY_VOID(weigh_paths(staging));
    payloads = lay_out().payloads();
  }
  for (std::size_t path = 0; path < payloads.size(); ++path) {
    if (payloads[path] == 0) continue;
    if (striped) ARTESIAN_TRY_VOID(swap_files_[path]->grow(payloads[path]));
    ARTESIAN_TRY(extent, swap_files_[path]->allocate(payloads[path]));
    ARTESIAN_CHECK(extent.length == payloads[path], extent.length, payloads[path]);
    for (Shard& shard : shards_) move_segments(shard.place, path, extent.offset);
  }
  return {};
}

/// Returns, for each path whose speed is needed but unknown, how much of its file to measure.
std::vector<std::uint64_t> TierStore::Impl::bytes_to_probe() const {
  std::vector<std::uint64_t> totals(volumes_.size(), 0);
  for (const Shard& shard : shards_) {
    if (shard.options.home == Tier::Nvme) totals[shard.options.volume] += shard.options.bytes;
  }
  std::vector<std::uint64_t> bytes(disks_.size(), 0);
  for (std::size_t volume = 0; volume < totals.size(); ++volume) {
    const auto& paths = volumes_[volume].paths;
    const std::uint64_t each = std::min(totals[volume] / paths.size(), probe_bytes);
    if (paths.size() == 1 || each < probe_bytes_min) continue;
    for (const std::uint32_t path : paths) {
      if (disks_[path].speed.read_bytes_per_s == 0) bytes[path] = std::max(bytes[path], each);
    }
  }
  return bytes;
}

std::vector<PathDisk> TierStore::Impl::disks_of(const Volume& volume) const {
  std::vector<PathDisk> disks;
  for (const std::uint32_t path : volume.paths) disks.push_back(disks_[path]);
  return disks;
}

/// Sets the weights of the paths by speed. If a disk's speed cannot be measured, as the disk is
/// full, no memory is free or there is too little to place on it, weights stay equal; lack of space
/// is reported when all of it is reserved.
Result<void> TierStore::Impl::weigh_paths(pinned::Pool& staging) noexcept {
  const std::vector<std::uint64_t> bytes = bytes_to_probe();
  const auto count =
      bytes.size() - static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), 0u));
  for (std::uint32_t path = 0; path < bytes.size(); ++path) {
    if (bytes[path] == 0) continue;
    auto grown = swap_files_[path]->grow(bytes[path]);
    if (!grown.has_value() && grown.error().code == ErrorCode::NoSpace) continue;
    ARTESIAN_TRY_VOID(std::move(grown));
    const double seconds = probe_seconds / static_cast<double>(count);
    auto probed = probe(path, round_down(bytes[path], sector_size), seconds, staging);
    if (!probed.has_value() && probed.error().code == ErrorCode::Exhausted) continue;
    ARTESIAN_TRY_VOID(std::move(probed));
  }
  for (Volume& volume : volumes_) {
    volume.weights = stripe_weights(disks_of(volume));
    ARTESIAN_CHECK(volume.weights.size() == volume.paths.size(), volume.weights.size());
  }
  return {};
}

Result<void> TierStore::Impl::probe(std::uint32_t path, std::uint64_t bytes, double seconds,
                                    pinned::Pool& staging) noexcept {
  const Extent range{.offset = superblock_region_size, .length = bytes};
  auto speed = tiering::probe_disk(swap_files_[path]->file(), range, engine_.for_path(path),
                                   staging, {.bytes = probe_bytes, .seconds = seconds}, deadline());
  if (!speed.has_value() && speed.error().code == ErrorCode::Timeout) {
    stalled_ns_ = monotonic_ns();
    abandoned_ = no_answer(speed.error(), ", measuring it: " + speed.error().message);
    return *abandoned_;
  }
  if (!speed.has_value()) return std::move(speed).error();
  disks_[path].speed = *speed;
  return {};
}

Result<void> TierStore::Impl::close() noexcept {
  close_called_ = true;
  if (abandoned_.has_value()) return *abandoned_;
  if (in_flight_.any()) {
    auto drained = engine_.drain(deadline());
    // Only our own transfers matter, as others may share the engine.
    if (!drained.has_value() && in_flight_.any()) {
      stalled_ns_ = monotonic_ns();
      return timeout(std::move(drained).error());
    }
    ARTESIAN_CHECK(!in_flight_.any());
  }
  Result<void> outcome;
  // In reverse order of creation, as a directory may lie inside another.
  for (auto swap = swap_files_.rbegin(); swap != swap_files_.rend(); ++swap) {
    auto closed = (*swap)->close();
    if (outcome.has_value() && !closed.has_value()) outcome = std::move(closed);
  }
  swap_files_.clear();
  shards_.clear();
  return outcome;
}

void TierStore::Impl::check_sealed(Shard& shard, ByteRange range) const noexcept {
  const std::uint64_t block_bytes = shard.options.block_bytes;
  const std::uint64_t end = range.offset + range.length;
  ARTESIAN_CHECK(range.offset % block_bytes == 0, range.offset, block_bytes);
  ARTESIAN_CHECK(end % block_bytes == 0 || end == shard.options.bytes, end, block_bytes);
  if (options_.verify == Verify::Off) return;
  for (std::uint64_t block = range.offset / block_bytes; block * block_bytes < end; ++block) {
    ARTESIAN_CHECK(shard.written().checksums->generation(block) != 0, shard.options.name, block);
  }
}

void TierStore::Impl::transfer(Transfer& transfer, ShardId id, ByteRange range, BufferLease buffer,
                               aio::Operation operation, aio::Priority priority) noexcept {
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
  transfer.begin(operation, std::move(buffer));
  const NvmeBlocks& place = writes ? shard.written() : shard.place;
  const std::uint64_t end = range.offset + range.length;
  std::size_t index = place.segment_of(range.offset);
  for (std::uint64_t at = range.offset; at < end; ++index) {
    ARTESIAN_CHECK(index < place.segments.size(), index, place.segments.size());
    const Segment& segment = place.segments[index];
    ARTESIAN_CHECK(segment.path < swap_files_.size() && segment.begin <= at, segment.path, at);
    const std::uint64_t length = std::min(end, shard.end_of(place, index)) - at;
    ARTESIAN_CHECK(length != 0 && length <= end - at, length, at, end);
    const aio::Request request{.operation = operation,
                               .priority = priority,
                               .file = &swap_files_[segment.path]->file(),
                               .offset = segment.offset + (at - segment.begin),
                               .length = length};
    ARTESIAN_CHECK(request.offset % request.file->alignment() == 0, request.offset);
    aio::Completion& completion = transfer.add_part(segment.path).completion;
    in_flight_.begin(completion, static_cast<std::uint32_t>(id), request,
                     transfer.lend(at - range.offset, length), deadline());
    (writes ? bytes_[segment.path].written : bytes_[segment.path].read) += length;
    aio::Completion* const list[] = {&completion};
    engine_.for_path(segment.path).submit(list);
    at += length;
  }
}

Result<void> TierStore::Impl::finish(aio::Completion& completion, std::uint32_t path) noexcept {
  auto waited = engine_.for_path(path).wait(completion, deadline());
  if (!waited.has_value()) {
    stalled_ns_ = monotonic_ns();
    return timeout(std::move(waited).error());
  }
  if (completion.finished_ns() > stalled_ns_) stalled_ns_ = 0;
  in_flight_.settle(completion);
  ARTESIAN_TRY(moved, completion.result());
  ARTESIAN_CHECK(moved == completion.request().length, moved, completion.request().length);
  return {};
}

void TierStore::Impl::add_span(const Transfer& transfer, const Shard& shard) {
  if (options_.timeline == nullptr) return;
  std::uint64_t begin_ns = ~std::uint64_t{0};
  std::uint64_t end_ns = 0;
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < transfer.count_; ++index) {
    const aio::Completion& part = transfer.part(index).completion;
    begin_ns = std::min(begin_ns, part.submitted_ns());
    end_ns = std::max(end_ns, part.finished_ns());
    bytes += part.request().length;
  }
  const bool reads = transfer.operation_ == aio::Operation::Read;
  options_.timeline->add(reads ? Lane::NvmeRead : Lane::NvmeWrite, shard.options.name, begin_ns,
                         end_ns, bytes);
}

Error TierStore::Impl::timeout(Error error) const {
  return no_answer(std::move(error), "; in flight: " + in_flight_.describe(monotonic_ns()));
}

Error TierStore::Impl::no_answer(Error error, const std::string& what) const {
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", options_.wait_seconds);
  error.message = "no answer from the disk within " + std::string(seconds) + " s" + what;
  return error;
}

Error TierStore::Impl::corrupt(const Shard& shard, std::uint64_t block,
                               BlockChecksums::Finding finding) {
  verify_failures_.fetch_add(1, std::memory_order_relaxed);
  const bool never = finding == BlockChecksums::Finding::NeverSealed;
  Error error = make_error(
      ErrorCode::Corrupt,
      fmt::format("shard {}, block {}{}", shard.options.name, block,
                  never ? ": was never written, so there is nothing to read"
                        : fmt::format(": is not what was written (checksum differs at generation "
                                      "{}): flipped, stale or misplaced bytes; check the disk",
                                      shard.place.checksums->generation(block))));
  const std::uint64_t offset = block * shard.options.block_bytes;
  error.offset = offset;
  error.length = std::min(shard.options.block_bytes, shard.options.bytes - offset);
  if (shard.options.home == Tier::Nvme) {
    const Segment& segment = shard.place.segments[shard.place.segment_of(offset)];
    error.file = swap_files_[segment.path]->file().path();
    error.offset = segment.offset + (offset - segment.begin);
  }
  return error;
}

std::uint64_t TierStore::Impl::sum(ShardId id, std::uint64_t block,
                                   BlockChecksums::Generation generation, ByteRange part,
                                   const std::byte* data) noexcept {
  Shard& shard = at(id);
  ARTESIAN_CHECK(block < shard.blocks, shard.options.name, block);
  if (!compares(block)) return 0;
  const bool sealing = generation == BlockChecksums::Generation::Next;
  const NvmeBlocks& place = sealing ? shard.written() : shard.place;
  const std::uint64_t begin = block * shard.options.block_bytes;
  const std::uint64_t length = std::min(shard.options.block_bytes, shard.options.bytes - begin);
  const std::uint64_t end = part.offset + part.length;
  ARTESIAN_CHECK(end == length || (end < length && end % checksum_piece_bytes == 0), end, length);
  return place.checksums->sum(block, generation, part.offset, data, part.length);
}

Result<std::unique_ptr<TierStore>> TierStore::open(const TierStoreOptions& options,
                                                   std::vector<ShardOptions> shards,
                                                   pinned::Pool& device, pinned::Pool& host,
                                                   aio::Engine& engine,
                                                   FileSystem& files) noexcept {
  auto impl = std::make_unique<Impl>(options, engine);
  auto made = impl->make_homes(std::move(shards), device, host, files);
  if (made.has_value()) return std::unique_ptr<TierStore>(new TierStore(std::move(impl)));
  (void)impl->close().has_value();  // the first error is the one to report
  return std::move(made).error();
}

TierStore::TierStore(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

TierStore::~TierStore() = default;  // Impl checks that close() was called

Result<void> TierStore::close() noexcept {
  return impl_->close();
}

Result<void> TierStore::grow(std::vector<ShardOptions> shards,
                             std::span<const ShardId> shadowed) noexcept {
  return impl_->grow(std::move(shards), shadowed);
}

std::size_t TierStore::size() const noexcept {
  return impl_->shards_.size();
}

void TierStore::begin_shadow(ShardId id) noexcept {
  Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(shard.shadow.has_value() && !shard.shadowed, shard.options.name);
  shard.shadowed = true;
  shard.sealed_until = shard.shadow->seals() + shard.blocks;
}

void TierStore::commit_shadow(ShardId id) noexcept {
  Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(shard.shadowed && shard.shadow->seals() == shard.sealed_until, shard.options.name);
  std::swap(shard.place, *shard.shadow);
  shard.shadowed = false;
}

void TierStore::drop_shadow(ShardId id) noexcept {
  Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(shard.shadowed, shard.options.name);
  shard.shadowed = false;
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

void TierStore::read(Transfer& transfer, ShardId id, ByteRange range, BufferLease target,
                     aio::Priority priority) noexcept {
  impl_->transfer(transfer, id, range, std::move(target), aio::Operation::Read, priority);
}

void TierStore::write(Transfer& transfer, ShardId id, ByteRange range, BufferLease source,
                      aio::Priority priority) noexcept {
  impl_->transfer(transfer, id, range, std::move(source), aio::Operation::Write, priority);
}

Result<void> TierStore::wait(Transfer& transfer, ShardId id) noexcept {
  const Shard& shard = impl_->at(id);
  const char* const doing = transfer.operation_ == aio::Operation::Read ? "reading" : "writing";
  Result<void> first;
  for (std::size_t index = 0; index < transfer.count_; ++index) {
    Transfer::Part& part = transfer.part(index);
    auto finished = impl_->finish(part.completion, part.path);
    if (finished.has_value()) continue;
    // Reports a transfer in flight before other errors, as its buffer cannot be reused.
    if (!part.completion.ready()) return naming(shard.options, doing, std::move(finished).error());
    if (first.has_value()) first = std::move(finished);
  }
  if (!first.has_value()) return naming(shard.options, doing, std::move(first).error());
  impl_->add_span(transfer, shard);
  return {};
}

Result<void> TierStore::finish_writes(ShardId id) noexcept {
  const auto shard = static_cast<std::uint32_t>(id);
  while (aio::Completion* write = impl_->in_flight_.write_of(shard)) {
    std::uint32_t path = 0;
    while (&impl_->swap_files_[path]->file() != write->request().file) {
      ++path;
      ARTESIAN_CHECK(path < impl_->swap_files_.size(), path);
    }
    auto finished = impl_->finish(*write, path);
    if (!finished.has_value()) {
      return naming(impl_->at(id).options, "writing", std::move(finished).error());
    }
  }
  return {};
}

bool TierStore::writing(ShardId id) const noexcept {
  return impl_->in_flight_.writing(static_cast<std::uint32_t>(id));
}

void TierStore::seal(ShardId id, std::uint64_t block, const std::byte* data) noexcept {
  seal_sum(id, block, sum_to_seal(id, block, {0, block_length(id, block)}, data));
}

std::uint64_t TierStore::sum_to_seal(ShardId id, std::uint64_t block, ByteRange part,
                                     const std::byte* data) const noexcept {
  return impl_->sum(id, block, BlockChecksums::Generation::Next, part, data);
}

std::uint64_t TierStore::sum_to_verify(ShardId id, std::uint64_t block, ByteRange part,
                                       const std::byte* data) const noexcept {
  return impl_->sum(id, block, BlockChecksums::Generation::Current, part, data);
}

void TierStore::seal_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept {
  impl_->at(id).written().checksums->seal(block, sum);
}

Result<void> TierStore::verify(ShardId id, std::uint64_t block, const std::byte* data) noexcept {
  return verify_sum(id, block, sum_to_verify(id, block, {0, block_length(id, block)}, data));
}

Result<void> TierStore::verify_sum(ShardId id, std::uint64_t block, std::uint64_t sum) noexcept {
  const Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(block < shard.blocks, shard.options.name, block);
  if (!impl_->compares(block)) return {};
  impl_->blocks_verified_.fetch_add(1, std::memory_order_relaxed);
  const auto finding = shard.place.checksums->compare(block, sum);
  if (finding == BlockChecksums::Finding::Match) return {};
  return impl_->corrupt(shard, block, finding);
}

std::uint64_t TierStore::block_length(ShardId id, std::uint64_t block) const noexcept {
  const Shard& shard = impl_->at(id);
  ARTESIAN_CHECK(block < shard.blocks, shard.options.name, block, shard.blocks);
  const std::uint64_t offset = block * shard.options.block_bytes;
  return std::min(shard.options.block_bytes, shard.options.bytes - offset);
}

Result<DiskSpeed> TierStore::probe_disk(std::uint32_t volume, pinned::Pool& staging) noexcept {
  ARTESIAN_CHECK(volume < impl_->volumes_.size(), volume, impl_->volumes_.size());
  for (const PathBytes& bytes : impl_->bytes_) {
    ARTESIAN_CHECK(bytes.written == 0, bytes.written);  // measuring overwrites its blocks
  }
  Volume used;  // a small state need not use every path
  const Volume& all = impl_->volumes_[volume];
  for (std::size_t index = 0; index < all.paths.size(); ++index) {
    if (impl_->swap_files_[all.paths[index]]->bytes_used() == 0) continue;
    used.paths.push_back(all.paths[index]);
    used.weights.push_back(all.weights[index]);
  }
  const double seconds = probe_seconds / 2 / static_cast<double>(all.paths.size());
  for (const std::uint32_t path : used.paths) {
    if (impl_->disks_[path].speed.read_bytes_per_s > 0) continue;
    const std::uint64_t bytes = impl_->swap_files_[path]->bytes_used();
    ARTESIAN_TRY_VOID(impl_->probe(path, bytes, seconds, staging));
  }
  return striped_speed(impl_->disks_of(used), used.weights);
}

const std::vector<PathDisk>& TierStore::disks() const noexcept {
  return impl_->disks_;
}

std::vector<PathShare> TierStore::shares(std::uint32_t volume) const {
  ARTESIAN_CHECK(volume < impl_->volumes_.size(), volume, impl_->volumes_.size());
  const auto& [paths, weights] = impl_->volumes_[volume];
  double whole = 0;
  for (const double weight : weights) whole += weight;
  ARTESIAN_CHECK(paths.empty() || whole > 0.0, whole);
  std::vector<PathShare> shares;
  for (std::size_t index = 0; index < paths.size(); ++index) {
    shares.push_back({.path = paths[index],
                      .share = weights[index] / whole,
                      .speed = impl_->disks_[paths[index]].speed});
  }
  return shares;
}

const std::vector<PathBytes>& TierStore::path_bytes() const noexcept {
  return impl_->bytes_;
}

Timeline* TierStore::timeline() const noexcept {
  return impl_->options_.timeline;
}

TierStoreStatistics TierStore::statistics() const noexcept {
  TierStoreStatistics all{
      .blocks_verified = impl_->blocks_verified_.load(std::memory_order_relaxed),
      .verify_failures = impl_->verify_failures_.load(std::memory_order_relaxed)};
  for (const PathBytes& path : impl_->bytes_) {
    all.bytes_read += path.read;
    all.bytes_written += path.written;
  }
  return all;
}

}  // namespace artesian::tiering
