// KeptInputs: where the stages' inputs that checkpointing keeps for backward wait, with
// activation_checkpointing.cpu_checkpointing: in host memory as far as its budget has room beside
// all else, the rest on NVMe. A pure function of shapes: nothing here has run. Every input of a
// group of micro-batches has a place of its own, since all of them are kept at the turn from
// forward to backward; the groups of a step use the same places.
//
// Note [What an input in host memory saves]: a group writes its inputs once and reads them once,
// so a byte of host memory saves two of NVMe traffic for each group that uses it. Optimizer state
// saves two a step: with several groups inputs are worth more, with one as much. Then inputs come
// first: their writes fall into forward, in which the disk has the update's bytes, too; and whoever
// sets cpu_checkpointing expects them in host memory. Gradients, and parameters that are fetched,
// are worth more than both as long as one group takes all micro-batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "tiering/tier.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

struct KeptInputs {
  std::uint64_t at_once = 0;  // micro-batches that run layer by layer; 0: all stay with LibTorch
  std::vector<std::string> names;    // [stages]
  std::vector<std::uint64_t> bytes;  // [stages] of one micro-batch; 0: its input stays
  /// [stages * at_once], by stage, then by micro-batch; Device: kept where it was computed.
  std::vector<tiering::Tier> homes;
  // Size of the host buffers through which inputs go to NVMe; 0 without NVMe.
  std::uint64_t block_bytes = 0;
  std::uint32_t buffer_count = 0;

  bool some() const noexcept { return at_once != 0; }
  std::uint64_t place(std::size_t stage, std::uint64_t micro_batch) const noexcept {
    ARTESIAN_CHECK(stage < bytes.size() && micro_batch < at_once, stage, micro_batch, at_once);
    return stage * at_once + micro_batch;
  }
  tiering::Tier home(std::size_t stage, std::uint64_t micro_batch) const noexcept {
    return bytes[stage] == 0 ? tiering::Tier::Device : homes[place(stage, micro_batch)];
  }
  /// Bytes of a place for the stage's input: whole pages.
  std::uint64_t place_bytes(std::size_t stage) const noexcept;
  std::uint64_t largest() const noexcept;  // largest of these
  std::uint64_t buffer_bytes() const noexcept { return block_bytes * buffer_count; }
  /// Bytes of all places that are in a tier.
  std::uint64_t bytes_in(tiering::Tier tier) const noexcept;
};

struct KeptInputsRequest {
  const std::vector<StageSpec>* stages = nullptr;
  /// [stages] elements of each stage's input of one micro-batch, as many as any has.
  const std::vector<std::uint64_t>* elements = nullptr;
  std::uint64_t element_size = 4;
  std::uint64_t micro_batches = 1;  // micro-batches of a step
  /// The bytes that may be in no tier: of each micro-batch of a group, one boundary.
  std::uint64_t activation_bytes = 0;
  bool nvme = false;  // there is a swap file for what host memory does not hold
};

/// Sizes and groups; all homes are NVMe, or without it Device. `host_room` counts without NVMe
/// alone: what is more than that stays where it was computed, and so limits the group.
KeptInputs describe_inputs(const KeptInputsRequest& request, std::uint64_t host_room);

/// How often a step moves each byte of a micro-batch's inputs, if they are on NVMe.
std::uint64_t input_moves(const KeptInputs& inputs, std::uint64_t micro_batches,
                          std::uint64_t micro_batch);

/// The places in the order in which they deserve host memory: those of the last stage first, which
/// are wanted back at once, then spread evenly over the stages, so that the disk is never asked for
/// many in a row.
std::vector<std::uint64_t> places_by_worth(const KeptInputs& inputs);

/// Cuts the blocks and counts the buffers for `room` bytes of host memory, at least a page.
void size_input_buffers(KeptInputs& inputs, std::uint64_t room);

/// The most room that size_input_buffers() makes use of.
std::uint64_t input_buffers_max(const KeptInputs& inputs);

}  // namespace artesian::zero3
