#include "zero3/step/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cast.h"
#include "kernels/gradient.h"
#include "zero3/step/accumulate.h"

namespace artesian::zero3 {

using kernels::norm_leaf;
using tiering::Route;
using tiering::Tier;

namespace {

constexpr std::uint64_t slice = 16384;  // elements per task of the thread pool
// Elements of rows summed at a time: 4 MiB, or one row.
constexpr std::uint64_t row_floats = 1 << 20;
constexpr std::uint64_t task_leaves = 32;  // leaves summed by one task of the thread pool
static_assert(image_alignment % norm_leaf == 0 && parameter_alignment % norm_leaf == 0);

}  // namespace

Gradients::Gradients(ModelState& state, comm::Group* group, Bus* bus)
    : state_(state),
      stream_(state, "gradients"),
      additions_(state.placement()),
      leaf_sums_(state.layout()) {
  const Placement& plan = state.placement();
  if (group != nullptr) {
    exchange_.emplace(plan, *group, state.exchange_buffer(), state.executor(),
                      state.separate_device() ? &state.reader() : nullptr);
    if (plan.exchange.on_device) exchange_->take_bus(*bus, state.exchange_on_device());
  }
  if (plan.exchange.held != 0) {
    sums_.emplace(plan, exchange_->held(), state.executor(), state.device());
  }
  cleared_.assign(plan.layout.units.size(), false);
  forget();
  for (std::uint32_t unit = 0; unit < plan.layout.units.size(); ++unit) {
    if (trainable(unit) && !spilled(unit) && !on_device(unit)) {
      // Padding must be zero, which fresh memory need not be.
      std::memset(state.store().memory(state.grad(unit)), 0, plan.grad_bytes(unit));
    }
  }
}

/// Clears the accumulation. Frozen units count as summed: they have no gradient.
void Gradients::forget() noexcept {
  additions_.begin_step();
  summed_.assign(state_.layout().units.size(), false);
  for (std::uint32_t unit = 0; unit < summed_.size(); ++unit) summed_[unit] = !trainable(unit);
}

void Gradients::begin_step() noexcept {
  forget();
  held_.clear();  // left by an abandoned step
  parts_.clear();
  if (holds()) drop_held();
}

Result<void> Gradients::finish_writes() noexcept {
  if (!writing_) return {};
  ARTESIAN_TRY_VOID(stream_.finish_left());
  writing_ = false;
  return {};
}

Result<void> Gradients::read(
    std::uint32_t parameter,
    const std::function<Result<void>(std::span<const float>)>& sink) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  ARTESIAN_CHECK(reached(parameter), parameter);
  ARTESIAN_TRY_VOID(follow_bus());
  ARTESIAN_TRY_VOID(write_back());
  ARTESIAN_TRY_VOID(finish_writes());
  if (exchange_.has_value()) return read_of_ranks(parameter, sink);
  return read_range(parameter, {0, place.numel}, sink);
}

/// Elements of the parameter.
Result<void> Gradients::read_range(
    std::uint32_t parameter, const Range& range,
    const std::function<Result<void>(std::span<const float>)>& sink) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const DType dtype = state_.placement().grad_dtype;
  std::vector<float> values(static_cast<std::size_t>(std::min(range.end - range.first, slice)));
  const auto expanded_to_sink = [&](const std::byte* elements,
                                    std::uint64_t count) -> Result<void> {
    for (std::uint64_t done = 0; done < count; done += values.size()) {
      const auto piece =
          std::span(values).first(std::min<std::uint64_t>(values.size(), count - done));
      kernels::expand(elements + done * element_size(), dtype, piece.data(), piece.size());
      ARTESIAN_TRY_VOID(sink(piece));
    }
    return {};
  };
  if (on_device(place.unit)) {
    const std::byte* memory = state_.store().memory(state_.grad(place.unit));
    const std::uint64_t in_share = place.first + range.first - state_.share_begin(place.unit);
    const tiering::DeviceReader::Part part{memory + in_share * element_size(),
                                           (range.end - range.first) * element_size()};
    ARTESIAN_TRY(added, state_.device().record(tiering::Queue::Compute));
    return state_.reader().read(
        {&part, 1}, added, [&](std::size_t, std::uint64_t, std::span<const std::byte> bytes) {
          return expanded_to_sink(bytes.data(), bytes.size() / element_size());
        });
  }
  const auto body = [&](const SubGroup& group) -> Result<void> {
    const Overlap part = overlap(place, group);
    const std::uint64_t begin = std::max<std::uint64_t>(part.parameter_first, range.first);
    const std::uint64_t end = std::min(part.parameter_first + part.count, range.end);
    if (begin >= end) return {};
    const std::uint64_t in_group = part.group_first + (begin - part.parameter_first);
    return expanded_to_sink(group.grad + in_group * element_size(), end - begin);
  };
  return stream_.run_range(place.unit, place.first + range.first, range.end - range.first,
                           {.read_grad = true, .read_priority = aio::Priority::Demand}, body);
}

Result<void> Gradients::replace(const ParameterGradient& gradient) noexcept {
  ARTESIAN_CHECK(gradient.parameter < state_.layout().places.size(), gradient.parameter);
  const std::uint32_t unit = state_.layout().places[gradient.parameter].unit;
  additions_.replace(gradient.parameter);
  const bool mine = !exchange_.has_value() || exchange_->group().rank() == 0;
  ARTESIAN_TRY(made, state_.device().record(tiering::Queue::Compute));
  ARTESIAN_TRY_VOID(add(unit, {&gradient, mine ? std::size_t{1} : 0}, made));
  return write_back();
}

Error Gradients::cause_of(Error error) noexcept {
  if (error.code != ErrorCode::Io && error.code != ErrorCode::NoSpace) return error;
  auto written = finish_writes();
  return written.has_value() ? error : std::move(written).error();
}

DType Gradients::added_dtype(std::uint32_t unit) const noexcept {
  const Placement& plan = state_.placement();
  switch (route(unit)) {
    case Route::Queues: return plan.param_dtype;  // half the bytes to move
    default: return plan.compute_dtype == plan.param_dtype ? plan.param_dtype : DType::Float32;
  }
}

/// Adds elements [begin, end) of one piece in host memory. A piece that was rounded before is not
/// rounded again.
void Gradients::accumulate_part(std::byte* target, const Piece& piece, DType dtype,
                                std::uint64_t begin, std::uint64_t end) noexcept {
  const Placement& plan = state_.placement();
  const auto how = piece.fresh ? kernels::Accumulate::Set : kernels::Accumulate::Add;
  zero3::accumulate({target, plan.grad_dtype, plan.param_dtype, how}, piece.data, dtype, begin,
                    end);
}

/// Adds one piece, divided among the threads.
void Gradients::accumulate_piece(std::byte* target, const Piece& piece, DType dtype) noexcept {
  state_.executor().parallel_for(piece.count, slice, [&](std::uint64_t begin, std::uint64_t end) {
    accumulate_part(target, piece, dtype, begin, end);
  });
}

/// Adds pieces to the unit's accumulator in host memory.
Result<void> Gradients::accumulate(std::byte* memory, const std::vector<Piece>& pieces,
                                   const GradientSource& source) noexcept {
  const std::uint64_t size = dtype_size(state_.placement().grad_dtype);
  const auto target_of = [&](const Piece& piece) { return memory + piece.first * size; };
  const std::uint64_t source_size = dtype_size(source.dtype);
  if (!source.on_device) {
    std::uint64_t largest = 1;
    for (const Piece& piece : pieces) largest = std::max(largest, piece.count);
    if (largest > slice) {
      for (const Piece& piece : pieces) accumulate_piece(target_of(piece), piece, source.dtype);
      return {};
    }
    // Rows: each is too small for a parallel region, so all share one.
    state_.executor().parallel_for(
        pieces.size(), slice / largest, [&](std::uint64_t from, std::uint64_t to) {
          for (; from < to; ++from) {
            const Piece& piece = pieces[static_cast<std::size_t>(from)];
            accumulate_part(target_of(piece), piece, source.dtype, 0, piece.count);
          }
        });
    return {};
  }
  std::vector<tiering::DeviceReader::Part> parts;
  parts.reserve(pieces.size());
  for (const Piece& piece : pieces) parts.push_back({piece.data, piece.count * source_size});
  const auto sink = [&](std::size_t index, std::uint64_t offset,
                        std::span<const std::byte> bytes) -> Result<void> {
    const Piece part{pieces[index].first + offset / source_size, bytes.size() / source_size,
                     bytes.data(), pieces[index].fresh};
    accumulate_piece(target_of(part), part, source.dtype);
    return {};
  };
  return state_.reader().read(parts, source.written, sink);
}

Result<void> Gradients::add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                            tiering::DeviceFence written) noexcept {
  const Layout& layout = state_.layout();
  ARTESIAN_CHECK(trainable(unit), unit);
  const GradientSource source{
      .dtype = added_dtype(unit), .on_device = ends_at_device(route(unit)), .written = written};
  if (exchange_.has_value()) return add_of_all_ranks(unit, {gradients, source});
  std::vector<Piece> pieces;
  for (const ParameterGradient& gradient : gradients) {
    const ParameterPlace& place = layout.places[gradient.parameter];
    ARTESIAN_CHECK(place.unit == unit, place.unit, unit);
    ARTESIAN_CHECK(gradient.data != nullptr, gradient.parameter);
    pieces.push_back({place.first, place.numel, static_cast<const std::byte*>(gradient.data),
                      additions_.sets(gradient.parameter)});
    additions_.added(gradient.parameter);
  }
  return add_pieces(unit, std::move(pieces), source);
}

/// Adds all ranks' gradients slice by slice, and within a slice in the order of the ranks.
Result<void> Gradients::add_of_all_ranks(std::uint32_t unit, const GradientsOfUnit& own,
                                         const GradientExchange::Rows* rows) noexcept {
  const Layout& layout = state_.layout();
  const Unit& described = layout.units[unit];
  const DType sent = state_.placement().exchange.sent_dtype;
  const std::uint64_t size = dtype_size(sent);
  // By parameter: whether any rank has a gradient, for this slice.
  std::vector<bool> present(described.parameters.size());
  const auto sink = [&](const GradientExchange::Arrived& arrived) -> Result<void> {
    if (arrived.rank == 0) present.assign(present.size(), false);
    std::vector<Piece> pieces;
    bool some = false;
    for (std::size_t index = 0; index < present.size(); ++index) {
      if (!arrived.present[index]) continue;
      some = true;
      const std::uint32_t parameter = described.parameters[index];
      const bool fresh = additions_.sets(parameter) && !present[index];
      present[index] = true;
      const InShare part = in_share(layout.places[parameter]);
      const std::uint64_t begin = std::max(part.first, arrived.first);
      const std::uint64_t end = std::min(part.first + part.count, arrived.first + arrived.count);
      if (begin >= end) continue;
      pieces.push_back({begin, end - begin, arrived.data + (begin - arrived.first) * size, fresh});
    }
    if (some) {
      ARTESIAN_TRY_VOID(add_pieces(unit, std::move(pieces), arrived.source));
    }
    if (rows == nullptr) return {};
    return add_runs(described.parameters.front(), *rows, arrived.rank,
                    {arrived.first, arrived.first + arrived.count});
  };
  ARTESIAN_TRY_VOID(exchange_->run(unit, own, sink));
  if (on_device(unit)) {  // added in the queue Bus, beside the next stage's backward
    ARTESIAN_TRY(added, state_.device().record(tiering::Queue::Bus));
    added_ = added;
  }
  for (std::size_t index = 0; index < present.size(); ++index) {
    if (present[index]) additions_.added(described.parameters[index]);
  }
  return {};
}

Gradients::InShare Gradients::in_share(const ParameterPlace& place) const noexcept {
  const Unit& unit = state_.layout().units[place.unit];
  const Unit::Range part = unit.in_share(place.first, place.numel, state_.rank());
  if (part.count() == 0) return {};
  return {part.begin - state_.share_begin(place.unit), part.count()};
}

/// Checks that pieces do not overlap in the unit's share, so that threads may add to them at the
/// same time.
void Gradients::check_apart(std::uint32_t unit, const std::vector<Piece>& pieces) const noexcept {
  std::uint64_t end = 0;
  for (const Piece& piece : pieces) {
    ARTESIAN_CHECK(end <= piece.first && piece.count != 0, unit, piece.first, end);
    end = piece.first + piece.count;
  }
  ARTESIAN_CHECK(end <= state_.layout().units[unit].share, unit, end);
}

Result<void> Gradients::add_pieces(std::uint32_t unit, std::vector<Piece> pieces,
                                   const GradientSource& source) noexcept {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.first < b.first; });
  ARTESIAN_CHECK(!summed_[unit], unit);  // sum_final() must come after the last addition
  check_apart(unit, pieces);
  if (spilled(unit)) {
    ARTESIAN_TRY(held, hold_for(unit, pieces));
    return accumulate(held, pieces, source);
  }
  if (on_device(unit)) return add_on_device(unit, pieces, source);
  return accumulate(state_.store().memory(state_.grad(unit)), pieces, source);
}

Result<void> Gradients::begin_parts(std::uint32_t parameter) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const Piece whole{place.first, place.numel, nullptr, additions_.sets(parameter)};
  ARTESIAN_CHECK(trainable(place.unit) && !ends_at_device(route(place.unit)), parameter);
  ARTESIAN_CHECK(place.numel == state_.layout().units[place.unit].numel, parameter, place.unit);
  ARTESIAN_CHECK(!parts_.contains(parameter) && !summed_[place.unit], parameter);
  Parts parts{.fresh = whole.fresh};
  if (holds()) {
    parts_[parameter] = {};
    return {};
  }
  if (exchange_.has_value()) {
    ARTESIAN_CHECK(parts_.empty(), parameter);  // there is memory for one at a time
    parts_[parameter] = {.target = exchange_->whole()};
    return {};
  }
  std::byte* memory = nullptr;
  if (spilled(place.unit)) {
    ARTESIAN_TRY(held, hold_for(place.unit, {whole}));
    memory = held;
  } else {
    memory = state_.store().memory(state_.grad(place.unit));
  }
  parts.target = memory + place.first * element_size();
  parts_[parameter] = parts;
  return {};
}

void Gradients::add_part(std::uint32_t parameter, std::uint64_t first, const float* data,
                         std::uint64_t count) noexcept {
  const ParameterPlace& place = state_.layout().places[parameter];
  const auto open = parts_.find(parameter);
  ARTESIAN_CHECK(open != parts_.end() && first + count <= place.numel, parameter, first, count);
  Parts& parts = open->second;
  parts.added += count;
  if (holds()) {
    sums_->add(parameter, first, reinterpret_cast<const std::byte*>(data), DType::Float32, count);
    return;
  }
  if (exchange_.has_value()) {
    const DType dtype = state_.placement().param_dtype;
    std::byte* const target = parts.target + first * dtype_size(dtype);
    state_.executor().parallel_for(count, slice, [&](std::uint64_t begin, std::uint64_t end) {
      static_cast<void>(
          kernels::narrow(data + begin, target + begin * dtype_size(dtype), dtype, end - begin));
    });
    return;
  }
  const Piece piece{place.first + first, count, reinterpret_cast<const std::byte*>(data),
                    parts.fresh};
  accumulate_piece(parts.target + first * element_size(), piece, DType::Float32);
}

Result<std::uint64_t> Gradients::end_parts(std::uint32_t parameter) noexcept {
  const auto open = parts_.find(parameter);
  ARTESIAN_CHECK(open != parts_.end(), parameter);
  const Parts parts = open->second;
  parts_.erase(open);
  if (holds()) {
    if (parts.added != 0) sums_->added(parameter);
    return parts.added;
  }
  const ParameterPlace& place = state_.layout().places[parameter];
  if (exchange_.has_value()) {
    const ParameterGradient gradient{parameter, parts.target};
    ARTESIAN_TRY_VOID(add_of_all_ranks(
        place.unit, {.gradients = std::span(&gradient, parts.added == place.numel ? 1 : 0),
                     .source = {.dtype = state_.placement().param_dtype}}));
    return parts.added;
  }
  if (parts.added == 0) return std::uint64_t{0};  // not used by this forward
  additions_.added(parameter);
  return parts.added;
}

/// Returns the unit's place in the buffer; if the buffer is full, the other units are written
/// first.
Result<std::byte*> Gradients::hold(std::uint32_t unit) noexcept {
  const Placement& plan = state_.placement();
  std::uint64_t used = 0;
  for (Held& held : held_) {
    if (held.unit == unit) return held.data;
    used += plan.grad_bytes(held.unit);
  }
  if (used + plan.grad_bytes(unit) > plan.grad_buffer_bytes) {
    ARTESIAN_TRY_VOID(write_back());
    used = 0;
  }
  ARTESIAN_CHECK(used + plan.grad_bytes(unit) <= plan.grad_buffer_bytes, used, unit);
  held_.push_back({unit, state_.grad_buffer().data() + used});
  return held_.back().data;
}

/// Returns the unit in the buffer, with the accumulated elements to which the pieces are added.
Result<std::byte*> Gradients::hold_for(std::uint32_t unit,
                                       const std::vector<Piece>& pieces) noexcept {
  ARTESIAN_TRY(held, hold(unit));
  const auto entry = additions_.enter(unit, pieces);
  if (entry.as_zeros) std::memset(held, 0, state_.placement().grad_bytes(unit));
  if (entry.read.empty()) return held;
  const std::uint64_t size = element_size();
  const auto body = [&](const SubGroup& group) -> Result<void> {
    std::memcpy(held + group.share_first * size, group.grad, group.count * size);
    return {};
  };
  auto read = stream_.run_some(unit, entry.read,
                               {.read_grad = true, .read_priority = aio::Priority::Demand}, body);
  if (!read.has_value()) return cause_of(std::move(read).error());
  return held;
}

Result<void> Gradients::write_back() noexcept {
  const std::uint64_t size = element_size();
  for (const Held& held : held_) {
    ARTESIAN_CHECK(!summed_[held.unit], held.unit);
    const std::vector<std::uint64_t> groups = additions_.leave(held.unit);
    sum_held(held, groups);
    const auto body = [&](const SubGroup& group) -> Result<void> {
      std::memcpy(group.grad, held.data + group.share_first * size, group.count * size);
      return {};
    };
    writing_ = true;
    auto written = stream_.run_some(held.unit, groups, {.write_grad = true}, body);
    if (!written.has_value()) return cause_of(std::move(written).error());
  }
  held_.clear();
  return {};
}

Result<void> Gradients::add_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                                 std::span<const float* const> row_gradients,
                                 std::uint64_t width) noexcept {
  ARTESIAN_CHECK(rows.size() == row_gradients.size(), rows.size(), row_gradients.size());
  ARTESIAN_TRY_VOID(follow_bus());
  ARTESIAN_TRY_VOID(start_at_zero(state_.layout().places[parameter].unit));  // other rows
  additions_.added_rows(parameter);
  return sum_rows(parameter, rows, row_gradients, width, {});
}

/// Adds the rows' sums in a range of elements.
Result<void> Gradients::sum_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                                 std::span<const float* const> row_gradients, std::uint64_t width,
                                 const Range& range) noexcept {
  const Layout& layout = state_.layout();
  const ParameterPlace& place = layout.places[parameter];
  ARTESIAN_CHECK(width != 0 && place.numel % width == 0, width, place.numel);
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rows[a] < rows[b]; });
  // Index in `order` of the first entry of each looked-up row; and the end.
  std::vector<std::size_t> firsts;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::int64_t row = rows[order[at]];
    if (at == 0 || row != rows[order[at - 1]]) firsts.push_back(at);
  }
  firsts.push_back(order.size());
  const auto rows_max = static_cast<std::size_t>(std::max<std::uint64_t>(row_floats / width, 1));
  const std::size_t count = firsts.size() - 1;
  std::vector<float> sums(std::min(rows_max, count) * static_cast<std::size_t>(width));
  for (std::size_t first = 0; first < count; first += rows_max) {
    const std::size_t some = std::min(rows_max, count - first);
    std::vector<Piece> pieces(some);
    const auto sum_row = [&](std::size_t at) {
      const std::int64_t row = rows[order[firsts[first + at]]];
      const RowInShare part = row_in_share(layout, parameter, width, row, state_.rank());
      const std::uint64_t begin = std::max(part.share_first, range.first);
      const std::uint64_t end = std::min(part.share_first + part.count, range.end);
      if (begin >= end) return;
      const std::uint64_t skipped = begin - part.share_first;
      float* const sum = sums.data() + at * width;
      std::fill_n(sum, end - begin, 0.0f);
      for (std::size_t turn = firsts[first + at]; turn < firsts[first + at + 1]; ++turn) {
        const float* gradient = row_gradients[order[turn]] + skipped;
        for (std::uint64_t column = 0; column < end - begin; ++column) {
          sum[column] += gradient[column];
        }
      }
      pieces[at] = {begin, end - begin, reinterpret_cast<const std::byte*>(sum), false};
    };
    state_.executor().parallel_for(some, std::max<std::uint64_t>(slice / width, 1),
                                   [&](std::uint64_t from, std::uint64_t to) {
                                     for (; from < to; ++from) sum_row(from);
                                   });
    std::erase_if(pieces, [](const Piece& piece) { return piece.count == 0; });
    if (!pieces.empty()) ARTESIAN_TRY_VOID(add_pieces(place.unit, std::move(pieces), {}));
  }
  return {};
}

Result<void> Gradients::add_lookups(std::uint32_t parameter, std::span<const RowsOfLookup> lookups,
                                    std::uint64_t width) noexcept {
  if (exchange_.has_value()) {
    ARTESIAN_TRY(all, exchange_->rows(parameter, lookups, width));
    return all.some ? add_rows(parameter, all.rows, all.gradients, width) : Result<void>();
  }
  std::vector<std::int64_t> rows;
  std::vector<const float*> gradients;
  for (const RowsOfLookup& lookup : lookups) {
    for (std::size_t at = 0; at < lookup.rows.size(); ++at) {
      rows.push_back(lookup.rows[at]);
      gradients.push_back(lookup.gradient + at * width);
    }
  }
  return rows.empty() ? Result<void>() : add_rows(parameter, rows, gradients, width);
}

Result<void> Gradients::complete() noexcept {
  ARTESIAN_CHECK(parts_.empty(), parts_.size());
  ARTESIAN_TRY_VOID(follow_bus());
  for (std::uint32_t unit = 0; unit < summed_.size(); ++unit) {
    if (trainable(unit)) ARTESIAN_TRY_VOID(start_at_zero(unit));
  }
  ARTESIAN_TRY_VOID(write_back());
  return finish_writes();
}

/// Sets the gradients of the unit's parameters without one in this step to zeros.
Result<void> Gradients::start_at_zero(std::uint32_t unit) noexcept {
  const auto zeros = additions_.zero_rest(unit);
  if (zeros.in_buffer) ARTESIAN_TRY_VOID(hold_for(unit, {}));
  for (const auto parameter : zeros.in_memory) {
    ARTESIAN_TRY_VOID(zero(state_.layout().places[parameter]));
  }
  return {};
}

/// Zeroes a parameter's elements in an accumulator in memory.
Result<void> Gradients::zero(const ParameterPlace& place) noexcept {
  const std::uint64_t size = element_size();
  const InShare part = in_share(place);
  std::byte* const memory = state_.store().memory(state_.grad(place.unit)) + part.first * size;
  if (on_device(place.unit)) {
    ARTESIAN_TRY_VOID(clear_on_device(place.unit, tiering::Queue::Compute));
    return state_.device().zero(tiering::Queue::Compute, memory, part.count * size);
  }
  std::memset(memory, 0, part.count * size);
  return {};
}

/// Sums leaves [first, end) of this rank's share of a unit in host memory.
void Gradients::sum_leaves(std::uint32_t unit, const std::byte* memory, std::uint64_t first,
                           std::uint64_t end) noexcept {
  const DType dtype = state_.placement().grad_dtype;
  const std::uint64_t share_leaf = state_.share_begin(unit) / norm_leaf;
  ARTESIAN_CHECK(first <= end && share_leaf + end <= leaf_sums_.of(unit).size(), unit, first, end);
  const std::byte* data = memory + first * norm_leaf * dtype_size(dtype);
  double* sums = leaf_sums_.of(unit).data() + share_leaf + first;
  state_.executor().parallel_for(
      end - first, task_leaves, [&](std::uint64_t from, std::uint64_t to) {
        kernels::sum_squares(data + from * norm_leaf * dtype_size(dtype), dtype,
                             (to - from) * norm_leaf, sums + from);
      });
}

/// Sums all leaves of an accumulator in host memory.
void Gradients::sum_unit(std::uint32_t unit) noexcept {
  sum_leaves(unit, state_.store().memory(state_.grad(unit)), 0,
             state_.layout().units[unit].share / norm_leaf);
}

/// Sums the unit's sub-groups in the buffer; the sums of other sub-groups are unchanged.
void Gradients::sum_held(const Held& held, const std::vector<std::uint64_t>& groups) noexcept {
  const Placement& plan = state_.placement();
  for (const std::uint64_t group : groups) {
    const std::uint64_t first = group * plan.sub_group_of(held.unit);
    const std::uint64_t count = plan.sub_group_numel(held.unit, group);
    sum_leaves(held.unit, held.data, first / norm_leaf, (first + count) / norm_leaf);
  }
}

std::optional<double> Gradients::sum_final(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(state_.placement().units[unit].grad == Tier::Host, unit);
  const auto zeros = start_at_zero(unit);  // no micro-batch used it; in memory this cannot fail
  ARTESIAN_CHECK(zeros.has_value(), unit);
  sum_unit(unit);
  summed_[unit] = true;
  double sum = 0.0;
  for (const double leaf : leaf_sums_.of(unit)) sum += leaf;
  return std::isfinite(sum) ? std::optional(sum) : std::nullopt;
}

void Gradients::forget_sums() noexcept {
  for (std::uint32_t unit = 0; unit < summed_.size(); ++unit) {
    if (!summed_[unit] || !trainable(unit)) continue;
    summed_[unit] = false;
    additions_.undo_zeros(unit);
  }
}

Result<GradientNorm> Gradients::norm() noexcept {
  ARTESIAN_CHECK(!writing_);  // complete() must precede norm()
  for (std::uint32_t unit = 0; unit < summed_.size(); ++unit) {
    if (summed_[unit]) continue;
    ARTESIAN_CHECK(additions_.is_whole(unit), unit);
    if (on_device(unit)) {
      ARTESIAN_TRY_VOID(sum_unit_on_device(unit));
    } else if (!spilled(unit)) {  // for spilled units write_back() has computed the sums
      sum_unit(unit);
    }
  }
  if (exchange_.has_value()) {
    ARTESIAN_TRY_VOID(leaf_sums_.gather(exchange_->group(), "sums of the norm"));
  }
  GradientNorm norm;
  const auto& places = state_.layout().places;
  for (std::uint32_t parameter = 0; parameter < places.size(); ++parameter) {
    const ParameterPlace& place = places[parameter];
    if (!trainable(place.unit)) continue;
    for (const double each : leaf_sums_.of(place)) norm.sum_squares += each;
    if (!norm.finite || std::isfinite(norm.sum_squares)) continue;  // finite leaves cannot overflow
    norm.finite = false;
    norm.bad_parameter = parameter;
  }
  return norm;
}

}  // namespace artesian::zero3
