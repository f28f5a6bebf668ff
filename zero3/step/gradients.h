// Gradients: one accumulator per unit, in grad_accum_dtype, in host memory where it fits and else
// on NVMe. Exact rules, the same wherever they live: each micro-batch's weight gradient is rounded
// to the parameter dtype and added, rounded, in micro-batch order; a looked-up parameter's row
// gradients are summed per row in fp32 in (micro-batch, position) order and added once, after
// everything else.
//
// Frozen parameters have no gradient. A step's first addition to a parameter sets its elements, and
// what nothing was added to becomes zero at the end. So it makes no difference in bits which
// parameters share a unit or a call.
//
// Where they spill, micro-batches are added in one buffer in host memory, a stage's units at a
// time: what a unit has already is read when it comes to be added to, and written once by
// write_back(), both through the staging ring (zero3/step/sub_group_stream.h). Only the sub-groups
// that something is added to are moved, and their squares are summed before that: the norm reads
// nothing. Writes go on beside the next stage's backward; each is waited for before its sub-group
// is read or written again, all by complete().
//
// Note [Leaves of the norm]: squares are summed in fp64 by leaves of 2048 elements, wherever the
// accumulator lives, and all leaves are added in the order of the parameters. Parameters, shares of
// an image and sub-groups begin at multiples of that: a leaf is of one parameter, and nothing that
// is summed is in two places. So the bits of a norm do not depend on what is a unit, on what is
// moved, or on how an image is cut. What is behind a parameter's end in its last leaf is zero.
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
  double sum_squares = 0.0;  // of all accumulated gradients, still scaled
  bool finite = true;
  std::uint32_t bad_parameter = 0;  // the first with a non-finite element, when not finite
};

class Gradients {
 public:
  /// `group`: of several ranks; null with one. Both must outlive it.
  explicit Gradients(ModelState& state, comm::Group* group = nullptr);

  /// Forgets all accumulated gradients: the next addition to each parameter replaces them.
  void begin_step() noexcept;
  /// Adds one micro-batch's gradients of one unit's parameters, all at once or some in each call.
  /// They are in added_dtype() and in the model's memory; on a separate device they are complete
  /// once `written` has passed. They may be released when this returns. With several ranks all make
  /// the same calls, and what every rank has made is added (GradientExchange). Errors: Io, Corrupt,
  /// Timeout (spilled units, separate devices), the group's.
  Result<void> add(std::uint32_t unit, std::span<const ParameterGradient> gradients,
                   tiering::DeviceFence written = {}) noexcept;
  /// The same for a parameter that is a unit by itself, where the host computes, when its gradient
  /// comes in parts, [count] fp32 from element `first` on: each element once between begin_parts
  /// and end_parts, or none at all.
  Result<void> begin_parts(std::uint32_t parameter) noexcept;
  void add_part(std::uint32_t parameter, std::uint64_t first, const float* data,
                std::uint64_t count) noexcept;
  /// Returns how many elements were added: all or none, otherwise they are useless. Errors: as add.
  Result<std::uint64_t> end_parts(std::uint32_t parameter) noexcept;
  /// The dtype that `add` takes for a unit: fp32; or the parameter dtype, which what is added is
  /// rounded to in any case, where the host computes in it, and on a separate device where the
  /// accumulator is not there. So a stage's gradients are nowhere copied as a whole.
  DType added_dtype(std::uint32_t unit) const noexcept;
  /// Adds rows: position i contributes row_gradients[i * width, ...) to row rows[i] of `parameter`.
  /// Shape: rows: [n]; row_gradients: [n], each of [width] fp32, from the first element on that is
  /// in this rank's share; width divides the parameter's numel. Rows keep their order within a row
  /// index: (micro-batch, rank, position). Sums are made 4 MiB at a time.
  Result<void> add_rows(std::uint32_t parameter, std::span<const std::int64_t> rows,
                        std::span<const float* const> row_gradients, std::uint64_t width) noexcept;
  /// The same of all look-ups of a step, each a micro-batch's; with several ranks, of all of them,
  /// which call it alike. Errors: as add.
  Result<void> add_lookups(std::uint32_t parameter, std::span<const RowsOfLookup> lookups,
                           std::uint64_t width) noexcept;
  /// True if several ranks train a model that the caller runs: gradients are held by hold(), in
  /// parts and by hold_rows() until add_held().
  bool holds() const noexcept { return sums_.has_value(); }
  /// Shape: data: all of the parameter's elements, in added_dtype(); as add() takes it.
  Result<void> hold(std::uint32_t parameter, const void* data,
                    tiering::DeviceFence written) noexcept;
  /// One look-up's rows. Shape: gradient: [rows, width].
  void hold_rows(std::uint32_t parameter, std::vector<std::int64_t> rows,
                 std::vector<float> gradient) {
    sums_->add_rows(parameter, std::move(rows), std::move(gradient));
  }
  /// The micro-batch is whole: adds what all ranks hold, which call it alike: of each unit rank by
  /// rank, and of each rank its rows behind the rest. `parameters`: of the model. Errors: as add.
  Result<void> add_held(std::span<const ParameterSpec> parameters) noexcept;
  void drop_held() { sums_->clear(); }
  /// True if something was added to the parameter's gradient in this step, by any rank; known until
  /// the next one begins.
  bool reached(std::uint32_t parameter) const noexcept { return additions_.reached(parameter); }
  /// GradientAdditions::sums_on_device.
  bool sums_on_device(std::uint32_t parameter) const noexcept {
    return additions_.sums_on_device(parameter);
  }
  /// Sums and writes gradients of units that spill; call it when a stage's gradients are all added.
  /// Errors: as add.
  Result<void> write_back() noexcept;
  /// Sums the squares of a unit that nothing is added to any more in this step, and whose
  /// accumulator is in host memory, ahead of norm(). Returns the sum; none if one is not finite.
  std::optional<double> sum_final(std::uint32_t unit) noexcept;
  /// Forgets what sum_final() has done: something may be added again.
  void forget_sums() noexcept;
  /// Calls `sink` with the parameter's accumulated gradient of this step in fp32, in row-major
  /// order, in pieces. What was added to units that spill is written back
  /// before. Errors: the sink's, Io, Corrupt, Timeout.
  Result<void> read(std::uint32_t parameter,
                    const std::function<Result<void>(std::span<const float>)>& sink) noexcept;
  /// Replaces the parameter's gradient of this step so far, in its unit's added_dtype(); later
  /// gradients are added to it. Errors: as add.
  Result<void> replace(const ParameterGradient& gradient) noexcept;
  /// Returns what ended a run that ends with this error: a write that `add` has left in flight and
  /// that failed before is why later transfers of the same file do.
  Error cause_of(Error error) noexcept;
  /// The norm's sum of squares: Note [Leaves of the norm]. Parameters that got no gradient count as
  /// zero. With several ranks it is that of all shares, the same on each.
  Result<GradientNorm> norm() noexcept;
  /// Zeroes accumulators of parameters without a gradient this step, and waits until all are
  /// written, so that norm() and the optimizer may read them.
  Result<void> complete() noexcept;
  /// Bytes of one accumulated element.
  std::uint64_t element_size() const noexcept { return dtype_size(state_.placement().grad_dtype); }
  double wait_seconds() const noexcept { return stream_.wait_seconds(); }

 private:
  struct Piece {          // a slice of a parameter
    std::uint64_t first;  // element of this rank's share
    std::uint64_t count;
    const std::byte* data;
    bool fresh;  // the first of this step: it sets what the others are added to
  };
  /// `rows`: what is added of each rank behind its gradients; may be null.
  Result<void> add_of_all_ranks(std::uint32_t unit, const GradientsOfUnit& own,
                                const GradientExchange::Rows* rows = nullptr) noexcept;
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
  /// The part of a parameter that is in this rank's share: elements [first, first + count) of it.
  struct InShare {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  InShare in_share(const ParameterPlace& place) const noexcept;
  void check_apart(std::uint32_t unit, const std::vector<Piece>& pieces) const noexcept;
  Result<void> add_pieces(std::uint32_t unit, std::vector<Piece> pieces,
                          const GradientSource& source) noexcept;
  /// A parameter whose gradient is coming in parts.
  struct Parts {
    std::byte* target = nullptr;  // of its first element; before sending, if there are ranks
    bool fresh = false;
    std::uint64_t added = 0;  // elements
  };
  /// A unit in the buffer.
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
  Result<void> add_rows_on_device(
      const std::vector<Piece>& rows,
      const std::function<Result<void>(const Piece&, const std::byte*)>& accumulate_part) noexcept;
  Result<void> clear_on_device(std::uint32_t unit) noexcept;
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
  std::optional<MicroBatchSums> sums_;  // gradients that this rank holds
  SubGroupStream stream_;               // stream of spilled units
  GradientAdditions additions_;         // what each addition does
  std::vector<bool> summed_;            // by unit: its leaf sums are of this step
  std::vector<bool> cleared_;           // by unit: its memory on a separate device was zeroed once
  LeafSums leaf_sums_;                  // sums of squares
  std::map<std::uint32_t, Parts> parts_;  // one for each parameter
  std::vector<Held> held_;                // side by side, from the buffer's begin on
  bool writing_ = false;                  // some spilled unit's sub-groups, maybe
};

}  // namespace artesian::zero3
