#include "zero3/plan/host_buffers.h"

#include <algorithm>

#include "base/check.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t sub_group_max = 262144;       // elements: an fp32 block is then 1 MiB
constexpr std::uint64_t staging_bytes_max = 4 << 20;  // for one copy to or from a device
constexpr std::uint32_t grad_staging_count_max = 4;
constexpr std::uint64_t ring_count_max = 256;

}  // namespace

std::uint64_t HostBuffers::item_bytes(std::uint64_t sub_group) const {
  const std::uint64_t per_element = dtype_size(plan_.grad_dtype) + dtype_size(plan_.param_dtype);
  const std::uint64_t bytes =
      plan_.record_bytes_max(sub_group) + plan_.sub_group_max(sub_group) * per_element;
  ARTESIAN_CHECK(sub_group != 0 && sub_group % image_alignment == 0, sub_group);
  return any_nvme(config_) || plan_.separate_device ? page_up(bytes) : 0;
}

std::uint64_t HostBuffers::param_block_bytes(std::uint64_t sub_group) const {
  return sub_group * dtype_size(plan_.param_dtype);
}

std::uint64_t HostBuffers::staging_min(std::uint64_t sub_group) const {
  if (!plan_.separate_device) return 0;
  return param_block_bytes(sub_group) * (params_on_nvme() ? 2 : 1);
}

/// The most blocks in one staging buffer.
std::uint64_t HostBuffers::staging_blocks_max(std::uint64_t sub_group) const {
  const std::uint64_t size = dtype_size(plan_.param_dtype);
  const std::uint64_t wanted = config_.zero.offload_param.buffer_size;
  const std::uint64_t bytes = std::min(staging_bytes_max / size, wanted) * size;
  return std::max<std::uint64_t>(1, bytes / param_block_bytes(sub_group));
}

/// The most buffers for parameters from NVMe.
std::uint64_t HostBuffers::param_staging_max() const {
  if (!params_on_nvme()) return 0;
  return std::clamp<std::uint64_t>(config_.zero.offload_param.buffer_count, 1, 64);
}

std::uint64_t HostBuffers::staging_share(std::uint64_t room, std::uint64_t sub_group) const {
  if (!plan_.separate_device) return 0;
  const std::uint64_t most = param_block_bytes(sub_group) * staging_blocks_max(sub_group) *
                             (param_staging_max() + grad_staging_count_max);
  ARTESIAN_CHECK(staging_min(sub_group) <= most, staging_min(sub_group), most);
  return std::min(room / 4, most - staging_min(sub_group));
}

Staging HostBuffers::staging_within(std::uint64_t room, std::uint64_t sub_group) const {
  if (!plan_.separate_device) return {};
  const std::uint64_t block = param_block_bytes(sub_group);
  const std::uint64_t blocks = (staging_min(sub_group) + room / 4) / block;
  std::uint64_t down = 0;
  if (params_on_nvme()) down = std::clamp<std::uint64_t>(blocks / 2, 1, param_staging_max());
  const auto up = std::clamp<std::uint64_t>(blocks - down, 1, grad_staging_count_max);
  const auto each =
      std::clamp<std::uint64_t>(blocks / (down + up), 1, staging_blocks_max(sub_group));
  const Staging staging{.bytes = block * each,
                        .param_count = static_cast<std::uint32_t>(down),
                        .grad_count = static_cast<std::uint32_t>(up)};
  ARTESIAN_CHECK(staging.all_bytes() <= staging_min(sub_group) + room / 4, block, each, room);
  return staging;
}

std::uint64_t HostBuffers::largest_sub_group() const {
  const std::uint64_t wanted = std::min(config_.zero.sub_group_size, sub_group_max);
  return std::max(image_alignment, round_down(wanted, image_alignment));
}

std::uint32_t HostBuffers::ring_count_min() const {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(config_.zero.offload_optimizer.buffer_count, 1, 64));
}

std::optional<Ring> HostBuffers::ring_within(std::uint64_t room) const {
  std::uint64_t sub_group = largest_sub_group();
  for (;; sub_group = std::max(image_alignment, round_down(sub_group / 2, image_alignment))) {
    Ring ring{.sub_group = sub_group, .item_bytes = item_bytes(sub_group)};
    ring.count = ring.item_bytes == 0 ? 0 : ring_count_min();
    const auto total = [&] { return ring.bytes() + staging_min(sub_group); };
    if (total() <= room / 4) {
      ring.count = lengthened(ring, room);
      ARTESIAN_CHECK(total() <= room, total(), room);
      return ring;
    }
    // Whole matrices keep their size, however small the other sub-groups become.
    if (sub_group > image_alignment && item_bytes(image_alignment) < ring.item_bytes) continue;
    while (total() > room && ring.count > 1) --ring.count;
    return total() <= room ? std::optional(ring) : std::nullopt;
  }
}

/// While a stage computes, the disk processes the ring's items: reads of later sub-groups and
/// writes of earlier ones. More items than a stage's share of what is updated would be useless; the
/// config's buffers and an eighth of `room` are further limits. Returns the number of items.
std::uint32_t HostBuffers::lengthened(const Ring& ring, std::uint64_t room) const {
  if (ring.item_bytes == 0) return ring.count;
  ARTESIAN_CHECK(ring.sub_group != 0 && !plan_.layout.stages.empty(), ring.sub_group);
  std::uint64_t elements = 0;
  for (const Unit& unit : plan_.layout.units) elements += unit.trainable ? unit.image : 0;
  const std::uint64_t buffers = config_.zero.sub_group_size / ring.sub_group * ring_count_min();
  const std::uint64_t stage = elements / plan_.layout.stages.size() / ring.sub_group + 1;
  const std::uint64_t count =
      std::min({buffers, stage, room / 8 / ring.item_bytes, ring_count_max});
  return std::max(ring.count, static_cast<std::uint32_t>(count));
}

}  // namespace artesian::zero3
