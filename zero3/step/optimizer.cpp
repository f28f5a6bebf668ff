#include "zero3/step/optimizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/split_master.h"
#include "zero3/step/float_moments.h"

namespace artesian::zero3 {

namespace {

constexpr std::uint64_t slice = GroupBlocks::slice;
constexpr std::uint64_t passed = 1 << 18;  // elements sent from one rank to all at a time

/// Visits frozen parameters of this dtype in place of master weights, without moments.
template <typename Visit>
Result<void> for_each_frozen_piece(const SubGroup& group, const Overlap& part, DType dtype,
                                   const Visit& visit) {
  std::vector<float> values(static_cast<std::size_t>(std::min(part.count, slice)));
  for (std::uint64_t done = 0; done < part.count; done += values.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(values.size(), part.count - done);
    const std::byte* stored = group.param + (part.group_first + done) * dtype_size(dtype);
    kernels::expand(stored, dtype, values.data(), count);
    ARTESIAN_TRY_VOID(visit(values.data(), nullptr, nullptr, count));
  }
  return {};
}

/// Joins split master weights from element `begin` on, and clears the tie bits in squares.
void join_split(const SubGroup& group, std::uint64_t begin, std::span<float> squares,
                std::span<float> masters) {
  const auto* high = reinterpret_cast<const std::uint16_t*>(group.param);
  for (std::size_t index = 0; index < masters.size(); ++index) {
    const std::uint64_t at = begin + index;
    const float square = squares.empty() ? 0.0f : squares[index];
    const auto joined = kernels::join_master({high[at], group.master_low[at], square});
    masters[index] = joined.master;
    if (!squares.empty()) squares[index] = joined.exp_avg_sq;
  }
}

/// Visits a part of a sub-group: calls `visit(master, exp_avg, exp_avg_sq, count)` for one piece
/// after the other; missing moments are null. `dtype`: of stored values.
template <typename Visit>
Result<void> for_each_piece(const SubGroup& group, const Overlap& part, DType dtype,
                            const Visit& visit) {
  const bool split = group.master_low != nullptr;
  if (group.master == nullptr && !split) return for_each_frozen_piece(group, part, dtype, visit);
  for (std::uint64_t done = 0; done < part.count;) {
    const std::uint64_t begin = part.group_first + done;
    const std::uint64_t count = std::min(part.count - done, slice);
    const FloatMoments moments(group, begin, count);
    done += count;
    const float* average = FloatMoments::at(moments.average(), 0);
    if (!split) {
      ARTESIAN_TRY_VOID(
          visit(group.master + begin, average, FloatMoments::at(moments.squares(), 0), count));
      continue;
    }
    std::vector<float> masters(static_cast<std::size_t>(count));
    std::vector<float> squares(moments.squares().begin(), moments.squares().end());
    join_split(group, begin, squares, masters);
    ARTESIAN_TRY_VOID(visit(masters.data(), average, FloatMoments::at(squares, 0), count));
  }
  return {};
}

/// Stores these master weights as split elements from `begin` on, with tie bits in the squares;
/// without squares, the weights are settled first (kernels::settle_tie).
void store_split(const SubGroup& group, std::uint64_t begin, std::span<float> squares,
                 std::span<const float> masters) {
  auto* high = reinterpret_cast<std::uint16_t*>(group.param);
  ARTESIAN_CHECK(high != nullptr && group.master_low != nullptr, group.unit);
  ARTESIAN_CHECK(begin + masters.size() <= group.count, begin, masters.size(), group.count);
  for (std::size_t index = 0; index < masters.size(); ++index) {
    const float square = squares.empty() ? 0.0f : squares[index];
    const auto split = kernels::split_master(masters[index], square);
    high[begin + index] = split.high;
    group.master_low[begin + index] = split.low;
    if (!squares.empty()) squares[index] = split.exp_avg_sq;
  }
}

/// The initial state: weights without any update.
class FirstState final : public StateSource {
 public:
  FirstState(WeightSource& weights, float squares) noexcept
      : weights_(weights), squares_(squares) {}
  Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq) noexcept override {
    std::fill(exp_avg.begin(), exp_avg.end(), 0.0f);
    std::fill(exp_avg_sq.begin(), exp_avg_sq.end(), squares_);
    return weights_.read(parameter, first, master);
  }
  bool comes_by_unit() const noexcept override { return weights_.comes_by_unit(); }
  Result<void> begin(std::uint32_t unit) noexcept override { return weights_.begin(unit); }

 private:
  WeightSource& weights_;
  const float squares_;
};

}  // namespace

Optimizer::Optimizer(ModelState& state, tiering::Residency& residency, OptimizerOptions options)
    : UpdateFlow(state.placement()),
      state_(state),
      residency_(residency),
      options_(std::move(options)),
      stream_(state, "optimizer state"),
      cuts_(state.layout().units.size()),
      counts_(state.layout().places.size()) {}

/// Reads elements of a sub-group from `begin` on, some of which are kept: `master` gets the weights
/// if they are separate, and split weights are joined.
void Optimizer::open_slice(const SubGroup& group, std::uint64_t begin, std::span<float> squares,
                           std::span<float> master) noexcept {
  const Placement& plan = state_.placement();
  const Master kept = plan.units[group.unit].master;
  if (kept == Master::None) {
    kernels::expand(group.param + begin * dtype_size(plan.param_dtype), plan.param_dtype,
                    master.data(), master.size());
  }
  if (kept == Master::Split) join_split(group, begin, squares, master);
}

/// True if master weights are settled: Note [Without a bit] in kernels/split_master.h.
bool Optimizer::settles(std::uint32_t unit) const noexcept {
  const Placement& plan = state_.placement();
  return plan.param_dtype == DType::BFloat16 && plan.moments_of(unit).squares.empty();
}

void Optimizer::settle_ties(std::uint32_t unit, std::span<float> masters) const noexcept {
  if (!settles(unit)) return;
  for (float& each : masters) each = kernels::settle_tie(each);
}

/// Fills elements [begin, end) of a sub-group, except those that the source keeps.
Result<void> Optimizer::fill_slice(const SubGroup& group, StateSource& source, std::uint64_t begin,
                                   std::uint64_t end) noexcept {
  const Placement& plan = state_.placement();
  const auto& parameters = plan.layout.units[group.unit].parameters;
  const auto stays = [&](std::uint32_t parameter) { return source.keeps(parameter); };
  const bool some_stay = std::any_of(parameters.begin(), parameters.end(), stays);
  const Master kept = plan.units[group.unit].master;
  const bool apart = kept == Master::Split || kept == Master::None;
  ARTESIAN_CHECK(begin < end && end <= group.count, begin, end, group.count);
  ARTESIAN_CHECK(group.param != nullptr && (apart || group.master != nullptr));
  const auto count = static_cast<std::size_t>(end - begin);
  std::vector<float> whole(apart ? count : 0);
  const std::span<float> master{apart ? whole.data() : group.master + begin, count};
  const FloatMoments moments(group, begin, count);
  const std::array<std::span<float>, 3> arrays{master, moments.average(), moments.squares()};
  if (some_stay) {
    open_slice(group, begin, moments.squares(), master);
  } else {
    for (const auto array : arrays) std::fill(array.begin(), array.end(), 0.0f);
  }
  SubGroup part = group;
  part.image_first += begin;
  part.count = end - begin;
  for (const auto parameter : parameters) {
    const Overlap inside = overlap(plan.layout.places[parameter], part);
    if (inside.count == 0 || stays(parameter)) continue;
    const auto of = [&](std::span<float> array) {
      return array.empty() ? array : array.subspan(inside.group_first, inside.count);
    };
    ARTESIAN_TRY_VOID(source.read(parameter, inside.parameter_first, of(arrays[0]), of(arrays[1]),
                                  of(arrays[2])));
  }
  if (kept != Master::None) settle_ties(group.unit, master);
  if (kept == Master::Split) store_split(group, begin, moments.squares(), whole);
  moments.store();
  if (kept == Master::Own || kept == Master::None) {
    static_cast<void>(kernels::narrow(master.data(),
                                      group.param + begin * dtype_size(plan.param_dtype),
                                      plan.param_dtype, count));
  }
  return {};
}

Result<void> Optimizer::initialize(StateSource& source, const Progress& progress) noexcept {
  ARTESIAN_CHECK(!step_under_way());
  ARTESIAN_TRY_VOID(stop_reading());
  std::vector<std::uint32_t> whole;
  std::vector<std::uint32_t> in_part;
  std::uint64_t total = 0;
  for (std::uint32_t unit = 0; unit < state_.layout().units.size(); ++unit) {
    const Unit& each = state_.layout().units[unit];
    const auto kept =
        static_cast<std::size_t>(std::count_if(each.parameters.begin(), each.parameters.end(),
                                               [&](auto index) { return source.keeps(index); }));
    if (kept == each.parameters.size()) continue;
    (kept == 0 ? whole : in_part).push_back(unit);
    total += each.share;
  }
  std::uint64_t done = 0;
  std::mutex mutex;
  std::optional<Error> first_error;
  const auto fill = [&](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
    auto filled = fill_slice(group, source, begin, end);
    if (filled.has_value()) return;
    const std::lock_guard lock(mutex);
    if (!first_error.has_value()) first_error = std::move(filled).error();
  };
  const auto after = [&](const SubGroup& group) -> Result<void> {
    if (first_error.has_value()) return *first_error;
    done += group.count;
    if (progress) progress(done, total);
    return {};
  };
  const SubGroupStream::SlicedBody body{.slice = fill, .after = after};
  auto filled = source.comes_by_unit() ? fill_by_unit(whole, source, body)
                                       : stream_.run(whole, {.write_state = true}, body);
  if (filled.has_value()) {
    filled = stream_.run(in_part, {.read_state = true, .write_state = true},
                         {.slice = fill, .after = after});
  }
  ARTESIAN_CHECK(!filled.has_value() || done == total, done, total);
  auto written = state_.ring().finish();
  if (filled.has_value()) filled = std::move(written);
  if (options_.group != nullptr) {  // check before any rank waits for another's share
    filled = options_.group->agree(std::move(filled), {"initial values"});
  }
  ARTESIAN_TRY_VOID(std::move(filled));
  whole.insert(whole.end(), in_part.begin(), in_part.end());
  for (const std::uint32_t unit : whole) ARTESIAN_TRY_VOID(gather_shares(unit));
  return {};
}

Result<void> Optimizer::initialize(WeightSource& weights, const Progress& progress) noexcept {
  FirstState source(weights, options_.initial_squares);
  return initialize(source, progress);
}

void Optimizer::restore_counts(std::vector<std::uint64_t> counts) noexcept {
  ARTESIAN_CHECK(!step_under_way() && counts.size() == counts_.size(), counts.size());
  counts_ = std::move(counts);
}

/// A sub-group's arrays from element `begin` on, with moments from that element on, or null.
kernels::AdamArrays Optimizer::arrays_of(const SubGroup& group, std::uint64_t begin, float* average,
                                         float* squares) const noexcept {
  const Placement& plan = state_.placement();
  ARTESIAN_CHECK(group.grad != nullptr, group.unit, group.index);
  const Moments& moments = plan.moments_of(group.unit);
  ARTESIAN_CHECK((average == nullptr) == moments.average.empty(), group.unit);
  ARTESIAN_CHECK((squares == nullptr) == moments.squares.empty(), group.unit);
  kernels::AdamArrays arrays = weights_of(group, begin);
  arrays.exp_avg = average;
  arrays.exp_avg_sq = squares;
  arrays.grad = group.grad + begin * dtype_size(plan.grad_dtype);
  arrays.grad_dtype = plan.grad_dtype;
  return arrays;
}

/// The weights among these arrays.
kernels::AdamArrays Optimizer::weights_of(const SubGroup& group,
                                          std::uint64_t begin) const noexcept {
  const Placement& plan = state_.placement();
  ARTESIAN_CHECK(begin < group.count, begin, group.count);
  kernels::AdamArrays arrays;
  const Master kept = plan.units[group.unit].master;
  if (kept == Master::Split) {
    arrays.master_low = group.master_low + begin;
  } else {
    arrays.param = group.master + begin;
  }
  if (kept != Master::Parameter) {
    arrays.param_out = group.param + begin * dtype_size(plan.param_dtype);
  }
  arrays.param_out_dtype = plan.param_dtype;
  return arrays;
}

/// Fixes the step's constants for the unit's parameters. Padding counts with the one before it.
void Optimizer::fix(std::uint32_t unit) {
  std::vector<Cut>& cuts = cuts_[unit];
  cuts.clear();
  for (const auto parameter : state_.layout().units[unit].parameters) {
    const ParameterPlace& place = state_.layout().places[parameter];
    std::optional<kernels::UpdateStep> step;
    if (updates(parameter)) {
      const bool matrix = state_.layout().units[unit].rows != 0;
      step = make_update_step(constants_, place.group, counts_[parameter] + 1, matrix);
      if (lamb_.has_value()) step->constants.learning_rate *= lamb_->ratios[parameter];
    }
    ARTESIAN_CHECK(cuts.empty() || place.first > cuts.back().first, place.first);
    if (cuts.empty() || cuts.back().constants != step) {
      cuts.push_back({cuts.empty() ? 0 : place.first, step});
    }
  }
  ARTESIAN_CHECK(!cuts.empty() && state_.layout().units[unit].trainable, unit);
}

/// The first part of elements [begin, end) of a sub-group with equal constants.
Optimizer::Part Optimizer::part_at(const SubGroup& group, std::uint64_t begin,
                                   std::uint64_t end) const noexcept {
  const std::vector<Cut>& cuts = cuts_[group.unit];
  const auto next =
      std::upper_bound(cuts.begin(), cuts.end(), group.image_first + begin,
                       [](std::uint64_t element, const Cut& cut) { return element < cut.first; });
  ARTESIAN_CHECK(next != cuts.begin(), group.unit, begin);  // fix() must precede the pass
  const std::uint64_t to =
      next == cuts.end() ? end : std::min(end, next->first - group.image_first);
  ARTESIAN_CHECK(begin < to && to <= end, begin, to, end);
  return {to, std::prev(next)->constants};
}

/// Updates elements [begin, end) of a sub-group.
void Optimizer::update_slice(const SubGroup& group, std::uint64_t begin,
                             std::uint64_t end) noexcept {
  if (speculative()) copy_old(group, begin, end, Copy::ToOld);
  if (state_.layout().units[group.unit].rows != 0) return momentum_slice(group, begin, end);
  const FloatMoments moments(group, begin, end - begin);
  for (std::uint64_t from = begin; from < end;) {
    const Part part = part_at(group, from, end);
    if (part.constants.has_value()) {
      const auto arrays = arrays_of(group, from, FloatMoments::at(moments.average(), from - begin),
                                    FloatMoments::at(moments.squares(), from - begin));
      kernels::update(arrays, part.end - from, *part.constants);
    } else {
      keep_param(group, from, part.end);
    }
    from = part.end;
  }
  moments.store();
  refresh_slice(group, begin, end);
}

/// Restores parameters that are not updated, if the pass has not read them.
void Optimizer::keep_param(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept {
  const Placement& plan = state_.placement();
  if (plan.update_reads_param(group.unit)) return;
  ARTESIAN_CHECK(group.master != nullptr && end <= group.count, group.unit, end);
  static_cast<void>(kernels::narrow(group.master + begin,
                                    group.param + begin * dtype_size(plan.param_dtype),
                                    plan.param_dtype, end - begin));
}

void Optimizer::refresh_slice(const SubGroup& group, std::uint64_t begin,
                              std::uint64_t end) noexcept {
  if (ends_at_device(state_.placement().units[group.unit].gather)) return;  // follow() copies them
  residency_.refresh(group.unit, group.image_first + begin, end - begin,
                     group.param + begin * dtype_size(state_.placement().param_dtype));
}

/// Copies everything that an update of these elements changes to the memory for old state, or back;
/// does nothing for a sub-group without such memory.
void Optimizer::copy_old(const SubGroup& group, std::uint64_t begin, std::uint64_t end,
                         Copy way) noexcept {
  std::byte* old = state_.old_state(group.unit, group.index);
  if (old == nullptr) return;
  const auto copy = [&](void* array, std::uint64_t size) {
    if (array == nullptr) return;
    ARTESIAN_CHECK(end <= group.count, group.unit, group.index, end);
    std::byte* const now = static_cast<std::byte*>(array) + begin * size;
    std::byte* const then = old + begin * size;
    std::memcpy(way == Copy::ToOld ? then : now, way == Copy::ToOld ? now : then,
                (end - begin) * size);
    old += group.count * size;
  };
  copy(group.exp_avg, 4);
  copy(group.exp_avg_sq, 4);
  if (group.master_low != nullptr) {
    copy(group.master_low, 2);
    copy(group.param, dtype_size(state_.placement().param_dtype));
  } else {
    copy(group.master, 4);
  }
}

/// Restores the parameters from before an update that wrote its other state to shadows, and all
/// state without shadows.
void Optimizer::restore_slice(const SubGroup& group, std::uint64_t begin,
                              std::uint64_t end) noexcept {
  const DType dtype = state_.placement().param_dtype;
  const std::uint64_t size = dtype_size(dtype);
  copy_old(group, begin, end, Copy::FromOld);
  const bool whole = state_.placement().update_reads_param(group.unit) &&
                     state_.keeps_old_state(group.unit);  // the parameters are restored
  if (whole) return refresh_slice(group, begin, end);
  if (group.saved != nullptr) {
    std::memcpy(group.param + begin * size, group.saved + begin * size, (end - begin) * size);
  } else {
    ARTESIAN_CHECK(group.master != nullptr, group.unit, group.index);
    static_cast<void>(
        kernels::narrow(group.master + begin, group.param + begin * size, dtype, end - begin));
  }
  refresh_slice(group, begin, end);
}

/// Does what must follow the last slice of a sub-group.
Result<void> Optimizer::follow(const SubGroup& group) noexcept {
  if (!ends_at_device(state_.placement().units[group.unit].gather)) return {};
  return residency_.refresh_by_copy(tiering::Queue::ToDevice, group.unit, group.image_first,
                                    group.count, group.param);
}

Result<void> Optimizer::after_update(const SubGroup& group) noexcept {
  if (watcher_.made) watcher_.made(group);
  return follow(group);
}

/// Enqueues the update after the model's computation, which uses these parameters. Elements with
/// equal constants, over all sub-groups, are updated in one call.
Result<void> Optimizer::update_on_device(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(!step_under_way() && state_.placement().units[unit].updated_on_device());
  std::vector<std::pair<kernels::UpdateStep, std::vector<kernels::AdamPiece>>> calls;
  const std::uint64_t count = state_.placement().sub_group_count(unit);
  for (std::uint64_t index = 0; index < count; ++index) {
    const SubGroup group = stream_.at_home(unit, index);
    for (std::uint64_t from = 0; from < group.count;) {
      const Part part = part_at(group, from, group.count);
      if (part.constants.has_value()) {
        auto call = std::find_if(calls.begin(), calls.end(),
                                 [&](const auto& each) { return each.first == *part.constants; });
        if (call == calls.end()) call = calls.insert(call, {*part.constants, {}});
        const FloatMoments moments(group, from, part.end - from);
        const auto arrays = arrays_of(group, from, FloatMoments::at(moments.average(), 0),
                                      FloatMoments::at(moments.squares(), 0));
        call->second.push_back({arrays, part.end - from});
      }
      from = part.end;
    }
  }
  for (const auto& [constants, pieces] : calls) {
    ARTESIAN_TRY_VOID(state_.device().update_steps(tiering::Queue::Compute, pieces, constants));
  }
  for (std::uint64_t index = 0; index < count; ++index) {
    const SubGroup group = stream_.at_home(unit, index);
    ARTESIAN_TRY_VOID(residency_.refresh_by_copy(tiering::Queue::Compute, unit, group.image_first,
                                                 group.count, group.param));
  }
  ARTESIAN_TRY_VOID(gather_shares(unit));
  ARTESIAN_TRY(updated, state_.device().record(tiering::Queue::Compute));
  return state_.device().wait(tiering::Queue::ToDevice, updated);  // in which slots are filled
}

/// For the units listed by the order.
Result<void> Optimizer::begin_pass() noexcept {
  SubGroupStreamOptions options{.read_state = true, .read_grad = true, .write_state = true};
  if (speculative()) options.units_saved = order().ahead().size();
  SubGroupStream::SlicedBody body{
      .slice = [this](const SubGroup& group, std::uint64_t begin,
                      std::uint64_t end) { update_slice(group, begin, end); },
      .after = [this](const SubGroup& group) { return after_update(group); }};
  if (state_.placement().matrix_buffer_bytes != 0) {
    body.whole = [this](const SubGroup& group) { return orthogonalize(group); };
    body.second = [this](const SubGroup& group, std::uint64_t begin, std::uint64_t end) {
      step_slice(group, begin, end);
    };
  }
  return stream_.begin(order().pass(), options, std::move(body));
}

/// For every record with a shadow of begin_ahead's units.
void Optimizer::shadows(Shadows how) noexcept {
  if (how == Shadows::Drop && watcher_.taken_back) watcher_.taken_back();
  tiering::TierStore& store = state_.store();
  for (const std::uint32_t unit : order().ahead()) {
    if (state_.keeps_old_state(unit)) continue;
    const std::uint64_t count = state_.placement().sub_group_count(unit);
    for (std::uint64_t index = 0; index < count; ++index) {
      const tiering::ShardId record = state_.optimizer(unit, index);
      switch (how) {
        case Shadows::Begin: store.begin_shadow(record); break;
        case Shadows::Drop: store.drop_shadow(record); break;
        case Shadows::Commit: store.commit_shadow(record); break;
      }
    }
  }
}

Result<void> Optimizer::restore() noexcept {
  // Other units with final gradients are still being refreshed.
  for (const std::uint32_t unit : order().updated()) residency_.begin_refresh(unit);
  const SubGroupStreamOptions options{.restore_param = true};
  ARTESIAN_TRY_VOID(stream_.run_on_done(
      options, {.slice = [this](const SubGroup& group, std::uint64_t begin,
                                std::uint64_t end) { restore_slice(group, begin, end); },
                .after = [this](const SubGroup& group) { return follow(group); }}));
  for (const std::uint32_t unit : order().finals()) {
    ARTESIAN_TRY_VOID(residency_.end_refresh(unit));
  }
  return {};
}

/// Copies out of homes must end before the homes change.
Result<void> Optimizer::settle() noexcept {
  ARTESIAN_TRY_VOID(state_.device().join_queues());
  ARTESIAN_TRY(copied, state_.device().record(tiering::Queue::ToDevice));
  return state_.device().finish(copied);
}

void Optimizer::count_updates() noexcept {
  for (std::uint32_t parameter = 0; parameter < counts_.size(); ++parameter) {
    const std::uint32_t unit = state_.layout().places[parameter].unit;
    if (state_.layout().units[unit].trainable && updates(parameter)) ++counts_[parameter];
  }
}

/// True if forward will still find the slot that is being refreshed; a slot that is created later,
/// or evicted before forward, would be read from its home.
bool Optimizer::keeps(std::uint32_t unit) const noexcept {
  if (!residency_.follows(unit)) return false;
  if (state_.placement().units[unit].aliased() || !options_.stays) return true;
  return options_.stays(unit);
}

Result<void> Optimizer::drain() noexcept {
  ARTESIAN_TRY_VOID(stream_.finish());
  const std::uint64_t before = monotonic_ns();
  ARTESIAN_TRY_VOID(state_.ring().finish());
  drained_ns_ += monotonic_ns() - before;
  ARTESIAN_TRY_VOID(stream_.give_back_borrowed());
  return state_.device().join_queues();
}

/// Calls `visit(master, exp_avg, exp_avg_sq, count)` for this rank's part of a parameter's state,
/// piece by piece; for a frozen parameter moments are null.
template <typename Visit>
Result<void> Optimizer::for_each_own_state(std::uint32_t parameter, const Visit& visit) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const auto body = [&](const SubGroup& group) -> Result<void> {
    return for_each_piece(group, overlap(place, group), state_.placement().param_dtype, visit);
  };
  return stream_.run_range(place.unit, place.first, place.numel, {.read_state = true}, body);
}

/// The same for all of the parameter's state, in row-major order: each rank sends its part to all,
/// even after an error of the sink, which is then not called any more.
template <typename Visit>
Result<void> Optimizer::for_each_state(std::uint32_t parameter, const Visit& visit) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const Unit& unit = state_.layout().units[place.unit];
  if (options_.group == nullptr || !unit.is_cut()) {
    return for_each_own_state(parameter, visit);
  }
  comm::Group& group = *options_.group;
  const Moments& moments = state_.placement().moments_of(place.unit);
  const std::array<bool, 3> there{true, unit.trainable && !moments.average.empty(),
                                  unit.trainable && !moments.squares.empty()};
  std::vector<float> values(there.size() * passed);  // one piece of each array
  const auto array_of = [&](std::size_t array) {
    return there[array] ? values.data() + array * passed : nullptr;
  };
  std::size_t filled = 0;
  Result<void> visited;
  const auto pass = [&](std::uint32_t owner, std::size_t count) -> Result<void> {
    for (std::size_t array = 0; array < there.size(); ++array) {
      if (!there[array]) continue;
      const auto piece = std::span(array_of(array), count);
      ARTESIAN_TRY_VOID(
          group.broadcast(std::as_writable_bytes(piece), owner, {"state of", unit.name}));
    }
    if (visited.has_value()) visited = visit(array_of(0), array_of(1), array_of(2), count);
    return {};
  };
  const auto hand_on = [&](const float* p, const float* m, const float* v,
                           std::uint64_t count) -> Result<void> {
    for (std::uint64_t done = 0; done < count;) {
      const auto some = static_cast<std::size_t>(std::min(passed - filled, count - done));
      std::copy_n(p + done, some, array_of(0) + filled);
      if (m != nullptr) std::copy_n(m + done, some, array_of(1) + filled);
      if (v != nullptr) std::copy_n(v + done, some, array_of(2) + filled);
      filled += some;
      done += some;
      if (filled < passed) continue;
      ARTESIAN_TRY_VOID(pass(group.rank(), std::exchange(filled, std::size_t{0})));
    }
    return {};
  };
  for (std::uint32_t owner = 0; owner < group.ranks(); ++owner) {
    const auto [begin, end] = unit.in_share(place.first, place.numel, owner);
    if (begin == end) continue;
    if (owner != group.rank()) {
      for (std::uint64_t first = begin; first < end; first += passed) {
        ARTESIAN_TRY_VOID(pass(owner, static_cast<std::size_t>(std::min(passed, end - first))));
      }
      continue;
    }
    ARTESIAN_TRY_VOID(for_each_own_state(parameter, hand_on));
    if (filled != 0) ARTESIAN_TRY_VOID(pass(owner, filled));
  }
  return visited;
}

Result<std::string> Optimizer::digest(const std::vector<ParameterSpec>& parameters) noexcept {
  ARTESIAN_TRY_VOID(stop_reading());
  ARTESIAN_CHECK(parameters.size() == counts_.size(), parameters.size(), counts_.size());
  kernels::Digest total;
  for (std::uint32_t parameter = 0; parameter < parameters.size(); ++parameter) {
    const ParameterPlace& place = state_.layout().places[parameter];
    kernels::Digest master;
    kernels::Digest exp_avg;
    kernels::Digest exp_avg_sq;
    ARTESIAN_TRY_VOID(for_each_state(
        parameter,
        [&](const float* p, const float* m, const float* v, std::uint64_t count) -> Result<void> {
          master.update(p, count * 4);
          if (m != nullptr) exp_avg.update(m, count * 4);
          if (v != nullptr) exp_avg_sq.update(v, count * 4);
          return {};
        }));
    total.update(parameters[parameter].name.data(), parameters[parameter].name.size() + 1);
    const Moments& kept = state_.placement().moments_of(place.unit);
    const bool trainable = state_.layout().units[place.unit].trainable;
    const auto add = [&](const kernels::Digest& part) {
      const std::string hex = part.hex();
      total.update(hex.data(), hex.size());
    };
    add(master);
    if (trainable && !kept.average.empty()) add(exp_avg);
    if (trainable && !kept.squares.empty()) add(exp_avg_sq);
  }
  ARTESIAN_TRY_VOID(state_.ring().finish());
  return total.hex();
}

Result<void> Optimizer::check_kind(std::uint32_t parameter, StateKind kind) const {
  ARTESIAN_CHECK(parameter < state_.layout().places.size(), parameter);
  const std::uint32_t number = state_.layout().places[parameter].unit;
  const Unit& unit = state_.layout().units[number];
  if (kind == StateKind::Master) return {};
  if (!unit.trainable) {
    return make_error(ErrorCode::Invalid, unit.name + ": a frozen parameter has no moments");
  }
  const Moments& kept = state_.placement().moments_of(number);
  if (!(kind == StateKind::ExpAvg ? kept.average : kept.squares).empty()) return {};
  return make_error(ErrorCode::Invalid, unit.name + ": the optimizer keeps no such moment, only " +
                                            std::string(kept.average) + std::string(kept.squares));
}

Result<void> Optimizer::read_state(
    std::uint32_t parameter, StateKind kind,
    const std::function<Result<void>(std::span<const float>)>& sink) noexcept {
  ARTESIAN_TRY_VOID(check_kind(parameter, kind));
  ARTESIAN_TRY_VOID(stop_reading());
  return for_each_state(parameter, [&](const float* master, const float* exp_avg,
                                       const float* exp_avg_sq, std::uint64_t count) {
    const float* const values = kind == StateKind::Master   ? master
                                : kind == StateKind::ExpAvg ? exp_avg
                                                            : exp_avg_sq;
    return sink({values, count});
  });
}

/// Replaces elements of a sub-group from `first` on by these values of one kind.
void Optimizer::replace(const SubGroup& group, std::uint64_t first, StateKind kind,
                        std::span<const float> values) noexcept {
  const Placement& plan = state_.placement();
  const bool split = group.master_low != nullptr;
  ARTESIAN_CHECK(first + values.size() <= group.count, first, values.size(), group.count);
  const FloatMoments moments(group, first, values.size());
  const std::span<float> moment = kind == StateKind::ExpAvg ? moments.average() : moments.squares();
  ARTESIAN_CHECK(kind == StateKind::Master || !moment.empty(), group.unit);
  if (kind != StateKind::Master) {
    std::vector<float> masters(split && kind == StateKind::ExpAvgSq ? values.size() : 0);
    join_split(group, first, moments.squares(), masters);  // the tie bit is the squares' sign
    std::copy(values.begin(), values.end(), moment.begin());
    if (!masters.empty()) store_split(group, first, moments.squares(), masters);
    moments.store();
  } else if (split) {
    std::vector<float> masters(values.begin(), values.end());
    settle_ties(group.unit, masters);
    store_split(group, first, moments.squares(), masters);
    moments.store();
  } else if (group.master != nullptr) {
    std::copy(values.begin(), values.end(), group.master + first);
    settle_ties(group.unit, {group.master + first, values.size()});
  } else {
    static_cast<void>(kernels::narrow(values.data(),
                                      group.param + first * dtype_size(plan.param_dtype),
                                      plan.param_dtype, values.size()));
  }
}

Result<void> Optimizer::write_state(
    std::uint32_t parameter, StateKind kind,
    const std::function<void(std::uint64_t first, std::span<float> values)>& source) noexcept {
  ARTESIAN_CHECK(!step_under_way());
  ARTESIAN_TRY_VOID(check_kind(parameter, kind));
  ARTESIAN_TRY_VOID(stop_reading());
  const Placement& plan = state_.placement();
  const ParameterPlace& place = state_.layout().places[parameter];
  std::vector<float> values(static_cast<std::size_t>(std::min(place.numel, slice)));
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const Overlap part = overlap(place, group);
    for (std::uint64_t done = 0; done < part.count; done += values.size()) {
      const auto piece =
          std::span(values).first(std::min<std::uint64_t>(values.size(), part.count - done));
      source(part.parameter_first + done, piece);
      replace(group, part.group_first + done, kind, piece);
    }
    if (plan.units[place.unit].master == Master::Own) {  // the pass rewrites all of it
      static_cast<void>(kernels::narrow(group.master, group.param, plan.param_dtype, group.count));
    }
    return {};
  };
  auto written = stream_.run_range(place.unit, place.first, place.numel,
                                   {.read_state = true, .write_state = true}, body);
  auto finished = state_.ring().finish();
  ARTESIAN_TRY_VOID(std::move(written));
  ARTESIAN_TRY_VOID(std::move(finished));
  return kind == StateKind::Master ? gather_shares(place.unit) : Result<void>();
}

Result<void> Optimizer::read_units(
    const std::vector<std::uint32_t>& units,
    const std::function<bool(std::uint32_t unit, std::uint64_t index)>& wanted,
    const Visitor& visit) noexcept {
  ARTESIAN_CHECK(!step_under_way());
  ARTESIAN_TRY_VOID(stop_reading());
  const auto body = [&](const SubGroup& group) -> Result<void> {
    visit(group);
    return {};
  };
  ARTESIAN_TRY_VOID(stream_.run_where(units, wanted, {.read_state = true}, body));
  return state_.ring().finish();
}

}  // namespace artesian::zero3
