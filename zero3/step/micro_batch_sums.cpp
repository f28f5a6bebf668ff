#include "zero3/step/micro_batch_sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "zero3/step/accumulate.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t elements_of_task = 16384;  // elements per task of the thread pool

}  // namespace

MicroBatchSums::MicroBatchSums(const Placement& plan, std::span<std::byte> memory,
                               Executor& executor, tiering::Device& device)
    : plan_(plan),
      memory_(memory),
      executor_(executor),
      device_(device),
      images_(plan.layout.units.size()),
      here_(plan.layout.places.size(), false) {
  ARTESIAN_CHECK(memory.size() == plan.exchange.held, memory.size(), plan.exchange.held);
  ARTESIAN_CHECK(plan.exchange.held_at.size() == images_.size(), images_.size());
}

std::byte* MicroBatchSums::data(std::uint32_t parameter) const {
  const ParameterPlace& place = plan_.layout.places[parameter];
  ARTESIAN_CHECK(images_[place.unit] != nullptr, parameter);
  return images_[place.unit] + place.first * dtype_size(plan_.exchange.held_dtype);
}

std::uint64_t MicroBatchSums::image_bytes(std::uint32_t unit) const noexcept {
  return plan_.layout.units[unit].image * dtype_size(plan_.exchange.held_dtype);
}

/// Gives the unit its place in the memory, or memory beside it if another unit is there.
void MicroBatchSums::make_room(std::uint32_t unit) {
  if (images_[unit] != nullptr) return;
  const std::span planned = memory_.subspan(plan_.exchange.held_at[unit], image_bytes(unit));
  bool taken = false;
  for (std::uint32_t other = 0; other < images_.size(); ++other) {
    const bool here = images_[other] != nullptr && !beside_.contains(other);
    taken = taken || (here && images_[other] < planned.data() + planned.size() &&
                      planned.data() < images_[other] + image_bytes(other));
  }
  if (!taken) {
    images_[unit] = planned.data();
    return;
  }
  auto& memory = beside_[unit];
  memory.reset(new std::byte[static_cast<std::size_t>(image_bytes(unit))]);
  bytes_beside_ += image_bytes(unit);
  bytes_beside_max_ = std::max(bytes_beside_max_, bytes_beside_);
  images_[unit] = memory.get();
}

void MicroBatchSums::add(std::uint32_t parameter, std::uint64_t first, const std::byte* data,
                         DType dtype, std::uint64_t count) {
  const DType stored = plan_.exchange.held_dtype;
  const auto how = here_[parameter] ? kernels::Accumulate::Add : kernels::Accumulate::Set;
  ARTESIAN_CHECK(first + count <= plan_.layout.places[parameter].numel, parameter, first, count);
  make_room(plan_.layout.places[parameter].unit);
  const Accumulator to{this->data(parameter) + first * dtype_size(stored), stored,
                       plan_.param_dtype, how};
  executor_.parallel_for(count, elements_of_task, [&](std::uint64_t begin, std::uint64_t end) {
    accumulate(to, data, dtype, begin, end);
  });
}

bool MicroBatchSums::is_there(std::uint32_t unit) {
  make_room(unit);
  return plan_.exchange.held_there && !beside_.contains(unit);
}

Result<void> MicroBatchSums::add_there(std::uint32_t parameter, const void* data, DType dtype) {
  const ParameterPlace& place = plan_.layout.places[parameter];
  ARTESIAN_CHECK(is_there(place.unit), parameter);
  const kernels::GradientPiece piece{
      .acc = this->data(parameter),
      .grad = data,
      .count = place.numel,
      .how = here_[parameter] ? kernels::Accumulate::Add : kernels::Accumulate::Set};
  return device_.accumulate_gradients(
      tiering::Queue::Compute, {&piece, 1},
      {.acc = plan_.exchange.held_dtype, .grad = dtype, .rounded = plan_.param_dtype});
}

std::vector<ParameterGradient> MicroBatchSums::of_unit(std::uint32_t unit) const {
  std::vector<ParameterGradient> gradients;
  for (const std::uint32_t parameter : plan_.layout.units[unit].parameters) {
    if (here_[parameter]) gradients.push_back({parameter, data(parameter)});
  }
  return gradients;
}

void MicroBatchSums::add_rows(std::uint32_t parameter, std::vector<std::int64_t> rows,
                              std::vector<float> gradient) {
  rows_[parameter].push_back({std::move(rows), std::move(gradient)});
}

std::vector<RowsOfLookup> MicroBatchSums::rows_of(std::uint32_t parameter) const {
  std::vector<RowsOfLookup> lookups;
  const auto kept = rows_.find(parameter);
  if (kept == rows_.end()) return lookups;
  for (const Kept& each : kept->second) lookups.push_back({each.rows, each.gradient.data()});
  return lookups;
}

void MicroBatchSums::clear() {
  here_.assign(here_.size(), false);
  images_.assign(images_.size(), nullptr);
  beside_.clear();
  bytes_beside_ = 0;
  rows_.clear();
}

void MicroBatchSums::clear(std::uint32_t unit) {
  for (const std::uint32_t parameter : plan_.layout.units[unit].parameters) {
    here_[parameter] = false;
    rows_.erase(parameter);
  }
  images_[unit] = nullptr;
  if (beside_.erase(unit) != 0) bytes_beside_ -= image_bytes(unit);
}

}  // namespace artesian::zero3
