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
                               Executor& executor)
    : plan_(plan), memory_(memory), executor_(executor), here_(plan.layout.places.size(), false) {
  std::uint64_t begin = 0;
  for (const Unit& unit : plan.layout.units) {
    images_.push_back(begin);
    if (unit.trainable) begin += unit.image * dtype_size(plan.param_dtype);
  }
  ARTESIAN_CHECK(memory.size() == begin, memory.size(), begin);
}

std::byte* MicroBatchSums::data(std::uint32_t parameter) const {
  const ParameterPlace& place = plan_.layout.places[parameter];
  return memory_.data() + images_[place.unit] + place.first * dtype_size(plan_.param_dtype);
}

void MicroBatchSums::add(std::uint32_t parameter, std::uint64_t first, const std::byte* data,
                         DType dtype, std::uint64_t count) {
  const DType stored = plan_.param_dtype;
  const auto how = here_[parameter] ? kernels::Accumulate::Add : kernels::Accumulate::Set;
  ARTESIAN_CHECK(first + count <= plan_.layout.places[parameter].numel, parameter, first, count);
  const Accumulator to{this->data(parameter) + first * dtype_size(stored), stored, stored, how};
  executor_.parallel_for(count, elements_of_task, [&](std::uint64_t begin, std::uint64_t end) {
    accumulate(to, data, dtype, begin, end);
  });
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
  rows_.clear();
}

}  // namespace artesian::zero3
