// The first pass of LAMB: computes the trust ratio of every parameter, which scales its step. It
// reads what the update reads, and writes nothing.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/gradient.h"
#include "zero3/step/float_moments.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t leaf = kernels::norm_leaf;
static_assert(GroupBlocks::slice % leaf == 0 && parameter_alignment % leaf == 0);

}  // namespace

/// Sums elements [begin, end) of a sub-group, leaf by leaf; each leaf belongs to one parameter.
void Optimizer::measure_slice(const SubGroup& group, std::uint64_t begin,
                              std::uint64_t end) noexcept {
  const FloatMoments moments(group, begin, end - begin);
  SubGroup part = group;
  part.image_first += begin;
  part.count = end - begin;
  std::array<float, leaf> weights, directions;
  for (const auto parameter : state_.layout().units[group.unit].parameters) {
    const ParameterPlace& place = state_.layout().places[parameter];
    const Overlap inside = overlap(place, part);
    if (inside.count == 0 || !updates(parameter)) continue;
    const auto step = make_update_step(constants_, place.group, counts_[parameter] + 1);
    for (std::uint64_t done = 0; done < inside.count; done += leaf) {
      const std::uint64_t from = inside.group_first + done;
      const std::uint64_t count = std::min(leaf, inside.count - done);
      const auto arrays = arrays_of(group, begin + from, FloatMoments::at(moments.average(), from),
                                    FloatMoments::at(moments.squares(), from));
      kernels::lamb_direction(arrays, count, step, weights.data(), directions.data());
      const auto at = static_cast<std::size_t>((part.image_first + from) / leaf);
      kernels::sum_squares(weights.data(), DType::Float32, count,
                           &lamb_->weights.of(group.unit)[at]);
      kernels::sum_squares(directions.data(), DType::Float32, count,
                           &lamb_->directions.of(group.unit)[at]);
    }
  }
}

Result<void> Optimizer::measure() noexcept {
  if (!lamb_.has_value()) lamb_.emplace(state_.layout());
  const auto slice_of = [this](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
    measure_slice(group, begin, end);
  };
  auto measured = stream_.run(order().trained(), {.read_state = true, .read_grad = true},
                              {.slice = slice_of, .after = {}});
  auto finished = state_.ring().finish();
  if (measured.has_value()) measured = std::move(finished);
  if (options_.group != nullptr) {  // check before any rank waits for another's sums
    measured = options_.group->agree(std::move(measured), {"norms of LAMB"});
    ARTESIAN_TRY_VOID(std::move(measured));
    ARTESIAN_TRY_VOID(lamb_->weights.gather(*options_.group, "norms of LAMB's weights"));
    ARTESIAN_TRY_VOID(lamb_->directions.gather(*options_.group, "norms of LAMB's steps"));
  } else {
    ARTESIAN_TRY_VOID(std::move(measured));
  }
  const auto norm_of = [](std::span<const double> sums) {
    double sum = 0.0;
    for (const double each : sums) sum += each;
    return std::sqrt(sum);
  };
  lamb_->ratios.assign(state_.layout().places.size(), 1.0f);
  for (std::uint32_t parameter = 0; parameter < lamb_->ratios.size(); ++parameter) {
    const ParameterPlace& place = state_.layout().places[parameter];
    if (!state_.layout().units[place.unit].trainable || !updates(parameter)) continue;
    const double weights = norm_of(lamb_->weights.of(place));
    const double directions = norm_of(lamb_->directions.of(place));
    if (weights == 0.0 || directions == 0.0) continue;
    const GroupStep& group = constants_.groups[place.group];
    lamb_->ratios[parameter] = static_cast<float>(
        std::max(std::min(weights / directions, group.max_coeff), group.min_coeff));
  }
  return {};
}

}  // namespace artesian::zero3
