#include "zero3/step/state_snapshot.h"

#include <cstring>

namespace artesian::zero3 {
namespace {

/// Where a sub-group has an array, from its first element on.
const std::byte* array_of(const SubGroup& group, SavedArray array) {
  const auto bytes = [](const auto* data) { return reinterpret_cast<const std::byte*>(data); };
  switch (array) {
    case SavedArray::Master: return bytes(group.master);
    case SavedArray::MasterHigh: return group.param;
    case SavedArray::MasterLow: return bytes(group.master_low);
    case SavedArray::ExpAvg: return bytes(group.exp_avg);
    case SavedArray::ExpAvgSq:
    case SavedArray::ExpAvgSqSigned: return bytes(group.exp_avg_sq);
    case SavedArray::Weight: return group.param;
  }
  return nullptr;
}

}  // namespace

void StateSnapshot::add(const SubGroup& group) noexcept {
  const std::size_t image = units_.image_of[group.unit];
  for (const SavedArray array : arrays_of(units_.images[image].form)) {
    if (file_.fault() != nullptr) return;
    add_array(image, array, group.index, array_of(group, array));
  }
}

void StateSnapshot::add_array(std::size_t image, SavedArray array, std::uint64_t sub_group,
                              const std::byte* data) noexcept {
  ARTESIAN_CHECK(data != nullptr, image, sub_group);
  const BlockRange range = layout_.blocks_of(image, array, sub_group);
  for (std::uint64_t block = range.first; block < range.first + range.count; ++block) {
    const std::uint64_t bytes = layout_.blocks()[static_cast<std::size_t>(block)].length;
    BufferLease buffer = buffer_for(bytes);
    if (!buffer) return;
    std::memcpy(buffer.data(), data, bytes);
    file_.set_sum(block, file_.sum(block, {0, bytes}, buffer.data()));
    file_.write(block, std::move(buffer));
    data += bytes;
  }
}

/// Nothing where the snapshot has failed.
BufferLease StateSnapshot::buffer_for(std::uint64_t bytes) noexcept {
  while (file_.fault() == nullptr) {
    auto lease = buffers_.lease(bytes);
    if (lease.has_value()) return std::move(lease).value();
    if (file_.in_flight() == 0) {
      file_.fail(std::move(lease).error());
    } else {
      file_.wait_for_one();
    }
  }
  return {};
}

}  // namespace artesian::zero3
