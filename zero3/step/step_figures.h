// StepFigures: the time, bytes and waits of a step, derived from the counters of the engine's
// parts. Work belongs to the step in which it is done, with two exceptions: an update under forward
// belongs to the step that it completes (hand_over), and evaluations, digests and exports belong to
// no step (leave_out). It also predicts the next step (Prediction) and computes lower bounds that
// no schedule can beat. Thread: the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zero3/plan/prediction.h"
#include "zero3/plan/prefetcher.h"
#include "zero3/step/gradients.h"
#include "zero3/step/memory_beside_tiers.h"
#include "zero3/step/optimizer.h"
#include "zero3/step/step_result.h"

namespace artesian::zero3 {

/// Counters of the code that runs the model, since its creation. Seconds of forward and backward
/// are those of the model alone; rounding and adding gradients is counted separately, without
/// waits. Bytes are those of gradients that the CPU rounds into the accumulators.
struct PassCounters {
  std::uint64_t forward_ns = 0;
  std::uint64_t backward_ns = 0;
  std::uint64_t gradient_ns = 0;
  std::uint64_t bytes_to_host = 0;
};

/// The objects with counters; they must outlive the figures.
struct FigureSources {
  ModelState& state;
  const tiering::Residency& residency;
  Prefetcher& prefetcher;
  const Gradients& gradients;
  const Optimizer& optimizer;
  const PassCounters& passes;
  const comm::Group* group = nullptr;  // null with one rank
  /// Called with the bytes of the tiers that are in this process's memory; may be empty.
  std::function<Result<MemoryBesideTiers>(std::uint64_t tiers)> memory_beside_tiers;
};

class StepFigures {
 public:
  explicit StepFigures(const FigureSources& sources);

  /// A moment, with the counters at that time.
  struct Mark {
    std::uint64_t begin_ns = 0;
    StepResult counters;
  };

  /// Starts counting: earlier counts belong to no step.
  void start() { totals_ = counters(); }
  /// `carries_update`: the step completes the update of the previous step.
  void begin_step(bool carries_update);
  Mark mark() const;
  /// Excludes everything done since the mark from all steps.
  void leave_out(const Mark& since);
  /// Excludes this much elapsed time from the step.
  void leave_out(std::uint64_t ns) noexcept;
  /// Moves everything counted since the mark from the open step to `step`. Returns its seconds.
  double hand_over(const Mark& since, StepResult& step);
  /// Reports that the previous step's update is complete.
  void end_update() { end_phase(/*ends_update=*/true); }
  /// Fills in the figures of the step that ends at `end_ns`. Errors: those of
  /// memory_beside_tiers.
  Result<void> end_step(std::uint64_t end_ns, StepResult& result);

  std::uint64_t step_begin_ns() const noexcept { return step_begin_ns_; }
  /// Disk seconds, at probed rates, for the bytes of one update.
  double update_disk_s() const;

 private:
  StepResult counters() const;
  Result<void> take_difference(StepResult& result);
  Result<void> take_peaks(StepResult& result) const;
  void end_phase(bool ends_update);

  const FigureSources from_;
  std::vector<tiering::PathBytes> update_bytes_;  // planned bytes of an update, by folder
  Prediction prediction_;                         // prediction of the next step
  StepResult totals_;                             // counters at the end of the last step
  std::uint64_t step_begin_ns_ = 0;
  Mark phase_;  // beginning of a part of the step whose disk time is measured separately
};

}  // namespace artesian::zero3
