#include "zero3/residents.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "zero3/trace.h"

namespace artesian::zero3 {
namespace {

std::vector<std::uint64_t> elements_of(const Layout& layout) {
  std::vector<std::uint64_t> numel;
  for (const Unit& unit : layout.units) numel.push_back(unit.numel);
  return numel;
}

/// Forward through all stages and back, as UnitGraphs goes: backward does without the values of
/// what was looked up.
Trace trace_of_a_pass(const Layout& layout, const std::vector<StageSpec>& stages) {
  Trace trace(elements_of(layout));
  for (const auto& units : layout.stages) trace.record(units);
  for (std::size_t stage = stages.size(); stage-- > 0;) {
    Trace::Access units = layout.stages[stage];
    const auto& lookup = stages[stage].lookup;
    if (lookup.has_value()) std::erase(units, layout.places[*lookup].unit);
    trace.record(units);
  }
  return trace;
}

/// The gathered units while a pass goes round and round.
class Gathered {
 public:
  Gathered(const Layout& layout, const Trace& trace, FetchLimits limits)
      : layout_(layout), trace_(trace), limits_(limits), live_(layout.units.size(), false) {}

  /// One access: what is not there is fetched, and counted; what is needed last makes room.
  void enter(std::size_t index, std::vector<std::uint64_t>& fetches) {
    const Trace::Access& units = trace_.at(index);
    for (const auto unit : units) {
      if (live_[unit] || layout_.units[unit].persistent) continue;
      live_[unit] = true;
      elements_ += layout_.units[unit].numel;
      ++fetches[unit];
    }
    while (elements_ > limits_.slots) {
      const auto last = needed_last(index);
      if (!last.has_value()) break;  // the placement sees to it that a stage fits
      drop(*last);
    }
  }
  void leave(std::size_t index) {
    for (const auto unit : trace_.at(index)) {
      const bool far = trace_.reuse_distance(index, unit) > limits_.reuse_distance_max;
      if (far || elements_ > limits_.live_max) drop(unit);
    }
  }

 private:
  std::optional<std::uint32_t> needed_last(std::size_t index) const {
    const Trace::Access& in_use = trace_.at(index);
    std::optional<std::uint32_t> last;
    std::uint64_t farthest = 0;
    for (std::uint32_t unit = 0; unit < live_.size(); ++unit) {
      if (!live_[unit] || std::count(in_use.begin(), in_use.end(), unit) != 0) continue;
      const std::uint64_t ahead = trace_.next_use(index, unit);
      if (ahead <= farthest) continue;
      farthest = ahead;
      last = unit;
    }
    return last;
  }
  void drop(std::uint32_t unit) {
    if (!live_[unit]) return;
    live_[unit] = false;
    elements_ -= layout_.units[unit].numel;
  }

  const Layout& layout_;
  const Trace& trace_;
  const FetchLimits limits_;
  std::vector<bool> live_;  // by unit
  std::uint64_t elements_ = 0;
};

}  // namespace

std::vector<Candidate> choose_residents(std::vector<Candidate> candidates, ResidentLimits limits) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.moves != b.moves ? a.moves > b.moves : a.kind < b.kind;
                   });
  std::vector<Candidate> residents;
  for (const Candidate& candidate : candidates) {
    if (candidate.bytes > limits.bytes || candidate.elements > limits.elements_max) continue;
    limits.bytes -= candidate.bytes;
    limits.elements_max -= candidate.elements;
    residents.push_back(candidate);
  }
  return residents;
}

/// Multiples of the golden ratio, modulo 1, cut the circle as evenly as any order can.
std::vector<std::uint64_t> spread_order(std::uint64_t count) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / 1.618...
  std::vector<std::uint64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(),
            [](std::uint64_t a, std::uint64_t b) { return a * golden < b * golden; });
  return order;
}

std::vector<std::uint64_t> fetches_of_a_pass(const Layout& layout,
                                             const std::vector<StageSpec>& stages,
                                             FetchLimits limits) {
  const Trace trace = trace_of_a_pass(layout, stages);
  Gathered gathered(layout, trace, limits);
  std::vector<std::uint64_t> fetches;
  for (int round = 0; round < 3; ++round) {  // what the first one finds gathered is not typical
    fetches.assign(layout.units.size(), 0);
    for (std::size_t index = 0; index < trace.size(); ++index) {
      gathered.enter(index, fetches);
      gathered.leave(index);
    }
  }
  return fetches;
}

}  // namespace artesian::zero3
