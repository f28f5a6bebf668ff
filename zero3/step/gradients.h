// Gradients: one accumulator per unit, in grad_accum_dtype, in host memory if it fits, else on
// NVMe. The exact rules are the same for both: each micro-batch's weight gradient is rounded to the
// parameter dtype and added, rounded, in micro-batch order; a looked-up parameter's row gradients
// are summed per row in fp32 in (micro-batch, position) order and added once, after everything
// else.
//
// Frozen parameters have no gradient. A step's first addition to a parameter overwrites its
// elements, and parameters without a gradient are set to zero at the end. So the bits do not depend
// on which parameters share a unit or a call.
//
// If gradients spill, micro-batches are added in one buffer in host memory, one stage's units at a
// time. A unit's accumulated gradient is read when something is added, and written once by
// write_back(), both through the staging ring (zero3/step/sub_group_stream.h). Only sub-groups with
// additions are moved, and their squares are summed before the write, so the norm needs no reads.
// Writes overlap with the next stage's backward; each is waited for before its sub-group is read or
// written again, and complete() waits for all.
//
// Note [Leaves of the norm]: squares are summed in fp64 by leaves of 2048 elements, wherever the
// accumulator lives, and all leaves are added in the order of the parameters. Parameters, shares of
// an image and sub-groups begin at multiples of that, so that a leaf belongs to one parameter and
// is never split. So the bits of a norm do not depend on the units, on transfers, or on how an
// image is divided. A parameter's last leaf is filled up with zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero3/flow/gradient_additions.h"
#include "zero3/step/gradient_exchange.h"
#include "zero3/step/leaf_sums.h"
#include "zero3/step/micro_batch_sums.h"
#include "zero3/step/state.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {

struct GradientNorm {
  double sum_squares = 0.0;  // over all accumulated gradients, which are still scaled
  bool finite = true;
  std::uint32_t bad_parameter = 0;  // if not finite: the first parameter with such an element
};

class Gradients {
 public:
  /// `group`: null with one rank. `bus`: null unless the ranks' devices reach each other. All must
  /// outlive this object.
  explicit Gradients(ModelState& state, comm::Group* group = nullptr, Bus* bus = nullptr);

  /// Forgets all accumulated gradients: the next addition to each parameter overwrites it.
  void begin_step() noexcept;
  /// Adds one micro-batch's gradients of one unit's parameters, in one call or several. They must
  /// have added_dtype() and be in the model's memory; on a separate device they must be complete
  /// once `written` has passed. They may be released when this returns. All ranks must make the
  /// same calls; the gradients of all ranks are added (GradientExchange). Errors: Io, Corrupt,
  /// Timeout (spilled units, separate devices), the group's.
  Result<void> add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                   tiering::DeviceFence written = {}) noexcept;
  /// As add, if the host computes, for a parameter that is a unit by itself and whose gradient
  /// arrives in parts: [count] fp32 from element `first` on. Between begin_parts and end_parts
  /// either each element is added once, or none.
  Result<void> begin_parts(std::uint32_t parameter) noexcept;
  void add_part(std::uint32_t parameter, std::uint64_t first, const float* data,
                std::uint64_t count) noexcept;
  /// Returns how many elements were added: valid only if it is all or none. Errors: as add.
  Result<std::uint64_t> end_parts(std::uint32_t parameter) noexcept;
  /// The dtype of gradients passed to `add` for a unit: fp32 or the parameter dtype, to which
  /// gradients are rounded anyway. It is the parameter dtype if the host computes in it, or if a
  /// separate device computes and the accumulator is not on it. So a stage's gradients are never
  /// copied as a whole.
  DType added_dtype(std::uint32_t unit) const noexcept;
  /// Adds rows: position i contributes row_gradients[i * width, ...) to row rows[i] of `parameter`.
  /// Shape: rows: [n]; row_gradients: [n], each [width] fp32, from its first element in this rank's
  /// share on; width divides the parameter's numel. Rows keep their order within a row index:
  /// (micro-batch, rank, position). Sums are made 4 MiB at a time.
  Result<void> add_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                        std::span<const float* const> row_gradients, std::uint64_t width) noexcept;
  /// As add_rows, for all look-ups of a step, one per micro-batch. With several ranks all call
  /// this, and the rows of all ranks are added. Errors: as add.
  Result<void> add_lookups(std::uint32_t parameter, std::span<const RowsOfLookup> lookups,
                           std::uint64_t width) noexcept;
  /// True if several ranks train a model that the caller runs, or send gradients once a step:
  /// gradients are held by hold(), in parts and by hold_rows() until add_held().
  bool holds() const noexcept { return sums_.has_value(); }
  /// Holds a gradient until add_held(). Shape: data: all of the parameter's elements, in
  /// added_dtype(); as in add().
  Result<void> hold(std::uint32_t parameter, const void* data,
                    tiering::DeviceFence written) noexcept;
  /// Holds one look-up's rows. Shape: gradient: [rows, width].
  void hold_rows(std::uint32_t parameter, std::vector<std::int64_t> rows,
                 std::vector<float> gradient) {
    sums_->add_rows(parameter, std::move(rows), std::move(gradient));
  }
  /// Called by all ranks when these units, which are trainable, have all gradients of the
  /// micro-batch: adds those that all ranks hold, for each unit rank by rank, and for each rank its
  /// rows last. `parameters`: those of the model. Errors: as add.
  Result<void> add_held(std::span<const std::uint32_t> units,
                        std::span<const ParameterSpec> parameters) noexcept;
  /// If ranks send gradients once a step: as add_held, for all units.
  Result<void> add_held_of_step(std::span<const ParameterSpec> parameters) noexcept;
  /// The most bytes of held gradients for which there was no room in the plan.
  std::uint64_t held_beside_max() const noexcept {
    return sums_.has_value() ? sums_->bytes_beside_max() : 0;
  }
  void drop_held() { sums_->clear(); }
  /// True if any rank has added to the parameter's gradient in this step; known until the next step
  /// begins.
  bool reached(std::uint32_t parameter) const noexcept { return additions_.reached(parameter); }
  /// GradientAdditions::sums_on_device.
  bool sums_on_device(std::uint32_t parameter) const noexcept {
    return additions_.sums_on_device(parameter);
  }
  /// Sums and writes gradients of units that spill; call it when a stage's gradients are all added.
  /// Errors: as add.
  Result<void> write_back() noexcept;
  /// Sums, ahead of norm(), the squares of a unit whose gradient is final in this step and whose
  /// accumulator is in host memory. Returns the sum; none if one is not finite.
  std::optional<double> sum_final(std::uint32_t unit) noexcept;
  /// Forgets the results of sum_final(), as gradients may be added again.
  void forget_sums() noexcept;
  /// Calls `sink` with the parameter's accumulated gradient of this step in fp32, in row-major
  /// order, in pieces. Additions to spilled units are written back first. Errors: the sink's, Io,
  /// Corrupt, Timeout.
  Result<void> read(std::uint32_t parameter,
                    const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  /// Replaces the parameter's gradient accumulated so far in this step, in its unit's
  /// added_dtype(); later gradients are added to it. Errors: as add.
  Result<void> replace(const ParameterGradient& gradient) noexcept;
  /// Returns the original cause of an error that ends a run: if a write left in flight by `add`
  /// failed earlier, later transfers of its file fail because of it.
  Error cause_of(Error error) noexcept;
  /// The norm's sum of squares: Note [Leaves of the norm]. Parameters that got no gradient count as
  /// zero. With several ranks it covers all shares, and is the same on each rank.
  Result<GradientNorm> norm() noexcept;
  /// Zeroes accumulators of parameters without a gradient this step, and waits for all writes, so
  /// that norm() and the optimizer may read them.
  Result<void> complete() noexcept;
  /// Bytes of one accumulated element.
  std::uint64_t element_size() const noexcept { return dtype_size(state_.placement().grad_dtype); }
  double wait_seconds() const noexcept { return stream_.wait_seconds(); }

 private:
  struct Piece {          // a part of a parameter
    std::uint64_t first;  // first element in this rank's share
    std::uint64_t count;
    const std::byte* data;
    bool fresh;  // the first addition of this step: it overwrites the elements
  };
  /// `rows`: added for each rank after its gradients; may be null.
  Result<void> add_of_all_ranks(std::uint32_t unit, const GradientsOfUnit& own,
                                const GradientExchange::Rows* rows = nullptr) noexcept;
  std::uint8_t has_of(std::uint32_t unit) const;
  Result<void> add_unit_held(std::uint32_t unit, const std::vector<std::uint8_t>& there,
                             std::span<const ParameterSpec> parameters) noexcept;
  /// Elements of this rank's share.
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t end = ~std::uint64_t{0};
  };
  Result<void> sum_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                        std::span<const float* const> row_gradients, std::uint64_t width,
                        const Range& range) noexcept;
  Result<void> read_range(std::uint32_t parameter, const Range& range,
                          const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  Result<void> read_of_ranks(
      std::uint32_t parameter,
      const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  Result<void> add_runs(std::uint32_t parameter, const GradientExchange::Rows& rows,
                        std::uint32_t rank, const Range& range) noexcept;
  /// The part of a parameter in this rank's share: its elements [first, first + count).
  struct InShare {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  InShare in_share(const ParameterPlace& place) const noexcept;
  void check_apart(std::uint32_t unit, const std::vector<Piece>& pieces) const noexcept;
  Result<void> add_pieces(std::uint32_t unit, std::vector<Piece> pieces,
                          const GradientSource& source) noexcept;
  /// A parameter whose gradient arrives in parts.
  struct Parts {
    // address of its first element; with several ranks, of the buffer before sending
    std::byte* target = nullptr;
    bool fresh = false;
    std::uint64_t added = 0;  // elements added
  };
  /// A spilled unit in the buffer.
  struct Held {
    std::uint32_t unit;
    std::byte* data;
  };
  Result<std::byte*> hold_for(std::uint32_t unit, const std::vector<Piece>& pieces) noexcept;
  Result<std::byte*> hold(std::uint32_t unit) noexcept;
  Result<void> add_on_device(std::uint32_t unit, const std::vector<Piece>& pieces,
                             const GradientSource& source) noexcept;
  Result<void> accumulate(std::byte* memory, const std::vector<Piece>& pieces,
                          const GradientSource& source) noexcept;
  Result<void> accumulate_there(std::uint32_t unit, const std::vector<Piece>& pieces, DType dtype,
                                tiering::Queue queue) noexcept;
  Result<void> add_rows_on_device(std::uint32_t unit, const std::vector<Piece>& rows) noexcept;
  Result<void> clear_on_device(std::uint32_t unit, tiering::Queue queue) noexcept;
  Result<void> follow_bus() noexcept;
  void accumulate_piece(std::byte* target, const Piece& piece, DType dtype) noexcept;
  void accumulate_part(std::byte* target, const Piece& piece, DType dtype, std::uint64_t begin,
                       std::uint64_t end) noexcept;
  Result<void> start_at_zero(std::uint32_t unit) noexcept;
  Result<void> zero(const ParameterPlace& place) noexcept;
  void sum_leaves(std::uint32_t unit, const std::byte* memory, std::uint64_t first,
                  std::uint64_t end) noexcept;
  void sum_unit(std::uint32_t unit) noexcept;
  void sum_held(const Held& held, const std::vector<std::uint64_t>& groups) noexcept;
  Result<void> sum_unit_on_device(std::uint32_t unit) noexcept;
  void forget() noexcept;
  bool trainable(std::uint32_t unit) const noexcept {
    return state_.layout().units[unit].trainable;
  }
  Result<void> finish_writes() noexcept;
  tiering::Route route(std::uint32_t unit) const noexcept {
    return state_.placement().units[unit].gradient;
  }
  bool on_device(std::uint32_t unit) const noexcept {
    return route(unit) == tiering::Route::OnDevice;
  }
  bool spilled(std::uint32_t unit) const noexcept {
    return state_.placement().units[unit].grad == tiering::Tier::Nvme;
  }

  ModelState& state_;
  std::optional<GradientExchange> exchange_;
  std::optional<MicroBatchSums> sums_;  // gradients that this rank holds until add_held()
  SubGroupStream stream_;               // stream of spilled units
  GradientAdditions additions_;         // what each addition does
  std::vector<bool> summed_;            // by unit: whether its leaf sums are those of this step
  tiering::DeviceFence added_{};        // the last addition of several ranks on a separate device
  std::vector<bool> cleared_;  // by unit: whether its memory on a separate device was zeroed once
  LeafSums leaf_sums_;         // sums of squares
  std::map<std::uint32_t, Parts> parts_;  // one for each parameter
  std::vector<Held> held_;                // side by side, from the buffer's beginning on
  bool writing_ = false;  // writes of some spilled unit's sub-groups may be in flight
};

}  // namespace artesian::zero3
