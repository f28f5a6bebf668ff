// StepFigures: what a step took, moved and waited for, from what the engine's parts have counted
// since their creation. Work belongs to the step in which it is done, with two exceptions: what an
// update under forward does is of the step that it completes (hand_over), and what an evaluation, a
// digest or an export does is of none (leave_out). Also predicts the next step, and says what no
// schedule can beat: a step's phases go to a Prediction. Thread: the engine's.
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

/// The counts of whoever runs the model, since its creation. Seconds of forward and backward are
/// the model's own; rounding gradients and adding them up is apart, without its waits. Bytes are
/// those of gradients rounded into the accumulators, where that is the CPU's work.
struct PassCounters {
  std::uint64_t forward_ns = 0;
  std::uint64_t backward_ns = 0;
  std::uint64_t gradient_ns = 0;
  std::uint64_t bytes_to_host = 0;
};

/// The objects that count; they must outlive the figures.
struct FigureSources {
  ModelState& state;
  const tiering::Residency& residency;
  Prefetcher& prefetcher;
  const Gradients& gradients;
  const Optimizer& optimizer;
  const PassCounters& passes;
  const comm::Group* group = nullptr;  // of several ranks; else null
  /// Given the bytes of the tiers that are in this process's memory; may be empty.
  std::function<Result<MemoryBesideTiers>(std::uint64_t tiers)> memory_beside_tiers;
};

class StepFigures {
 public:
  explicit StepFigures(const FigureSources& sources);

  /// A moment, with the counts at that time.
  struct Mark {
    std::uint64_t begin_ns = 0;
    StepResult counters;
  };

  /// Starts counting: what was counted before belongs to no step.
  void start() { totals_ = counters(); }
  /// `carries_update`: it completes the update of the step before it.
  void begin_step(bool carries_update);
  Mark mark() const;
  /// Keeps what has been done since then out of all steps.
  void leave_out(const Mark& since);
  /// Excludes this much of the elapsed time from the step.
  void leave_out(std::uint64_t ns) noexcept;
  /// Adds what was counted since the mark to that step, not to the open one. Returns its seconds.
  double hand_over(const Mark& since, StepResult& step);
  /// The update of the step before is complete.
  void end_update() { end_phase(/*ends_update=*/true); }
  /// Fills in the figures of the step that ends at `end_ns`. Errors: those of
  /// memory_beside_tiers.
  Result<void> end_step(std::uint64_t end_ns, StepResult& result);

  std::uint64_t step_begin_ns() const noexcept { return step_begin_ns_; }
  /// Seconds that the disks need, as probed, for what one update moves.
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
  Mark phase_;  // the begin of a part of the step that has the disk to itself
};

}  // namespace artesian::zero3
