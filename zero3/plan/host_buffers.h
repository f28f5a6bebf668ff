// The buffers of the host tier, as pure functions of a plan whose units have their homes: the ring
// through which optimizer state and gradients pass and, with a separate device, the staging buffers
// for copies to and from it. Sizes are bytes unless stated otherwise.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "zero3/config/config.h"
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

struct Ring {
  std::uint64_t sub_group = 0;   // elements
  std::uint64_t item_bytes = 0;  // bytes that one sub-group moves; 0: no ring
  std::uint32_t count = 0;       // items

  std::uint64_t bytes() const noexcept { return count * item_bytes; }
};

struct Staging {                  // buffers of a separate device; empty without one
  std::uint64_t bytes = 0;        // size of one buffer
  std::uint32_t param_count = 0;  // buffers for parameters from NVMe,
  std::uint32_t grad_count = 0;   // number of buffers for gradients to the host

  std::uint64_t all_bytes() const noexcept { return bytes * (param_count + grad_count); }
};

/// Sizes the host buffers of a plan and a configuration for given memory. Both must outlive it.
class HostBuffers {
 public:
  HostBuffers(const Placement& plan, const Config& config) noexcept
      : plan_(plan), config_(config) {}

  /// The ring for the largest sub-group with which ring and minimal staging need at most a quarter
  /// of `room`, else for the smallest sub-group; none if not even that fits.
  std::optional<Ring> ring_within(std::uint64_t room) const;
  /// Staging for its minimum and its share of `room`: first more buffers, as they overlap, then
  /// larger ones.
  Staging staging_within(std::uint64_t room, std::uint64_t sub_group) const;

  /// Elements.
  std::uint64_t largest_sub_group() const;
  /// Items.
  std::uint32_t ring_count_min() const;
  /// One ring item at `sub_group` elements.
  std::uint64_t item_bytes(std::uint64_t sub_group) const;
  /// The minimal staging: one block in each direction; 0 without a separate device.
  std::uint64_t staging_min(std::uint64_t sub_group) const;
  /// The bytes of `room` (what the ring and the minimal staging leave) that staging may use.
  /// Residents get the rest, so that they never get less from more memory, although staging grows
  /// by whole buffers.
  std::uint64_t staging_share(std::uint64_t room, std::uint64_t sub_group) const;

 private:
  std::uint32_t lengthened(const Ring& ring, std::uint64_t room) const;
  bool params_on_nvme() const { return config_.zero.offload_param.device == Offload::Nvme; }
  std::uint64_t param_block_bytes(std::uint64_t sub_group) const;
  std::uint64_t staging_blocks_max(std::uint64_t sub_group) const;
  std::uint64_t param_staging_max() const;

  const Placement& plan_;
  const Config& config_;
};

}  // namespace artesian::zero3
