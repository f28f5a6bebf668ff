// The optimizer on tiered state: initial values, the update, and reading state back (digest,
// export). Sub-groups stream through the staging ring; the thread pool does the work. A separate
// device updates units whose whole state is there, in place.
//
// An update is deferred: begin_step fixes its constants, and each unit is updated when it is
// needed, in the order of the next forward. Until then its gradient must be kept, and its
// parameters and state are those of the previous step. State that is updated first may already have
// been read ahead.
//
// Constants are those of each parameter's group (parameter_groups.h) and its own count of updates.
// A slice is cut between parameters with different constants; such cuts do not change the bits.
// Frozen units are filled at the beginning, read for digest and export, and never updated.
//
// With several ranks, each updates its share of every unit's state. If every rank has all
// parameters, the updated shares are gathered in each rank's parameter homes, in the order of the
// update, which is the same on all ranks; otherwise they are gathered when a unit is entered
// (StepCore). When state is read, its owner sends it to all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/update.h"
#include "tiering/residency.h"
#include "zero3/flow/update_flow.h"
#include "zero3/step/bus.h"
#include "zero3/step/leaf_sums.h"
#include "zero3/step/matrix_update.h"
#include "zero3/step/parameter_groups.h"
#include "zero3/step/state_source.h"
#include "zero3/step/sub_group_stream.h"
#include "zero3/step/weights.h"

namespace artesian::zero3 {

struct OptimizerOptions {
  /// Lends memory into which the update under backward reads ahead, except with a separate device;
  /// may be null, must outlive the optimizer: Note [Borrowed items] in ring_order.h.
  BufferLender* lender = nullptr;
  /// Tells whether a unit's slot will stay until forward uses it; if empty, always true.
  std::function<bool(std::uint32_t unit)> stays{};
  /// Tells whether a parameter is updated in this step; if empty, always true. Called once the
  /// gradients of its unit are final, and the answer with them. If false, its weights, moments and
  /// count do not change.
  std::function<bool(std::uint32_t parameter)> updates{};
  float initial_squares = 0.0f;   // initial value of squares
  Orthogonalize orthogonalize{};  // for Muon's matrices; null if there are none
  comm::Group* group = nullptr;   // the ranks that divide the state; null with one rank
  Bus* bus = nullptr;             // null unless their devices reach each other
};

/// A value that the optimizer keeps per element: ExpAvg is its average and ExpAvgSq its squares,
/// under whatever names (Placement::moments).
enum class StateKind : std::uint8_t { Master, ExpAvg, ExpAvgSq };

class Optimizer : public UpdateFlow<Optimizer> {
 public:
  /// Both must outlive it.
  Optimizer(ModelState& state, tiering::Residency& residency, OptimizerOptions options = {});

  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  /// Fills master weights, parameters and moments from `source`, directly into their homes, except
  /// state that the source keeps; `progress` counts elements. Call it between steps, after evicting
  /// gathered parameters. Nothing is in flight afterwards, even after an error. Errors: the
  /// source's, Io, NoSpace, Timeout.
  Result<void> initialize(StateSource& source, const Progress& progress) noexcept;
  /// The same, with averages of zero, and squares as set in the options.
  Result<void> initialize(WeightSource& weights, const Progress& progress) noexcept;
  /// UpdateFlow::begin_ahead, with these constants.
  Result<void> begin_ahead(StepConstants constants, std::vector<std::uint32_t> units,
                           bool speculative) noexcept {
    constants_ = std::move(constants);
    return UpdateFlow::begin_ahead(std::move(units), speculative);
  }
  /// Called when all gradients are final: UpdateFlow::defer, with these constants. Parameters
  /// gathered now or later get the update. Errors, here and of all updates: Io, Corrupt, NoSpace,
  /// Timeout.
  Result<void> begin_step(StepConstants constants) noexcept {
    return defer([&] { constants_ = std::move(constants); });
  }
  /// The number of updates of a parameter, including a pending one.
  std::uint64_t update_count(std::uint32_t parameter) const noexcept { return counts_[parameter]; }
  /// Restores update counts, one for each parameter. Between steps, with no update pending.
  void restore_counts(std::vector<std::uint64_t> counts) noexcept;
  /// XXH3-128 over the parameters in order: names, master weights and existing moments; for frozen
  /// parameters names and values in fp32. The same for every placement. Errors: Io, Corrupt,
  /// Timeout.
  Result<std::string> digest(const std::vector<ParameterSpec>& parameters) noexcept;
  /// Checks that the parameter has this kind of state. Errors: Invalid (moments of a frozen
  /// parameter, or a moment that the optimizer does not keep).
  Result<void> check_kind(std::uint32_t parameter, StateKind kind) const;
  /// Calls `sink` with one kind of the parameter's state in fp32, in row-major order, in pieces. A
  /// frozen parameter's weights are its values. Errors: check_kind's, the sink's, Io, Corrupt,
  /// Timeout.
  Result<void> read_state(std::uint32_t parameter, StateKind kind,
                          const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  /// Replaces one kind of the parameter's state: calls `source(first, values)`, which fills all of
  /// `values` with the elements from `first` on. Weights are stored in all forms that the placement
  /// keeps; a second moment must be at least zero. No update may be pending, and the caller must
  /// evict the unit's gathered parameters. Nothing is in flight afterwards. Errors: as read_state.
  Result<void> write_state(
      std::uint32_t parameter, StateKind kind,
      const std::function<void(std::uint64_t first, std::span<float> values)>& source) noexcept;
  using Visitor = std::function<void(const SubGroup&)>;
  /// Calls `visit` with the state of the sub-groups of `units` for which `wanted` is true, in this
  /// order: arrays as stored, without gradients. No update may be pending. Errors: Io, Corrupt,
  /// Timeout.
  Result<void> read_units(
      const std::vector<std::uint32_t>& units,
      const std::function<bool(std::uint32_t unit, std::uint64_t index)>& wanted,
      const Visitor& visit) noexcept;
  /// Callbacks about updates by the thread pool; each may be null.
  struct Watcher {
    /// Called with each updated sub-group, as read_units passes it, before it is written to its
    /// home. Not called for those that a separate device updates by itself.
    Visitor made;
    /// Called when all updates since the step's last backward began have been rolled back.
    std::function<void()> taken_back;
  };
  void watch(Watcher watcher) noexcept { watcher_ = std::move(watcher); }

  /// Returns the seconds spent waiting for the disk so far.
  double wait_seconds() const noexcept {
    return stream_.wait_seconds() + static_cast<double>(drained_ns_) * 1e-9;
  }

 private:
  Result<void> gather_shares(std::uint32_t unit) noexcept;
  template <typename Visit>
  Result<void> for_each_state(std::uint32_t parameter, const Visit& visit) noexcept;
  template <typename Visit>
  Result<void> for_each_own_state(std::uint32_t parameter, const Visit& visit) noexcept;
  Result<void> fill_by_unit(const std::vector<std::uint32_t>& units, StateSource& source,
                            const SubGroupStream::SlicedBody& body) noexcept;
  Result<void> fill_slice(const SubGroup& group, StateSource& source, std::uint64_t begin,
                          std::uint64_t end) noexcept;
  bool settles(std::uint32_t unit) const noexcept;
  void settle_ties(std::uint32_t unit, std::span<float> masters) const noexcept;
  void open_slice(const SubGroup& group, std::uint64_t begin, std::span<float> squares,
                  std::span<float> master) noexcept;
  kernels::AdamArrays weights_of(const SubGroup& group, std::uint64_t begin) const noexcept;
  kernels::AdamArrays arrays_of(const SubGroup& group, std::uint64_t begin, float* average,
                                float* squares) const noexcept;
  /// Whether elements of a unit's image from `first` on, up to the next cut, are updated.
  struct Cut {
    std::uint64_t first = 0;
    std::optional<kernels::UpdateStep> constants;
  };
  bool updates(std::uint32_t parameter) const {
    return !options_.updates || options_.updates(parameter);
  }
  struct Part {
    std::uint64_t end;  // end, as an index in the sub-group
    const std::optional<kernels::UpdateStep>& constants;
  };
  Part part_at(const SubGroup& group, std::uint64_t begin, std::uint64_t end) const noexcept;
  float* matrix_of(const SubGroup& group) const noexcept;
  void momentum_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  Result<void> orthogonalize(const SubGroup& group) noexcept;
  void step_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void measure_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void update_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void replace(const SubGroup& group, std::uint64_t first, StateKind kind,
               std::span<const float> values) noexcept;
  void keep_param(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  Result<void> follow(const SubGroup& group) noexcept;
  Result<void> follow_others(std::uint32_t unit, std::uint64_t first, std::uint64_t end,
                             const std::byte* fresh) noexcept;
  Result<void> gather_over_bus(std::uint32_t unit) noexcept;
  Result<void> gather_on_device(std::uint32_t unit) noexcept;
  Result<void> after_update(const SubGroup& group) noexcept;
  void refresh_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  void restore_slice(const SubGroup& group, std::uint64_t begin, std::uint64_t end) noexcept;
  enum class Copy : std::uint8_t { ToOld, FromOld };
  void copy_old(const SubGroup& group, std::uint64_t begin, std::uint64_t end, Copy way) noexcept;

  friend UpdateFlow;  // the class that this one is a player of
  SubGroupStream& ring() noexcept { return stream_; }
  bool separate() const noexcept { return state_.separate_device(); }
  Result<void> begin_pass() noexcept;
  Result<void> abandon_pass() noexcept { return stream_.abandon(); }
  void lend(bool some) noexcept { stream_.borrow_from(some ? options_.lender : nullptr); }
  bool borrows() const noexcept { return state_.ring().borrowed() != 0; }
  Result<void> measure() noexcept;
  void fix(std::uint32_t unit);
  void begin_refresh(std::uint32_t unit) noexcept { residency_.begin_refresh(unit); }
  Result<void> end_refresh(std::uint32_t unit) noexcept {
    ARTESIAN_TRY_VOID(gather_shares(unit));
    return residency_.end_refresh(unit);
  }
  bool keeps(std::uint32_t unit) const noexcept;
  static bool reduced(std::uint32_t) noexcept { return true; }  // always, with one rank
  void shadows(Shadows how) noexcept;
  Result<void> restore() noexcept;
  Result<void> settle() noexcept;
  Result<void> update_on_device(std::uint32_t unit) noexcept;
  void count_updates() noexcept;
  Result<void> drain() noexcept;

  ModelState& state_;
  tiering::Residency& residency_;
  const OptimizerOptions options_;
  SubGroupStream stream_;
  StepConstants constants_;             // constants of the pass
  std::vector<std::vector<Cut>> cuts_;  // by unit: cuts of the pass for final gradients
  std::vector<std::uint64_t> counts_;   // by parameter: number of updates so far
  /// For LAMB: sums of squares of weights and of their steps; each parameter's factor of the
  /// learning rate.
  struct Lamb {
    explicit Lamb(const Layout& layout) : weights(layout), directions(layout) {}
    LeafSums weights;
    LeafSums directions;
    std::vector<float> ratios;
  };
  std::optional<Lamb> lamb_;  // state of LAMB in the pass
  Watcher watcher_;
  std::uint64_t drained_ns_ = 0;  // when the last writes of a pass had been waited for
};

}  // namespace artesian::zero3
