#include "tiering/shard_stream.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "tiering/pipeline.h"

namespace artesian::tiering {
namespace {

std::uint64_t whole_blocks(const TierStore& store, ShardId shard, std::uint64_t piece_bytes) {
  const ShardOptions& options = store.shard(shard);
  ARTESIAN_CHECK(options.home == Tier::Nvme);
  const std::uint64_t block = options.block_bytes;
  return std::min(round_up(std::max(piece_bytes, block), block), round_up(options.bytes, block));
}

}  // namespace

/// The caller's piece is held, so its buffer is not free.
class ShardStream::Pieces : public Pipeline<Pieces> {
 public:
  Pieces(std::unique_ptr<StagingRing> ring, ShardId shard, bool reads)
      : Pipeline(*ring, nullptr), ring_(std::move(ring)), shard_(shard), reads_(reads) {}

  Result<void> begin() {
    std::vector<RingTask> tasks;
    for (std::uint64_t index = 0; index * ring().item_bytes() < store().shard(shard_).bytes;
         ++index) {
      tasks.push_back({0, index});
    }
    return Order::begin(tasks);
  }
  /// The next piece, or nothing at the end of the shard.
  Result<std::span<std::byte>> next() {
    if (!reads_) write_held();
    held_ = nullptr;
    if (!under_way()) return std::span<std::byte>();
    ARTESIAN_TRY_VOID(advance_to(++given_));
    return std::span<std::byte>(held_->data(), range_of(given_ - 1).length);
  }
  /// Seals and starts writing the piece that the caller has filled.
  void write_held() {
    if (held_ == nullptr) return;
    const ByteRange range = range_of(given_ - 1);
    for (std::uint64_t done = 0; done < range.length; done += block_bytes()) {
      store().seal(shard_, (range.offset + done) / block_bytes(), held_->data() + done);
    }
    std::exchange(held_, nullptr)->write(shard_, range, 0);
  }

 private:
  friend Order;
  RingNeed need(const RingTask&) const noexcept {
    return reads_ ? RingNeed::ToRead : RingNeed::ToWrite;
  }
  bool is_free(const StagingItem& item) const noexcept { return &item != held_ && item.idle(); }
  Result<void> read(const RingTask& task, StagingItem& item) noexcept {
    item.read(shard_, range_of(task.index), 0, aio::Priority::Demand);
    return {};
  }
  Result<void> work(std::size_t, const RingTask& task, StagingItem* item) noexcept {
    ARTESIAN_TRY_VOID(Pipeline::finish(*item));
    held_ = item;
    if (!reads_) return {};
    const ByteRange range = range_of(task.index);
    for (std::uint64_t done = 0; done < range.length; done += block_bytes()) {
      const std::uint64_t block = (range.offset + done) / block_bytes();
      ARTESIAN_TRY_VOID(store().verify(shard_, block, item->data() + done));
    }
    return {};
  }
  TierStore& store() const noexcept { return ring().store(); }
  std::uint64_t block_bytes() const noexcept { return store().shard(shard_).block_bytes; }
  ByteRange range_of(std::uint64_t index) const noexcept {
    const std::uint64_t piece = ring().item_bytes();
    const std::uint64_t offset = index * piece;
    return {offset, std::min(store().shard(shard_).bytes - offset, piece)};
  }
  const std::unique_ptr<StagingRing> ring_;
  const ShardId shard_;
  const bool reads_;
  StagingItem* held_ = nullptr;
  std::size_t given_ = 0;  // number of pieces
};

ShardStream::ShardStream(std::unique_ptr<Pieces> pieces) noexcept : pieces_(std::move(pieces)) {}
ShardStream::ShardStream(ShardStream&&) noexcept = default;

ShardStream::~ShardStream() {
  if (pieces_) static_cast<void>(pieces_->drain().has_value());
}

Result<std::unique_ptr<ShardStream::Pieces>> ShardStream::open(TierStore& store, ShardId shard,
                                                               pinned::Pool& pool,
                                                               const ShardStreamOptions& options,
                                                               bool reads) {
  ARTESIAN_CHECK(options.buffers >= 1 && !(reads && store.writing(shard)), options.buffers);
  ARTESIAN_TRY(ring,
               StagingRing::create(store, pool, whole_blocks(store, shard, options.piece_bytes),
                                   options.buffers));
  auto pieces = std::make_unique<Pieces>(std::move(ring), shard, reads);
  ARTESIAN_TRY_VOID(pieces->begin());
  return pieces;
}

Result<ShardReader> ShardReader::open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                      const ShardStreamOptions& options) {
  ARTESIAN_TRY(pieces, ShardStream::open(store, shard, pool, options, /*reads=*/true));
  return ShardReader(std::move(pieces));
}

Result<std::span<const std::byte>> ShardReader::next() {
  ARTESIAN_TRY(piece, pieces_->next());
  return std::span<const std::byte>(piece);
}

Result<void> ShardReader::close() {
  return pieces_->drain();
}

Result<ShardWriter> ShardWriter::open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                      const ShardStreamOptions& options) {
  ARTESIAN_TRY(pieces, ShardStream::open(store, shard, pool, options, /*reads=*/false));
  return ShardWriter(std::move(pieces));
}

Result<std::span<std::byte>> ShardWriter::next() {
  return pieces_->next();
}

Result<void> ShardWriter::close() {
  pieces_->write_held();
  return pieces_->drain();
}

}  // namespace artesian::tiering
