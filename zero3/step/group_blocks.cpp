#include "zero3/step/group_blocks.h"

#include "base/check.h"

namespace artesian::zero3 {

void GroupBlocks::list(tiering::ShardId shard, std::uint64_t block, const void* data,
                       std::uint64_t element_size) noexcept {
  if (store_.shard(shard).home != tiering::Tier::Nvme) return;
  ARTESIAN_CHECK(count_ < blocks_.size() && data != nullptr, count_, data);
  ARTESIAN_CHECK(element_size != 0, element_size);
  Block& listed = blocks_[count_++];
  listed.shard = shard;
  listed.block = block;
  listed.data = static_cast<const std::byte*>(data);
  listed.element_size = element_size;
}

void GroupBlocks::add_to_verify(std::uint64_t begin, std::uint64_t end) noexcept {
  ARTESIAN_CHECK(begin % slice == 0 && begin < end, begin, end);
  for (std::size_t index = 0; index < count_; ++index) {
    Block& at = blocks_[index];
    const tiering::ByteRange part{begin * at.element_size, (end - begin) * at.element_size};
    at.sum += store_.sum_to_verify(at.shard, at.block, part, at.data + part.offset);
  }
}

void GroupBlocks::add_to_seal(std::uint64_t begin, std::uint64_t end) noexcept {
  ARTESIAN_CHECK(begin % slice == 0 && begin < end, begin, end);
  for (std::size_t index = 0; index < count_; ++index) {
    Block& at = blocks_[index];
    const tiering::ByteRange part{begin * at.element_size, (end - begin) * at.element_size};
    at.sum += store_.sum_to_seal(at.shard, at.block, part, at.data + part.offset);
  }
}

Result<void> GroupBlocks::verify() noexcept {
  Result<void> first;
  for (std::size_t index = 0; index < count_; ++index) {
    auto verified =
        store_.verify_sum(blocks_[index].shard, blocks_[index].block, blocks_[index].sum);
    if (!verified.has_value() && first.has_value()) first = std::move(verified);
  }
  return first;
}

void GroupBlocks::seal() noexcept {
  for (std::size_t index = 0; index < count_; ++index) {
    store_.seal_sum(blocks_[index].shard, blocks_[index].block, blocks_[index].sum);
  }
}

}  // namespace artesian::zero3
