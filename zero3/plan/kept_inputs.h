// KeptInputs: where the stage inputs that activation checkpointing keeps for backward are stored,
// with activation_checkpointing.cpu_checkpointing: in host memory as far as its budget allows, the
// rest on NVMe. A pure function of shapes. Each input of a group of micro-batches has a place of
// its own, since all of them exist between forward and backward; the groups of a step reuse the
// places.
//
// Note [What an input in host memory saves]: a group writes its inputs once and reads them once, so
// a byte of host memory saves two of NVMe traffic for each group that uses it. A byte of optimizer
// state saves two per step: with several groups inputs are worth more, with one group the same. On
// a tie inputs take precedence: their writes fall into forward, when the disk also moves the
// update's bytes, and users who set cpu_checkpointing expect inputs in host memory. With one group
// for all micro-batches, gradients and fetched parameters are worth more than both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "tiering/tier.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

struct KeptInputs {
  std::uint64_t at_once = 0;  // micro-batches that run layer by layer; 0: LibTorch keeps all inputs
  std::vector<std::string> names;    // [stages]
  std::vector<std::uint64_t> bytes;  // [stages] of one micro-batch; 0: the input is not moved
  /// [stages * at_once], by stage, then by micro-batch; Device: kept where it was computed
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
  /// Bytes of the place for a stage's input: whole pages.
  std::uint64_t place_bytes(std::size_t stage) const noexcept;
  std::uint64_t largest() const noexcept;  // the largest of these
  std::uint64_t buffer_bytes() const noexcept { return block_bytes * buffer_count; }
  /// Bytes of all places in a tier.
  std::uint64_t bytes_in(tiering::Tier tier) const noexcept;
};

struct KeptInputsRequest {
  const std::vector<StageSpec>* stages = nullptr;
  /// [stages] elements of each stage's input, for the largest micro-batch.
  const std::vector<std::uint64_t>* elements = nullptr;
  std::uint64_t element_size = 4;
  std::uint64_t micro_batches = 1;  // micro-batches of a step
  /// The most bytes of inputs that may be kept in no tier: one boundary for each micro-batch of a
  /// group.
  std::uint64_t activation_bytes = 0;
  bool nvme = false;  // a swap file exists for inputs that do not fit in host memory
};

/// Computes sizes and groups; all homes are NVMe or, without it, Device. `host_room` matters only
/// without NVMe: inputs beyond it stay where they were computed, which limits the group.
KeptInputs describe_inputs(const KeptInputsRequest& request, std::uint64_t host_room);

/// How often a step moves each byte of a micro-batch's inputs that are on NVMe.
std::uint64_t input_moves(const KeptInputs& inputs, std::uint64_t micro_batches,
                          std::uint64_t micro_batch);

/// The places in the order in which they should get host memory: first those of the last stage,
/// which are needed again at once, then evenly spread over the stages, so that the disk never has
/// to read many in a row.
std::vector<std::uint64_t> places_by_worth(const KeptInputs& inputs);

/// Sets block size and number of buffers for `room` bytes of host memory, at least one page.
void size_input_buffers(KeptInputs& inputs, std::uint64_t room);

/// The most memory that size_input_buffers() can use.
std::uint64_t input_buffers_max(const KeptInputs& inputs);

}  // namespace artesian::zero3
