#include "zero3/plan/exchange_buffers.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t elements_max = 8 << 20;  // elements sent at a time, over all shares
constexpr std::uint64_t header_fixed = 64;       // bytes
constexpr std::uint64_t line = 64;               // bytes: alignment of slices

/// True unless exactly one stage uses the unit: then backward is done with it with that stage.
bool is_tied(const Layout& layout, std::uint32_t unit) {
  std::ptrdiff_t uses = 0;
  for (const auto& stage : layout.stages) uses += std::count(stage.begin(), stage.end(), unit);
  return uses != 1;
}

/// If units are sent early, the stages share one place, except for tied units.
void place_held(const Layout& layout, bool early, ExchangeBuffers& buffers) {
  const std::uint64_t size = dtype_size(buffers.held_dtype);
  const auto bytes_of = [&](std::uint32_t unit) {
    return layout.units[unit].trainable ? layout.units[unit].image * size : 0;
  };
  buffers.held_at.resize(layout.units.size());
  for (std::uint32_t unit = 0; unit < layout.units.size(); ++unit) {
    if (early && !is_tied(layout, unit)) continue;
    buffers.held_at[unit] = buffers.held;
    buffers.held += bytes_of(unit);
  }
  if (!early) return;
  std::uint64_t largest = 0;
  for (const auto& stage : layout.stages) {
    std::uint64_t of_stage = 0;
    for (const std::uint32_t unit : stage) {
      if (is_tied(layout, unit)) continue;
      buffers.held_at[unit] = buffers.held + of_stage;
      of_stage += bytes_of(unit);
    }
    largest = std::max(largest, of_stage);
  }
  buffers.held += largest;
}

}  // namespace

std::uint64_t ExchangeBuffers::bytes_of(const Unit& unit) const noexcept {
  ARTESIAN_CHECK(ranks > 1 && slice != 0, ranks, slice);
  const std::uint64_t headers = on_device ? 1 : (unit.share + slice - 1) / slice;
  return (ranks - 1) * (unit.share * element_size + headers * header);
}

ExchangeBuffers exchange_buffers(const Layout& layout, const std::vector<ParameterSpec>& parameters,
                                 const ExchangeOfRanks& of) {
  ARTESIAN_CHECK(of.ranks > 1, of.ranks);
  ExchangeBuffers buffers{.ranks = of.ranks, .on_device = of.on_device};
  buffers.held_dtype = of.once ? of.grad_dtype : of.param_dtype;
  const bool wide = of.param_dtype == DType::Float32 || buffers.held_dtype == DType::Float32;
  buffers.sent_dtype = wide ? of.sent_dtype.value_or(of.param_dtype) : of.param_dtype;
  buffers.element_size = dtype_size(buffers.sent_dtype);
  buffers.once = of.once;
  buffers.held_there = of.hooked && of.on_device && of.hold_there && !of.once;
  std::uint64_t share = 0;
  std::size_t most = 0;
  for (const Unit& unit : layout.units) {
    if (!unit.trainable) continue;
    share = std::max(share, unit.share);
    most = std::max(most, unit.parameters.size());
    for (const std::uint32_t parameter : unit.parameters) {
      if (!parameters[parameter].tiled || !of.in_tiles) continue;
      buffers.whole = std::max(buffers.whole, layout.places[parameter].numel);
    }
  }
  if (of.hooked || of.once) place_held(layout, of.cut && !of.once, buffers);
  const std::uint64_t fair = std::max(round_down(elements_max / of.ranks, image_alignment),
                                      std::uint64_t{image_alignment});
  buffers.slice = std::min(share, fair);
  buffers.header = round_up(header_fixed + (most + 7) / 8, line);
  buffers.whole = round_up(buffers.whole * dtype_size(of.param_dtype), std::uint64_t{4096});
  return buffers;
}

}  // namespace artesian::zero3
