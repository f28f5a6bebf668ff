#include "tiering/snapshot_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"
#include "kernels/checksum.h"
#include "tiering/block_checksums.h"
#include "tiering/snapshot_sums.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t head_piece_bytes = 1 << 20;

Result<std::unique_ptr<aio::Engine>> make_own_engine(double stop_seconds) noexcept {
  aio::EngineOptions options;
  options.queue_depth = 4;
  options.stop_seconds = stop_seconds;
  return aio::make_best_engine(options);
}

}  // namespace

std::uint64_t SnapshotSeed::of_block(std::uint64_t block) const noexcept {
  const std::array<std::uint64_t, 4> place{checkpoint, rank, block, step};
  return kernels::checksum64(place.data(), sizeof(place), 0);
}

SnapshotFile::SnapshotFile(std::vector<SnapshotBlock> blocks, SnapshotFileOptions options) noexcept
    : blocks_(std::move(blocks)),
      options_(std::move(options)),
      sums_(blocks_.size(), 0),
      has_(blocks_.size(), 0) {
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const SnapshotBlock& block = blocks_[index];
    ARTESIAN_CHECK(
        block.offset % SnapshotBlock::grain == 0 && block.length % SnapshotBlock::grain == 0,
        block.offset);
    ARTESIAN_CHECK(block.length > 0 && block.length <= SnapshotBlock::bytes_max, block.length);
    if (index == 0) continue;
    const SnapshotBlock& before = blocks_[index - 1];
    ARTESIAN_CHECK(block.offset == before.offset + before.length, block.offset, before.offset);
  }
}

Result<std::unique_ptr<SnapshotFile>> SnapshotFile::create(std::unique_ptr<File> file,
                                                           std::vector<SnapshotBlock> blocks,
                                                           SnapshotFileOptions options) noexcept {
  ARTESIAN_CHECK(file != nullptr);
  auto engine =
      options.make_engine ? options.make_engine() : make_own_engine(options.stall_seconds);
  if (!engine.has_value()) return std::move(engine).error();
  std::unique_ptr<SnapshotFile> snapshot(new SnapshotFile(std::move(blocks), std::move(options)));
  snapshot->transfers_ = std::make_unique<Transfers>();
  snapshot->transfers_->file = std::move(file);
  snapshot->transfers_->engine = std::move(engine).value();
  return snapshot;
}

SnapshotFile::~SnapshotFile() {
  (void)finish().has_value();  // the caller could have asked for the fault
  ARTESIAN_CHECK(in_flight_ == 0, in_flight_);
}

std::uint64_t SnapshotFile::sum(std::uint64_t block, ByteRange part,
                                const std::byte* data) const noexcept {
  ARTESIAN_CHECK(part.offset + part.length <= blocks_[block].length, part.offset, part.length);
  return BlockChecksums::sum_of_pieces(options_.seed.of_block(block), part.offset, data,
                                       part.length);
}

SnapshotFile::Slot* SnapshotFile::free_slot() noexcept {
  for (auto& slot : transfers_->slots) {
    if (!slot->used) return slot.get();
  }
  if (transfers_->slots.size() == writes_max) return nullptr;
  return transfers_->slots.emplace_back(std::make_unique<Slot>()).get();
}

SnapshotFile::Slot* SnapshotFile::slot_of(std::uint64_t block) noexcept {
  if (transfers_ == nullptr) return nullptr;
  for (auto& slot : transfers_->slots) {
    if (slot->used && slot->block == block) return slot.get();
  }
  return nullptr;
}

SnapshotFile::Slot* SnapshotFile::any_used() noexcept {
  for (auto& slot : transfers_->slots) {
    if (slot->used) return slot.get();
  }
  return nullptr;
}

void SnapshotFile::write(std::uint64_t block, BufferLease bytes) noexcept {
  ARTESIAN_CHECK(block < blocks_.size(), block, blocks_.size());
  const SnapshotBlock& place = blocks_[block];
  ARTESIAN_CHECK(bytes.size() >= place.length, bytes.size(), place.length);
  reap();
  // Two writes of one block might reach the disk in either order.
  while (!failed_ && slot_of(block) != nullptr) wait_for_one();
  Slot* slot = nullptr;
  while (!failed_ && slot == nullptr) {
    slot = free_slot();
    if (slot == nullptr) wait_for_one();
  }
  if (failed_) return;
  const aio::Request request{.operation = aio::Operation::Write,
                             .priority = aio::Priority::WriteBack,
                             .file = transfers_->file.get(),
                             .offset = place.offset,
                             .length = place.length};
  slot->completion.prepare(request, std::move(bytes));
  slot->block = block;
  slot->used = true;
  if (std::exchange(has_[block], 1) == 0) bytes_given_ += place.length;
  ++in_flight_;
  ARTESIAN_CHECK(bytes_given_ <= bytes_of_blocks(), bytes_given_, bytes_of_blocks());
  aio::Completion* const completion = &slot->completion;
  transfers_->engine->submit({&completion, 1});
}

void SnapshotFile::forget(std::uint64_t block) noexcept {
  ARTESIAN_CHECK(block < blocks_.size(), block, blocks_.size());
  if (std::exchange(has_[block], 0) != 0) bytes_given_ -= blocks_[block].length;
}

std::uint64_t SnapshotFile::bytes_of_blocks() const noexcept {
  if (blocks_.empty()) return 0;
  return blocks_.back().offset + blocks_.back().length - blocks_.front().offset;
}

void SnapshotFile::reap() noexcept {
  if (transfers_ == nullptr) return;
  for (auto& slot : transfers_->slots) {
    if (!slot->used || !slot->completion.ready()) continue;
    slot->used = false;
    --in_flight_;
    auto outcome = slot->completion.result();
    slot->completion.take_buffer().reset();
    if (outcome.has_value()) {
      bytes_written_ += *outcome;
    } else {
      fail(std::move(outcome).error());
    }
  }
}

void SnapshotFile::fail(Error error) noexcept {
  if (!std::exchange(failed_, true)) fault_ = std::move(error);
}

void SnapshotFile::wait_for_one() noexcept {
  ARTESIAN_CHECK(in_flight_ != 0);
  const std::uint32_t before = in_flight_;
  reap();
  if (in_flight_ < before) return;
  Slot* const slot = any_used();
  ARTESIAN_CHECK(slot != nullptr);
  auto waited =
      transfers_->engine->wait(slot->completion, Deadline::after_seconds(options_.stall_seconds));
  const bool in_time = waited.has_value();
  reap();
  if (in_flight_ < before) return;
  ARTESIAN_CHECK(!in_time, before);
  give_up(std::move(waited).error());
}

void SnapshotFile::give_up(Error cause) noexcept {
  cause.message = "the disk of the checkpoint does not answer: " + cause.message;
  cause.file = transfers_->file->path();
  fail(std::move(cause));
  for (auto& slot : transfers_->slots) {
    if (!slot->used) continue;
    transfers_->engine->abandon(slot->completion);
    slot->completion.take_buffer().reset();
    slot->used = false;
    --in_flight_;
  }
  ARTESIAN_CHECK(in_flight_ == 0, in_flight_);
  keep_for_ever(std::move(transfers_));
}

Result<void> SnapshotFile::finish() noexcept {
  while (in_flight_ != 0) wait_for_one();
  if (failed_) return fault_;
  return {};
}

Result<void> SnapshotFile::sync(std::string_view head) noexcept {
  ARTESIAN_CHECK(in_flight_ == 0, in_flight_);
  if (failed_) return fault_;
  ARTESIAN_CHECK(std::count(has_.begin(), has_.end(), 0) == 0, has_.size());
  ARTESIAN_CHECK(blocks_.empty() || head.size() == blocks_.front().offset, head.size());
  for (std::uint64_t done = 0; done < head.size(); done += head_piece_bytes) {
    const std::uint64_t piece = std::min<std::uint64_t>(head.size() - done, head_piece_bytes);
    ARTESIAN_TRY_VOID(transfers_->file->write_at(head.data() + done, piece, done));
  }
  return transfers_->file->sync();
}

std::string SnapshotFile::sums_text() const {
  std::vector<SnapshotSum> entries(blocks_.size());
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    entries[index] = {.sum = sums_[index], .length = blocks_[index].length};
  }
  return write_snapshot_sums(entries);
}

}  // namespace artesian::tiering
