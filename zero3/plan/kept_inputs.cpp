#include "zero3/plan/kept_inputs.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"
#include "zero3/plan/residents.h"
#include "zero3/plan/step_accesses.h"

namespace artesian::zero3 {

using tiering::Tier;

namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t block_bytes_max = 1 << 20;  // as for sub-groups
constexpr std::uint64_t buffer_count_max = 64;
constexpr std::uint64_t places_max = 1 << 16;  // for all stages; bounds the tables

}  // namespace

std::uint64_t KeptInputs::place_bytes(std::size_t stage) const noexcept {
  return round_up(bytes[stage], page);
}

std::uint64_t KeptInputs::largest() const noexcept {
  return bytes.empty() ? 0 : round_up(*std::max_element(bytes.begin(), bytes.end()), page);
}

std::uint64_t KeptInputs::bytes_in(Tier tier) const noexcept {
  ARTESIAN_CHECK(homes.size() == bytes.size() * at_once, homes.size(), bytes.size(), at_once);
  std::uint64_t sum = 0;
  for (std::size_t stage = 0; stage < bytes.size(); ++stage) {
    for (std::uint64_t index = 0; index < at_once; ++index) {
      if (home(stage, index) == tier) sum += place_bytes(stage);
    }
  }
  return sum;
}

KeptInputs describe_inputs(const KeptInputsRequest& request, std::uint64_t host_room) {
  const auto& stages = *request.stages;
  ARTESIAN_CHECK(request.elements->size() == stages.size(), request.elements->size());
  KeptInputs inputs;
  std::uint64_t of_one = 0;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    inputs.names.push_back(stages[stage].name);
    // The first stage's input, unless it looks up, is the batch itself, which is kept anyway.
    const bool batch = stage == 0 && !stages[stage].lookup.has_value();
    inputs.bytes.push_back(batch ? 0 : (*request.elements)[stage] * request.element_size);
    of_one += inputs.place_bytes(stage);
  }
  const std::uint64_t boundary = inputs.largest();
  if (boundary == 0) return {};
  std::uint64_t group = request.activation_bytes / boundary;
  if (!request.nvme) {
    group = std::min(group, (request.activation_bytes + host_room) / (boundary + of_one));
  }
  group = std::min({group, request.micro_batches, places_max / stages.size()});
  inputs.at_once = keeps_order(stages) ? std::max<std::uint64_t>(group, 1) : 1;
  inputs.homes.assign(stages.size() * inputs.at_once, request.nvme ? Tier::Nvme : Tier::Device);
  return inputs;
}

std::uint64_t input_moves(const KeptInputs& inputs, std::uint64_t micro_batches,
                          std::uint64_t micro_batch) {
  ARTESIAN_CHECK(micro_batch < inputs.at_once, micro_batch, inputs.at_once);
  const std::uint64_t last = micro_batch < micro_batches % inputs.at_once ? 1 : 0;
  return 2 * (micro_batches / inputs.at_once + last);
}

std::vector<std::uint64_t> places_by_worth(const KeptInputs& inputs) {
  const std::size_t stages = inputs.bytes.size();
  ARTESIAN_CHECK(inputs.at_once != 0 && stages != 0, inputs.at_once, stages);
  std::vector<std::uint64_t> all;
  const auto add = [&](std::uint64_t place) {
    if (inputs.bytes[static_cast<std::size_t>(place / inputs.at_once)] != 0) all.push_back(place);
  };
  for (std::uint64_t index = 0; index < inputs.at_once; ++index) {
    add(inputs.place(stages - 1, index));
  }
  for (const auto place : spread_order((stages - 1) * inputs.at_once)) add(place);
  return all;
}

std::uint64_t input_buffers_max(const KeptInputs& inputs) {
  return std::min(2 * inputs.largest(), buffer_count_max * block_bytes_max);
}

/// Room for two inputs if possible: one in use, and one in flight.
void size_input_buffers(KeptInputs& inputs, std::uint64_t room) {
  ARTESIAN_CHECK(room >= page, room);
  const std::uint64_t wanted = std::min(room, input_buffers_max(inputs));
  inputs.block_bytes = std::min(block_bytes_max, inputs.largest());
  while (inputs.block_bytes > page && inputs.block_bytes > wanted / 4) {
    inputs.block_bytes = std::max(page, round_down(inputs.block_bytes / 2, page));
  }
  inputs.buffer_count = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(wanted / inputs.block_bytes, 1, buffer_count_max));
  ARTESIAN_CHECK(inputs.block_bytes % page == 0, inputs.block_bytes);
  ARTESIAN_CHECK(inputs.buffer_bytes() <= room, inputs.block_bytes, inputs.buffer_count, room);
}

}  // namespace artesian::zero3
