#include "tiering/shard_stream.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace artesian::tiering {
namespace {

std::uint64_t whole_blocks(const TierStore& store, ShardId shard, std::uint64_t piece_bytes) {
  const ShardOptions& options = store.shard(shard);
  ARTESIAN_CHECK(options.home == Tier::Nvme);
  const std::uint64_t block = options.block_bytes;
  return std::min(round_up(std::max(piece_bytes, block), block), round_up(options.bytes, block));
}

}  // namespace

Result<ShardReader> ShardReader::open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                      const ShardStreamOptions& options) {
  ARTESIAN_CHECK(options.buffers >= 1 && !store.writing(shard), options.buffers);
  ShardReader reader(store, shard, whole_blocks(store, shard, options.piece_bytes));
  ARTESIAN_TRY(ring, StagingRing::create(store, pool, reader.piece_bytes_, options.buffers));
  reader.ring_ = std::move(ring);
  for (std::uint32_t piece = 0; piece < options.buffers; ++piece) reader.start_piece();
  return reader;
}

void ShardReader::start_piece() {
  ARTESIAN_CHECK(offset_given_ <= offset_asked_ && offset_asked_ <= store_->shard(shard_).bytes,
                 offset_given_, offset_asked_);
  const std::uint64_t left = store_->shard(shard_).bytes - offset_asked_;
  if (left == 0) return;
  const std::uint64_t length = std::min(left, piece_bytes_);
  ring_->at(turn_asked_++).read(shard_, {offset_asked_, length}, 0, aio::Priority::Demand);
  offset_asked_ += length;
}

Result<std::span<const std::byte>> ShardReader::next() {
  if (offset_given_ != 0) start_piece();  // into the buffer of the piece given last
  if (offset_given_ == store_->shard(shard_).bytes) return std::span<const std::byte>();
  ARTESIAN_CHECK(turn_given_ < turn_asked_, turn_given_, turn_asked_);
  StagingItem& item = ring_->at(turn_given_++);
  ARTESIAN_TRY_VOID(item.finish());
  const std::uint64_t length = std::min(store_->shard(shard_).bytes - offset_given_, piece_bytes_);
  const std::uint64_t block_bytes = store_->shard(shard_).block_bytes;
  for (std::uint64_t done = 0; done < length; done += block_bytes) {
    const std::uint64_t block = (offset_given_ + done) / block_bytes;
    ARTESIAN_TRY_VOID(store_->verify(shard_, block, item.data() + done));
  }
  offset_given_ += length;
  return std::span<const std::byte>(item.data(), length);
}

ShardReader::~ShardReader() {
  if (ring_) static_cast<void>(ring_->finish().has_value());
}

Result<void> ShardReader::close() {
  return ring_->finish();
}

Result<ShardWriter> ShardWriter::open(TierStore& store, ShardId shard, pinned::Pool& pool,
                                      const ShardStreamOptions& options) {
  ARTESIAN_CHECK(options.buffers >= 1, options.buffers);
  ShardWriter writer(store, shard, whole_blocks(store, shard, options.piece_bytes));
  ARTESIAN_TRY(ring, StagingRing::create(store, pool, writer.piece_bytes_, options.buffers));
  writer.ring_ = std::move(ring);
  return writer;
}

ShardWriter::~ShardWriter() {
  if (ring_) static_cast<void>(ring_->finish().has_value());
}

/// Seals and starts writing the piece that the caller has filled.
void ShardWriter::write_pending() {
  if (pending_length_ == 0) return;
  ARTESIAN_CHECK(offset_ + pending_length_ <= store_->shard(shard_).bytes, offset_,
                 pending_length_);
  StagingItem& item = ring_->at(turn_++);
  const std::uint64_t block_bytes = store_->shard(shard_).block_bytes;
  for (std::uint64_t done = 0; done < pending_length_; done += block_bytes) {
    store_->seal(shard_, (offset_ + done) / block_bytes, item.data() + done);
  }
  item.write(shard_, {offset_, pending_length_}, 0);
  offset_ += pending_length_;
  pending_length_ = 0;
}

Result<std::span<std::byte>> ShardWriter::next() {
  write_pending();
  const std::uint64_t length = std::min(store_->shard(shard_).bytes - offset_, piece_bytes_);
  if (length == 0) return std::span<std::byte>();
  StagingItem& item = ring_->at(turn_);
  ARTESIAN_TRY_VOID(item.finish());
  pending_length_ = length;
  return std::span<std::byte>(item.data(), length);
}

Result<void> ShardWriter::close() {
  write_pending();
  return ring_->finish();
}

}  // namespace artesian::tiering
