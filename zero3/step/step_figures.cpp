#include "zero3/step/step_figures.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/machine.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {
namespace {

/// The fields of a StepResult that count up from the engine's creation, in order.
template <typename Visit>
void for_each_counter(const Visit& visit) {
  for (const auto counter :
       {&StepResult::bytes_nvme_read, &StepResult::bytes_nvme_write, &StepResult::bytes_h2d,
        &StepResult::bytes_d2h, &StepResult::bytes_bus}) {
    visit(counter);
  }
  visit(&StepResult::bytes_paths);
  for (const auto counter :
       {&StepResult::wait_param_s, &StepResult::wait_grad_s, &StepResult::wait_optimizer_s,
        &StepResult::wait_input_s, &StepResult::forward_s, &StepResult::backward_s,
        &StepResult::gradient_s, &StepResult::cast_s, &StepResult::bus_s}) {
    visit(counter);
  }
}

}  // namespace

StepFigures::StepFigures(const FigureSources& sources)
    : from_(sources), prediction_(sources.state.disks()) {
  const ModelState& state = from_.state;
  MovedByKind update;
  for (std::uint32_t unit = 0; unit < state.layout().units.size(); ++unit) {
    update += update_moves(state.placement(), unit, /*live=*/true);
  }
  update_bytes_ =
      divide_over_paths(update, state.param_shares(), state.optimizer_shares(), state.path_count());
}

/// Counters since creation, in the fields of a step's result.
StepResult StepFigures::counters() const {
  StepResult now;
  const auto disk_now = from_.state.store().statistics();
  now.bytes_nvme_read = disk_now.bytes_read;
  now.bytes_nvme_write = disk_now.bytes_written;
  if (from_.state.path_count() > 1) now.bytes_paths.paths = from_.state.path_use();
  // Inputs kept in a tier are copied by the CPU; copies by a device are counted by the device.
  const tiering::Depot& depot = from_.state.depot();
  now.bytes_h2d = from_.residency.bytes_to_device() + depot.bytes_taken();
  now.bytes_d2h = from_.state.separate_device() ? from_.state.device().bytes_to_host()
                                                : from_.passes.bytes_to_host + depot.bytes_put();
  now.wait_param_s = from_.residency.wait_seconds();
  now.wait_grad_s = from_.gradients.wait_seconds();
  now.wait_optimizer_s = from_.optimizer.wait_seconds();
  now.wait_input_s = depot.wait_seconds();
  now.forward_s = static_cast<double>(from_.passes.forward_ns) * 1e-9;
  now.backward_s = static_cast<double>(from_.passes.backward_ns) * 1e-9;
  now.gradient_s = static_cast<double>(from_.passes.gradient_ns) * 1e-9;
  now.cast_s = from_.residency.cast_seconds();
  if (from_.group != nullptr) {
    now.bytes_bus = from_.group->bytes_sent();
    now.bus_s = from_.group->seconds();
  }
  return now;
}

StepFigures::Mark StepFigures::mark() const {
  return {.begin_ns = monotonic_ns(), .counters = counters()};
}

void StepFigures::begin_step(bool carries_update) {
  step_begin_ns_ = monotonic_ns();
  prediction_.begin_step(carries_update);
  phase_ = mark();
}

void StepFigures::leave_out(const Mark& since) {
  const Mark now = mark();
  for_each_counter([&](auto counter) {
    totals_.*counter += now.counters.*counter - since.counters.*counter;
    phase_.counters.*counter += now.counters.*counter - since.counters.*counter;
  });
  leave_out(now.begin_ns - since.begin_ns);
}

void StepFigures::leave_out(std::uint64_t ns) noexcept {
  step_begin_ns_ += ns;
  phase_.begin_ns += ns;
}

double StepFigures::hand_over(const Mark& since, StepResult& step) {
  const Mark now = mark();
  for_each_counter([&](auto counter) {
    step.*counter += now.counters.*counter - since.counters.*counter;
    totals_.*counter += now.counters.*counter - since.counters.*counter;
  });
  return static_cast<double>(now.begin_ns - since.begin_ns) * 1e-9;
}

Result<void> StepFigures::end_step(std::uint64_t end_ns, StepResult& result) {
  ARTESIAN_CHECK(end_ns >= step_begin_ns_, end_ns, step_begin_ns_);
  result.step_s = static_cast<double>(end_ns - step_begin_ns_) * 1e-9;
  ARTESIAN_TRY_VOID(take_difference(result));
  result.predicted_step_s = prediction_.next_s();
  end_phase(/*ends_update=*/false);
  result.computed_s = prediction_.computed_s();
  result.disk_s = prediction_.disk_s();
  prediction_.end_step(update_bytes_);
  return {};
}

Result<void> StepFigures::take_difference(StepResult& result) {
  const StepResult now = counters();
  ARTESIAN_CHECK(now.bytes_nvme_read >= totals_.bytes_nvme_read, now.bytes_nvme_read);
  ARTESIAN_CHECK(now.bytes_nvme_write >= totals_.bytes_nvme_write, now.bytes_nvme_write);
  ARTESIAN_CHECK(now.bytes_h2d >= totals_.bytes_h2d && now.bytes_d2h >= totals_.bytes_d2h);
  for_each_counter([&](auto counter) { result.*counter = now.*counter - totals_.*counter; });
  totals_ = now;
  const FetchStatistics& fetch = from_.prefetcher.statistics();
  result.fetch_demand = fetch.demand;
  result.fetch_prefetched = fetch.prefetched;
  result.fetch_reused = fetch.reused;
  result.live_parameters_max = fetch.live_parameters_max;
  from_.prefetcher.reset_statistics();
  return take_peaks(result);
}

/// The pools are allocated whole at the start, so reserved bytes are held bytes.
Result<void> StepFigures::take_peaks(StepResult& result) const {
  ModelState& state = from_.state;
  const bool empty = state.placement().device_pool_bytes == 0;  // a pool has at least a page
  const std::uint64_t device = empty ? 0 : state.device_pool().statistics().bytes_reserved;
  const bool separate = state.separate_device();  // its memory does not belong to this process
  result.peak_gradients = state.placement().device_gradient_bytes;
  result.peak_device = device + result.peak_gradients;
  result.peak_host = state.host_pool().statistics().bytes_reserved;
  MemoryBesideTiers beside;
  if (from_.memory_beside_tiers) {
    ARTESIAN_TRY(peaks, from_.memory_beside_tiers((separate ? 0 : device) + result.peak_host));
    beside = peaks;
  }
  result.peak_activations = beside.activations;
  result.peak_program = beside.program;
  result.peak_heap = beside.heap;
  result.peak_process_rss = process_memory().bytes_peak;
  return {};
}

void StepFigures::end_phase(bool ends_update) {
  const Mark now = mark();
  const StepResult& before = phase_.counters;
  ARTESIAN_CHECK(now.begin_ns >= phase_.begin_ns, now.begin_ns, phase_.begin_ns);
  PhaseUse use{.updates = ends_update};
  use.seconds = static_cast<double>(now.begin_ns - phase_.begin_ns) * 1e-9;
  for (const auto wait : {&StepResult::wait_param_s, &StepResult::wait_grad_s,
                          &StepResult::wait_optimizer_s, &StepResult::wait_input_s}) {
    use.waited_s += now.counters.*wait - before.*wait;
  }
  for (const SwapPathUse& path : (now.counters.bytes_paths - before.bytes_paths).paths) {
    use.bytes.push_back({.read = path.bytes_read, .written = path.bytes_written});
  }
  if (from_.state.path_count() == 1) {
    use.bytes = {{.read = now.counters.bytes_nvme_read - before.bytes_nvme_read,
                  .written = now.counters.bytes_nvme_write - before.bytes_nvme_write}};
  }
  prediction_.end_phase(use);
  phase_ = now;
}

double StepFigures::update_disk_s() const {
  return disk_seconds(from_.state.disks(), update_bytes_);
}

}  // namespace artesian::zero3
