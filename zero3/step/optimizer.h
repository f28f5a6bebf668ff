// The optimizer over tiered state: initial values, the Adam step, and reading state back (digest,
// export). Sub-groups stream through the staging ring; the work runs on the compute team. Units of
// a separate device that have all of their state there are updated by it, in place.
//
// A step is deferred: begin_step fixes what it does, and each unit is updated when somebody comes
// to it, in the order in which the next forward does. Until then its gradient must stay, and its
// parameters and state are last step's. What is updated first may have been read by then.
//
// Constants are those of each parameter's group (parameter_groups.h) and of its own count of
// updates. A slice is cut where neighbours differ in them; the bits do not depend on such cuts.
// Frozen units are filled at the beginning and read for digest and export; no update comes to them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/adam.h"
#include "tiering/residency.h"
#include "zero3/flow/update_order.h"
#include "zero3/step/parameter_groups.h"
#include "zero3/step/state_source.h"
#include "zero3/step/sub_group_stream.h"
#include "zero3/step/weights.h"

namespace artesian::zero3 {

struct OptimizerOptions {
  /// Under backward, unless the device is separate, it reads ahead into memory of the lender's,
  /// too, where there is one, which outlives it: Note [Borrowed items] in ring_order.h.
  BufferLender* lender = nullptr;
  /// True if a slot that a unit has will be its slot until forward uses it; true without.
  std::function<bool(std::uint32_t unit)> stays{};
  /// True if a parameter is updated in this step; true without. Asked once the gradients of its
  /// unit are final, when the answer is, too. If not, its weights, moments and count stay.
  std::function<bool(std::uint32_t parameter)> updates{};
};

/// A value that the optimizer keeps of each element.
enum class StateKind : std::uint8_t { Master, ExpAvg, ExpAvgSq };

class Optimizer {
 public:
  /// Both must outlive it.
  Optimizer(ModelState& state, tiering::Residency& residency, OptimizerOptions options = {});

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  /// Fills master weights, parameters and moments from `source`, straight into their homes, but of
  /// what it keeps; `progress` in elements. Between steps; whoever has gathered parameters drops
  /// them before. Nothing is in flight afterwards, whatever came of it. Errors: the source's, Io,
  /// NoSpace, Timeout.
  Result<void> initialize(StateSource& source, const Progress& progress) noexcept;
  /// The same with moments of zero.
  Result<void> initialize(WeightSource& weights, const Progress& progress) noexcept;
  /// Updates come to units in this order from here on: of first use in forward. Those that are not
  /// named come after these. No update is under way. Without it the order is that of their numbers.
  void set_order(const std::vector<std::uint32_t>& units) { order_.set_order(units); }
  /// Begins an update while gradients are still to come: of `units`, in this order, each once its
  /// own is final. Behind them it reads what begin_step will update first, as far as the ring goes;
  /// but not where some gradients come through the ring as well. `speculative`: it may be taken
  /// back; then each of `units` has shadows, or memory for what its state was (ModelState). Errors:
  /// Io, Timeout.
  Result<void> begin_ahead(StepConstants constants, std::vector<std::uint32_t> units,
                           bool speculative) noexcept;
  /// The accumulated gradient of the next of these units is what it will be.
  void gradient_is_final(std::uint32_t unit) noexcept;
  /// Some unit is updated so, and begin_step is still to come.
  bool under_backward() const noexcept { return order_.under_backward(); }
  /// It may be taken back.
  bool speculative() const noexcept { return order_.phase() == UpdatePhase::Tried; }
  /// How many units are updated so.
  std::size_t updated_under_backward() const noexcept {
    return under_backward() ? order_.updated().size() : 0;
  }
  /// Takes it back: weights, moments and gathered parameters are what they were before. What
  /// begin_step then begins is of all units. Errors: as update_up_to.
  Result<void> take_back() noexcept;
  /// UpdateOrder::judged.
  void judged(bool as_begun) noexcept { order_.judged(as_begun); }
  /// All gradients are final. Updates the rest of begin_ahead's units; begins one update of every
  /// other unit from its accumulated gradient, and updates what a separate device updates by
  /// itself. Gathered parameters follow, and those that are gathered from here on. Errors: as
  /// update_up_to.
  Result<void> begin_step(StepConstants constants) noexcept;
  /// Updates a unit and those before it in order, where that is still to come. Errors: Io, Corrupt,
  /// NoSpace, Timeout.
  Result<void> update_up_to(std::uint32_t unit) noexcept;
  /// Updates what is next and needs no waiting: under backward units with a final gradient, later
  /// those whose slots are there to be filled, and stay. So the bytes of a step do not depend on
  /// when this is called. And reads on, and gives back what was borrowed. Errors: as update_up_to.
  Result<void> update_ahead() noexcept;
  /// True if that would do anything now.
  bool may_update_ahead() const noexcept;
  /// Updates the rest; afterwards nothing is in flight. Errors: as update_up_to.
  Result<void> finish_step() noexcept;
  /// Backward has left a stage: after the first one, which needs the most memory, reads go to
  /// memory of the lender's, too.
  void stage_is_done() noexcept;
  /// The step that backward has read ahead for is not updated: what was borrowed for that goes
  /// back, since the next forward comes first. Errors: Io, Timeout.
  Result<void> skip() noexcept;
  /// Drops what backward has read ahead, so that the ring is free; begin_step reads it anew.
  /// Not once a unit is updated under backward. Errors: Io, Timeout.
  Result<void> stop_reading() noexcept;
  bool step_under_way() const noexcept { return order_.phase() == UpdatePhase::Deferred; }
  /// How many updates a parameter has had, with the one under way.
  std::uint64_t update_count(std::uint32_t parameter) const noexcept { return counts_[parameter]; }
  /// Goes on counting from these, one for each parameter. Between steps, with no update pending.
  void restore_counts(std::vector<std::uint64_t> counts) noexcept;
  /// XXH3-128 over names, master weights and both moments, of frozen parameters over names and what
  /// they are in fp32, in parameter order: the same for every placement. Errors: Io, Corrupt,
  /// Timeout.
  Result<std::string> digest(const std::vector<ParameterSpec>& parameters) noexcept;
  /// Checks that the parameter has that kind of state. Errors: Invalid (moments of a frozen one).
  Result<void> check_kind(std::uint32_t parameter, StateKind kind) const;
  /// Calls `sink` with one kind of the parameter's state in fp32, in row-major order, in pieces.
  /// The weights of a frozen parameter are what it is in fp32. Errors: check_kind's, the
  /// sink's, Io, Corrupt, Timeout.
  Result<void> read_state(std::uint32_t parameter, StateKind kind,
                          const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  /// Replaces one kind of the parameter's state: calls `source(first, values)`, which fills all of
  /// `values` with the elements from `first` on. Weights are stored in every form that the
  /// placement has them in; a second moment is at least zero. No update may be pending, and whoever
  /// has gathered the unit drops it. Nothing is in flight afterwards. Errors: as read_state.
  Result<void> write_state(
      std::uint32_t parameter, StateKind kind,
      const std::function<void(std::uint64_t first, std::span<float> values)>& source) noexcept;
  using Visitor = std::function<void(const SubGroup&)>;
  /// Calls `visit` with the state of the sub-groups of `units` that `wanted` holds of, in this
  /// order: arrays as they are stored, without gradients. No update may be pending. Errors: Io,
  /// Corrupt, Timeout.
  Result<void> read_units(
      const std::vector<std::uint32_t>& units,
      const std::function<bool(std::uint32_t unit, std::uint64_t index)>& wanted,
      const Visitor& visit) noexcept;
  /// Who is told of what the compute team updates; each may be null.
  struct Watcher {
    /// With each sub-group that has been updated, as read_units gives it, before it leaves for its
    /// home. Those that a separate device updates by itself are not among them.
    Visitor made;
    /// All that was made since the step's last backward began is taken back.
    std::function<void()> taken_back;
  };
  void watch(Watcher watcher) noexcept { watcher_ = std::move(watcher); }

  /// Seconds in which the disk was waited for so far.
  double wait_seconds() const noexcept {
    return stream_.wait_seconds() + static_cast<double>(drained_ns_) * 1e-9;
  }

 private:
  Result<void> fill_slice(const SubGroup& group, StateSource& source, std::uint64_t begin,
                          std::uint64_t end) noexcept;
  void open_slice(const SubGroup& group, std::uint64_t begin, std::span<float> master) noexcept;
  kernels::AdamArrays arrays_of(const SubGroup& group, std::uint64_t begin) const noexcept;
  /// Elements of a unit's image from `first` on, up to the next cut's, are updated so, or not.
  struct Cut {
    std::uint64_t first = 0;
    std::optional<kernels::AdamStep> constants;
  };
  bool updates(std::uint32_t parameter) const {
    return !options_.updates || options_.updates(parameter);
  }
  void fix_cuts(std::uint32_t unit);
  struct Part {
    std::uint64_t end;  // element of the sub-group
    const std::optional<kernels::AdamStep>& constants;
  };
  Part part_at(const SubGroup& group, std::uint64_t begin, std::uint64_t end) const noexcept;
  void update_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void replace(const SubGroup& group, std::uint64_t first, StateKind kind,
               std::span<const float> values) noexcept;
  void keep_param(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  Result<void> follow(const SubGroup& group) noexcept;
  Result<void> after_update(const SubGroup& group) noexcept;
  void refresh_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void restore_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  enum class Copy : std::uint8_t { ToOld, FromOld };
  void copy_old(const SubGroup& group, std::uint64_t begin, std::uint64_t end, Copy way) noexcept;
  template <typename Visit>
  void for_each_shadow(const Visit& visit) noexcept;
  Result<void> update_on_device(std::uint32_t unit) noexcept;
  Result<void> begin_pass() noexcept;
  bool may_update_next() const noexcept;
  bool keeps_refreshed(std::uint32_t unit) const noexcept;
  Result<void> update_next() noexcept;

  ModelState& state_;
  tiering::Residency& residency_;
  const OptimizerOptions options_;
  SubGroupStream stream_;
  UpdateOrder order_;
  StepConstants constants_;             // of the pass
  std::vector<std::vector<Cut>> cuts_;  // by unit, of the pass: of those with final gradients
  std::vector<std::uint64_t> counts_;   // by parameter: updates so far
  Watcher watcher_;
  std::uint64_t drained_ns_ = 0;  // waited for the last writes of a pass
};

}  // namespace artesian::zero3
