// The buffers of the host tier that a placement sizes: the ring through which optimizer state and
// gradients pass, and, of a separate device, the staging of what is copied to and from it.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "zero3/plan/placement.h"

namespace artesian::zero3 {

inline bool any_nvme(const Config& config) noexcept {
  return config.zero.offload_param.device == Offload::Nvme ||
         config.zero.offload_optimizer.device == Offload::Nvme;
}

/// Pools hand out multiples of 4096 bytes.
constexpr std::uint64_t page_up(std::uint64_t bytes) noexcept {
  return round_up(bytes, 4096);
}

/// Sizes the buffers of a plan whose units have their homes. All in bytes, unless said otherwise.
class HostBuffers {
 public:
  /// Both must outlive it.
  HostBuffers(Placement& plan, const Config& config, bool separate_device)
      : plan_(plan), config_(config), separate_(separate_device) {}

  /// Chooses the largest sub-group whose ring takes at most a quarter of `room`, or the smallest
  /// that fits at all. Returns whether one does.
  bool size_ring(std::uint64_t room);
  /// Staging takes its least and its share of `room`: more buffers first, as they overlap, then
  /// larger ones.
  void size_staging(std::uint64_t room);

  std::uint64_t ring_bytes() const { return plan_.ring_count * plan_.ring_item_bytes; }
  std::uint64_t staging_bytes() const;
  /// Elements.
  std::uint64_t largest_sub_group() const;
  /// Items.
  std::uint32_t ring_count_min() const;
  /// One ring item at `sub_group` elements: everything that one sub-group moves; 0 where there is
  /// no ring.
  std::uint64_t item_bytes(std::uint64_t sub_group) const;
  /// The least staging: one block on its way down, and one up; 0 without a separate device.
  std::uint64_t staging_min(std::uint64_t sub_group) const;
  /// What staging may take of `room`, which is what the ring and its least leave. Residents get the
  /// rest, so that they never get less where there is more: staging itself grows by whole buffers.
  std::uint64_t staging_share(std::uint64_t room) const;

 private:
  void lengthen_ring(std::uint64_t room);
  bool params_on_nvme() const { return config_.zero.offload_param.device == Offload::Nvme; }
  std::uint64_t param_block_bytes(std::uint64_t sub_group) const;
  std::uint64_t staging_blocks_max() const;
  std::uint64_t param_staging_max() const;

  Placement& plan_;
  const Config& config_;
  const bool separate_;
};

}  // namespace artesian::zero3
