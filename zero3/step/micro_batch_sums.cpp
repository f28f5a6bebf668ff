#include "zero3/step/micro_batch_sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cast.h"
#include "kernels/gradient.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t elements_of_task = 16384;  // elements of one task on the compute team
constexpr std::uint64_t expanded_at_once =
    2048;  // elements made fp32 at a time: 8 KiB on the stack

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
  std::byte* const target = this->data(parameter) + first * dtype_size(stored);
  ARTESIAN_CHECK(first + count <= plan_.layout.places[parameter].numel, parameter, first, count);
  // What is not finite stays so and is found in the norm.
  const auto add_floats = [&](std::uint64_t at, const float* values, std::uint64_t some) {
    static_cast<void>(kernels::accumulate_gradient(target + at * dtype_size(stored), stored, values,
                                                   stored, some, how));
  };
  executor_.parallel_for(count, elements_of_task, [&](std::uint64_t begin, std::uint64_t end) {
    if (dtype == DType::Float32) {
      add_floats(begin, reinterpret_cast<const float*>(data) + begin, end - begin);
      return;
    }
    float values[expanded_at_once];
    for (std::uint64_t at = begin; at < end; at += expanded_at_once) {
      const std::uint64_t some = std::min(expanded_at_once, end - at);
      kernels::expand(data + at * dtype_size(dtype), dtype, values, some);
      add_floats(at, values, some);
    }
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
