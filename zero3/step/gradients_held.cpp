// The part of Gradients that holds a micro-batch's gradients until it is complete.
#include <algorithm>

#include "base/check.h"
#include "zero3/step/gradients.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t read_at_once = 1 << 18;  // elements: 1 MiB

// Flags for what a rank has of a unit.
constexpr std::uint8_t has_whole = 1;
constexpr std::uint8_t has_rows = 2;

}  // namespace

Result<void> Gradients::hold(std::uint32_t parameter, const void* data,
                             tiering::DeviceFence written) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  ARTESIAN_CHECK(holds() && trainable(place.unit), parameter);
  const DType dtype = added_dtype(place.unit);
  const auto* const bytes = static_cast<const std::byte*>(data);
  if (sums_->is_there(place.unit)) {
    ARTESIAN_TRY_VOID(sums_->add_there(parameter, data, dtype));  // in Compute, as `written` is
  } else if (ends_at_device(route(place.unit))) {
    const std::uint64_t size = dtype_size(dtype);
    const tiering::DeviceReader::Part part{bytes, place.numel * size};
    ARTESIAN_TRY_VOID(state_.reader().read(
        {&part, 1}, written,
        [&](std::size_t, std::uint64_t offset, std::span<const std::byte> piece) -> Result<void> {
          sums_->add(parameter, offset / size, piece.data(), dtype, piece.size() / size);
          return {};
        }));
  } else {
    sums_->add(parameter, 0, bytes, dtype, place.numel);
  }
  sums_->added(parameter);
  return {};
}

/// Flags for what this rank has of a unit.
std::uint8_t Gradients::has_of(std::uint32_t unit) const {
  std::uint8_t has = 0;
  for (const std::uint32_t parameter : state_.layout().units[unit].parameters) {
    if (sums_->has(parameter)) has |= has_whole;
    if (sums_->has_rows(parameter)) has |= has_rows;
  }
  return has;
}

Result<void> Gradients::add_held_of_step(std::span<const ParameterSpec> parameters) noexcept {
  if (!state_.placement().exchange.once) return {};
  std::vector<std::uint32_t> units;
  for (std::uint32_t unit = 0; unit < state_.layout().units.size(); ++unit) {
    if (trainable(unit)) units.push_back(unit);
  }
  return add_held(units, parameters);
}

Result<void> Gradients::add_held(std::span<const std::uint32_t> units,
                                 std::span<const ParameterSpec> parameters) noexcept {
  comm::Group& group = exchange_->group();
  std::vector<std::uint8_t> mine;
  for (const std::uint32_t unit : units) {
    ARTESIAN_CHECK(holds() && trainable(unit), unit);
    mine.push_back(has_of(unit));
  }
  ARTESIAN_TRY(told, group.exchange(std::as_bytes(std::span(mine)), {"gradients that there are"}));
  for (std::size_t at = 0; at < units.size(); ++at) {
    std::vector<std::uint8_t> there;
    for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
      there.push_back(static_cast<std::uint8_t>(told[rank * units.size() + at]));
    }
    ARTESIAN_TRY_VOID(add_unit_held(units[at], there, parameters));
    if (spilled(units[at])) ARTESIAN_TRY_VOID(write_back());
    sums_->clear(units[at]);
  }
  return {};
}

/// `there`: flags by rank.
Result<void> Gradients::add_unit_held(std::uint32_t unit, const std::vector<std::uint8_t>& there,
                                      std::span<const ParameterSpec> parameters) noexcept {
  const auto some = [&](std::uint8_t kind) {
    return std::any_of(there.begin(), there.end(), [kind](auto has) { return (has & kind) != 0; });
  };
  const std::vector<ParameterGradient> held = sums_->of_unit(unit);
  GradientsOfUnit own{.gradients = held,
                      .source = {.dtype = state_.placement().exchange.held_dtype}};
  own.source.on_device = !held.empty() && sums_->is_there(unit);
  if (own.source.on_device) {
    ARTESIAN_TRY(summed, state_.device().record(tiering::Queue::Compute));
    own.source.written = summed;
  }
  if (!some(has_rows)) {
    return some(has_whole) ? add_of_all_ranks(unit, own) : Result<void>();
  }
  ARTESIAN_CHECK(state_.layout().units[unit].parameters.size() == 1, unit);
  const std::uint32_t parameter = state_.layout().units[unit].parameters.front();
  const auto width = static_cast<std::uint64_t>(parameters[parameter].shape.back());
  ARTESIAN_TRY(all, exchange_->rows(parameter, sums_->rows_of(parameter), width));
  const auto first = std::find_if(there.begin(), there.end(), [](auto has) { return has != 0; });
  if ((*first & has_whole) == 0) ARTESIAN_TRY_VOID(start_at_zero(unit));  // rows are added to zeros
  if (some(has_whole)) {
    ARTESIAN_TRY_VOID(add_of_all_ranks(unit, own, &all));
  } else {
    for (std::uint32_t rank = 0; rank < there.size(); ++rank) {
      ARTESIAN_TRY_VOID(add_runs(parameter, all, rank, {}));
    }
  }
  additions_.added(parameter);
  return {};
}

/// One rank's rows, look-up by look-up.
Result<void> Gradients::add_runs(std::uint32_t parameter, const GradientExchange::Rows& rows,
                                 std::uint32_t rank, const Range& range) noexcept {
  for (const auto& run : rows.runs) {
    if (run.rank != rank) continue;
    ARTESIAN_TRY_VOID(sum_rows(parameter, std::span(rows.rows).subspan(run.first, run.count),
                               std::span(rows.gradients).subspan(run.first, run.count), rows.width,
                               range));
  }
  return {};
}

/// Each rank's share is sent to all, piece by piece. After an error the sink is not called any
/// more.
Result<void> Gradients::read_of_ranks(
    std::uint32_t parameter,
    const std::function<Result<void>(std::span<const float>)>& sink) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const Unit& unit = state_.layout().units[place.unit];
  comm::Group& group = exchange_->group();
  std::vector<float> values;
  Result<void> outcome;
  for (std::uint32_t owner = 0; owner < group.ranks(); ++owner) {
    const auto [share_first, end] = unit.in_share(place.first, place.numel, owner);
    for (std::uint64_t first = share_first; first < end; first += values.size()) {
      values.clear();
      const std::uint64_t count = std::min(read_at_once, end - first);
      const auto take = [&](std::span<const float> some) -> Result<void> {
        values.insert(values.end(), some.begin(), some.end());
        return {};
      };
      const std::uint64_t begin = first - place.first;
      if (owner == group.rank()) {
        ARTESIAN_TRY_VOID(read_range(parameter, {begin, begin + count}, take));
      }
      values.resize(static_cast<std::size_t>(count));
      ARTESIAN_TRY_VOID(group.broadcast(std::as_writable_bytes(std::span(values)), owner,
                                        {"the gradient of", unit.name}));
      if (outcome.has_value()) outcome = sink(values);
    }
  }
  return outcome;
}

}  // namespace artesian::zero3
