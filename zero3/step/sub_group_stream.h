// Streams optimizer state through the staging ring, sub-group by sub-group: read, work, write.
// Reads of later sub-groups and writes of earlier ones are in flight during the work. State in host
// memory is worked on in place; state in a separate device's memory also passes through the ring. A
// sub-group that needs no transfer takes no item of the ring, and the disk works on the next ones
// meanwhile. Initialisation (write), the optimizer step (read, write), export and digest (read),
// and the passes over gradients that spill are the same loop. It may pause between units, while
// transfers continue.
//
// Note [Slices]: verifying, updating and sealing a sub-group one after the other would fetch it
// from DRAM three times. Work that is divided into slices is done between the checksums of each
// slice, by the same thread, while the slice is in its cache. The price: damage of a block is only
// detected when all of its slices are done. So the work may process damaged bytes, and its results
// may be in host-memory state and gathered parameters when the pass ends with the error. That
// sub-group is then not sealed or written, and nothing in memory may be used again: the engine
// records the error and returns it from every later call.
//
// The stream derives from tiering/pipeline.h, and its order is that of tiering/ring_order.h, with
// its Notes [Out of turn], [Together] and [Borrowed items]. This file defines what moves, and the
// form of a sub-group in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tiering/pipeline.h"
#include "zero3/flow/ring_need.h"
#include "zero3/step/group_blocks.h"
#include "zero3/step/state.h"

namespace artesian::zero3 {

/// One sub-group in memory: `count` elements of a unit, with the index of the first in this rank's
/// share and in the image (Note [Shares] in zero3/plan/layout.h). Arrays that the caller has not
/// asked for may be null.
struct SubGroup {
  std::uint32_t unit = 0;
  std::uint64_t index = 0;
  std::uint64_t share_first = 0;
  std::uint64_t image_first = 0;
  std::uint64_t count = 0;
  float* master = nullptr;  // [count]; with fp32 parameters these are the parameters themselves.
                            // For frozen units it is null, as are moments and gradient: only
                            // `param` is set
  // [count]: the optimizer's average, as in AdamArrays; null if it has none
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;        // [count]: the optimizer's squares, likewise
  std::uint16_t* half_avg = nullptr;  // [count]: these two instead, if moments are bf16
  std::uint16_t* half_avg_sq = nullptr;
  /// [count]: set if master weights are split (kernels/split_master.h): `master` is null, `param`
  /// holds their upper halves, this array the lower ones, and the sign of `exp_avg_sq` the tie bit.
  std::uint16_t* master_low = nullptr;
  std::byte* grad = nullptr;   // [count] of grad_dtype
  std::byte* param = nullptr;  // [count] of param_dtype: target for the updated parameter
  std::byte* saved = nullptr;  // [count] of param_dtype: the parameter's old value, if it is kept
};

/// The part of a parameter that lies within a sub-group.
struct Overlap {
  std::uint64_t parameter_first = 0;  // element of the parameter
  std::uint64_t group_first = 0;      // element of the sub-group
  std::uint64_t count = 0;
};
Overlap overlap(const ParameterPlace& place, const SubGroup& group) noexcept;

struct SubGroupStreamOptions {
  bool read_state = false;
  bool read_grad = false;
  bool write_state = false;
  bool write_grad = false;  // write gradients whose home is NVMe
  /// The work on the first `units_saved` units may be rolled back: their old parameters are copied
  /// to saved_param (ModelState), if it exists. The caller handles shadows of state.
  std::size_t units_saved = 0;
  /// Rolls back such work: reads old parameters, or the state from which to restore them, and
  /// writes only parameters.
  bool restore_param = false;
  aio::Priority read_priority = aio::Priority::OptimizerRead;
};

/// A pipeline (tiering/pipeline.h) in the order of tiering/ring_order.h.
class SubGroupStream : public tiering::Pipeline<SubGroupStream> {
 public:
  /// May enqueue copies of the sub-group's memory in the queue ToDevice.
  using Body = std::function<Result<void>(const SubGroup&)>;
  /// Work in slices: Note [Slices].
  struct SlicedBody {
    /// Works on elements [begin, end), on the thread pool.
    std::function<void(const SubGroup&, std::uint64_t begin, std::uint64_t end)> slice;
    /// For a unit that is one matrix (Unit::rows), if set: `whole` runs once all slices are done
    /// and the data read is verified, then `second` on each slice.
    Body whole{};
    std::function<void(const SubGroup&, std::uint64_t begin, std::uint64_t end)> second{};
    /// Runs once all slices are done and the data read is verified; it must not change data that is
    /// written. If it returns an error, nothing of the sub-group is written. May be null.
    Body after;
  };

  /// `waits_for`: the name of the waits in the timeline.
  explicit SubGroupStream(ModelState& state, const char* waits_for = "sub-groups") noexcept
      : Pipeline(state.ring(), waits_for), state_(state) {}
  /// Begins a pass that runs `body` on every sub-group of `units`, in order: starts its first
  /// reads. An error, of this function or those below, ends the pass. Errors: Io, Timeout.
  Result<void> begin(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                     Body body) noexcept;
  Result<void> begin(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                     SlicedBody body) noexcept;
  /// Ends a pass early: waits for its reads and discards them; not for passes with work out of
  /// turn. Errors: Io, Timeout.
  Result<void> abandon() noexcept;
  /// Runs `body` on the sub-groups that an abandoned pass had completed.
  Result<void> run_on_done(const SubGroupStreamOptions& options, SlicedBody body) noexcept;
  /// Calls begin and finish.
  Result<void> run(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                   const Body& body) noexcept;
  Result<void> run(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                   const SlicedBody& body) noexcept;
  /// Runs `body` on the sub-groups of `units` for which `wanted` is true, in order.
  Result<void> run_where(const std::vector<std::uint32_t>& units,
                         const std::function<bool(std::uint32_t unit, std::uint64_t index)>& wanted,
                         const SubGroupStreamOptions& options, const Body& body) noexcept;
  /// Runs `body` on this rank's sub-groups of one unit that overlap elements [image_first,
  /// image_first + count) of its image.
  Result<void> run_range(std::uint32_t unit, std::uint64_t image_first, std::uint64_t count,
                         const SubGroupStreamOptions& options, const Body& body) noexcept;
  /// Runs `body` on these sub-groups of one unit, in this order.
  Result<void> run_some(std::uint32_t unit, const std::vector<std::uint64_t>& indices,
                        const SubGroupStreamOptions& options, const Body& body) noexcept;
  /// A sub-group in its home: memory (device memory if that is separate), or null.
  SubGroup at_home(std::uint32_t unit, std::uint64_t index) noexcept {
    return locate({unit, index}, nullptr);
  }

 private:
  using Task = tiering::RingTask;
  friend Order;  // RingOrder uses this class as its port
  bool computes_elsewhere() const noexcept { return state_.separate_device(); }
  bool writes() const noexcept {
    return options_.write_state || options_.write_grad || options_.restore_param;
  }
  tiering::RingNeed need(const Task& task) const noexcept;
  Result<void> read(const Task& task, Item& item) noexcept;
  Result<void> work(std::size_t place, const Task& task, Item* item) noexcept;
  std::size_t together_max() const noexcept;
  Result<void> work_together(std::size_t first, std::span<const Task> tasks) noexcept;

  std::vector<Task> list_tasks(const std::vector<std::uint32_t>& units) const;
  Result<void> begin_tasks(std::vector<Task> tasks, const SubGroupStreamOptions& options,
                           SlicedBody body) noexcept;
  bool may_use_queues(const std::vector<Task>& tasks) const noexcept;
  SubGroup cut(const Task& task) const noexcept;
  SubGroup locate(const Task& task, tiering::StagingItem* item) noexcept;
  std::uint64_t param_first(const SubGroup& group) const noexcept;
  std::uint64_t grad_first(const SubGroup& group) const noexcept;
  void list_param(const SubGroup& group, GroupBlocks& blocks) const noexcept;
  void list_saved(const SubGroup& group, GroupBlocks& blocks) const noexcept;
  void list_read(const SubGroup& group, GroupBlocks& blocks) const noexcept;
  void list_written(const SubGroup& group, GroupBlocks& blocks) const noexcept;
  void list_state(const SubGroup& group, bool with_param, GroupBlocks& blocks) const noexcept;
  template <typename Work>
  void for_each_slice(const SubGroup& group, const Work& work);
  Result<void> work_on(const SubGroup& group, GroupBlocks& written) noexcept;
  Result<void> write(const SubGroup& group, tiering::StagingItem& item) noexcept;
  Result<void> write_param(const SubGroup& group, tiering::StagingItem& item) noexcept;
  void write_grad(const SubGroup& group, tiering::StagingItem& item) noexcept;
  tiering::Route route(tiering::ShardId id) const noexcept;
  bool frozen(std::uint32_t unit) const noexcept {
    return state_.placement().units[unit].master == Master::None;
  }
  /// True if reading the unit's state also reads its parameters.
  bool state_has_param(std::uint32_t unit) const noexcept {
    return zero3::state_has_param(state_.placement(), unit);
  }
  std::uint64_t param_offset() const noexcept;
  std::uint64_t grad_offset() const noexcept;
  std::uint64_t saved_offset() const noexcept { return grad_offset(); }

  ModelState& state_;
  // For the pass under way:
  SubGroupStreamOptions options_;
  bool uses_queues_ = false;   // copies go between its items and a separate device
  SlicedBody body_;            // if it has no slices, `after` does all the work
  std::size_t saved_end_ = 0;  // the place after the last of units_saved
  std::vector<Task> done_;     // tasks that an abandoned pass had completed
};

}  // namespace artesian::zero3
