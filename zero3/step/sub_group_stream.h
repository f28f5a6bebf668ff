// Streams optimizer state through the staging ring, sub-group by sub-group: read, work, write, with
// the reads of coming sub-groups and the writes of past ones in flight beside the work. State whose
// home is memory is worked on in place; what lies in a separate device's memory comes and goes
// through the ring, too. A sub-group that needs nothing else takes no item of the ring, and the
// disk is busy with the next ones that do. Initialisation (write), the optimizer step (read,
// write), export and digest (read), and the passes over gradients that spill are the same loop. It
// may pause between units: transfers go on.
//
// Note [Slices]: verifying, updating and sealing a sub-group one after the other would fetch it
// from DRAM three times. Work that comes in slices is done between the checksums of its slice, by
// the thread that makes these, in whose cache it is. The price: whether a block is what was written
// shows when all of its slices are done. So work of slices may see damaged bytes, and what it made
// of them may be in state that is in memory and in gathered parameters when the pass ends with the
// error. Nothing of that sub-group is sealed or written then, and nothing of what is in memory may
// be used again: the engine remembers the error, and answers every later call with it.
//
// Note [Out of turn]: a sub-group that is in memory takes the cores' time and none of the disk's.
// As long as the first of a pass are such ones, the ring is full of what comes behind them, and the
// disk rests. So where the caller allows it, what has come is done before them: it is written,
// and the next is read. Each sub-group is done once, whatever the order, so bits and bytes stay.
//
// Note [Together]: to fork and to join the team takes as long as one sub-group takes many cores, or
// longer where idle threads sleep. So sub-groups in memory, which no transfer keeps apart, are done
// several in one region; but one by one while something is in flight, since what has come, or is
// written, is looked at between two regions alone.
//
// Note [Borrowed items]: how far a pass reads ahead is bounded by the ring. Under backward the disk
// would then rest, while memory that activations have left stands empty until the next forward.
// Items in such memory are read into as into the ring's own, by the same pass in the same order;
// each goes back as soon as its sub-group is written, which is while forward begins. Nothing is
// read that would not be read, so bytes stay as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "zero3/step/group_blocks.h"
#include "zero3/step/state.h"

namespace artesian::zero3 {

/// One sub-group in memory: `count` elements of this rank's share of a unit's image, in both from
/// the given one on (Note [Shares] in zero3/plan/layout.h). What the caller has not asked for may
/// be null.
struct SubGroup {
  std::uint32_t unit = 0;
  std::uint64_t index = 0;
  std::uint64_t share_first = 0;
  std::uint64_t image_first = 0;
  std::uint64_t count = 0;
  float* master = nullptr;      // [count]; with fp32 parameters: the parameters themselves; of
                                // frozen ones null, as are moments and gradient: `param` is all
  float* exp_avg = nullptr;     // [count]
  float* exp_avg_sq = nullptr;  // [count]
  /// [count]: where master weights are split (kernels/split_master.h), `master` is null, `param`
  /// has their upper halves, this the lower ones, and the sign of `exp_avg_sq` is their bit.
  std::uint16_t* master_low = nullptr;
  std::byte* grad = nullptr;   // [count] of grad_dtype
  std::byte* param = nullptr;  // [count] of param_dtype, where the fresh parameter goes
  std::byte* saved = nullptr;  // [count] of param_dtype: what it was, where that is kept
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
  bool write_grad = false;  // of units whose gradients are on NVMe
  /// The work on the first so many units may be taken back: what parameters were goes to their
  /// saved_param (ModelState), where there is one. For state it is the caller who sees to shadows.
  std::size_t units_saved = 0;
  /// Takes it back: reads what parameters were, or the state that they come from, and writes
  /// nothing but them.
  bool restore_param = false;
  aio::Priority read_priority = aio::Priority::OptimizerRead;
};

class SubGroupStream {
 public:
  /// May enqueue copies of the sub-group's memory in the queue ToDevice.
  using Body = std::function<Result<void>(const SubGroup&)>;
  /// Note [Slices].
  struct SlicedBody {
    /// Works on elements [begin, end), on the compute team.
    std::function<void(const SubGroup&, std::uint64_t begin, std::uint64_t end)> slice;
    /// Once all slices are done and what was read is known to be good; it changes nothing that is
    /// written. Nothing of the sub-group is if it returns an error. May be null.
    Body after;
  };

  /// `waits_for`: what the timeline calls the waits.
  explicit SubGroupStream(ModelState& state, const char* waits_for = "sub-groups") noexcept
      : state_(state), waits_for_(waits_for) {}
  /// Reads may go to memory of this lender, too, which outlives the stream, or of nobody: null.
  /// Items that are borrowed already go back by themselves: Note [Borrowed items].
  void borrow_from(BufferLender* lender) noexcept { lender_ = lender; }
  /// From here to the end of the pass: sub-groups of units that `may` holds of are done out of
  /// turn, before sub-groups in memory: Note [Out of turn].
  void allow_out_of_turn(std::function<bool(std::uint32_t unit)> may) noexcept {
    out_of_turn_ = std::move(may);
  }
  /// Gives back what has nothing in flight. Errors: Io: what was written from it was not.
  Result<void> give_back_borrowed() noexcept;
  /// True if that would do anything now.
  bool may_give_back() const noexcept;
  /// Begins a pass that runs `body` on every sub-group of `units`, in order: starts its first
  /// reads. An error, here or below, ends the pass. Errors: Io, Timeout.
  Result<void> begin(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                     Body body) noexcept;
  Result<void> begin(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                     SlicedBody body) noexcept;
  /// Goes on until the sub-groups of `unit`, and of those before it, are done, and starts as many
  /// more reads as it can without waiting. Errors: Io, Corrupt, NoSpace, Timeout, and those of the
  /// body.
  Result<void> advance_past(std::uint32_t unit) noexcept;
  /// Goes on with the sub-groups of `unit`, and of those before it, as far as their transfers are
  /// complete. Returns whether they are done. Errors: as advance_past.
  Result<bool> advance_within(std::uint32_t unit) noexcept;
  /// True if that would do anything now.
  bool may_advance() const noexcept;
  /// Starts as many more reads as it can without waiting. Errors: Io, Timeout.
  Result<void> read_on() noexcept { return advance_to(current_); }
  /// True if that would do anything now.
  bool may_read_on() const noexcept {
    return under_way() && issued_ < tasks_.size() && (may_look_ahead() || may_borrow());
  }
  /// Ends a pass that is done in turn where it is: waits for what it reads, and forgets it. Errors:
  /// Io, Timeout.
  Result<void> abandon() noexcept;
  /// Runs `body` on the sub-groups that the pass had done when it was abandoned.
  Result<void> run_on_done(const SubGroupStreamOptions& options, SlicedBody body) noexcept;
  /// The rest of the pass. Writes may still be in flight in the ring. Errors: as advance_past.
  Result<void> finish() noexcept;
  /// begin and finish.
  Result<void> run(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                   const Body& body) noexcept;
  Result<void> run(const std::vector<std::uint32_t>& units, const SubGroupStreamOptions& options,
                   const SlicedBody& body) noexcept;
  /// Runs `body` on those sub-groups of `units` that `wanted` holds of, in order.
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
  /// Waits for what passes have left in flight in the ring, what is oldest first: a write that
  /// failed is why later ones of its file did. Errors: the first one's.
  Result<void> finish_left() noexcept;
  /// A sub-group in its homes: memory, of the device where that is separate, or null.
  SubGroup at_home(std::uint32_t unit, std::uint64_t index) noexcept {
    return locate({unit, index}, nullptr);
  }
  /// Seconds spent waiting for the disk so far.
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }

 private:
  struct Task {
    std::uint32_t unit;
    std::uint64_t index;
    bool operator==(const Task&) const = default;
  };
  struct FreeItem {
    tiering::StagingItem* item;
    std::optional<Task> wrote;      // may be in flight
    std::optional<Error> failed{};  // what came of it, once known
  };
  void list_tasks(const std::vector<std::uint32_t>& units);
  Result<void> begin_tasks(const SubGroupStreamOptions& options, SlicedBody body) noexcept;
  bool may_use_queues() const noexcept;
  Result<void> advance_to(std::size_t end) noexcept;
  Result<void> run_next(std::size_t end) noexcept;
  bool in_flight() const noexcept;
  std::size_t together_up_to(std::size_t end) const noexcept;
  Result<void> run_together(std::size_t end) noexcept;
  bool ready() const noexcept;
  bool worthwhile() const noexcept;
  Result<void> read_ahead(bool wait) noexcept;
  std::size_t next_task() const noexcept;
  Result<void> run_task(std::size_t place) noexcept;
  Result<void> run_one(std::size_t place) noexcept;
  bool under_way() const noexcept { return current_ < tasks_.size(); }
  enum class Item : std::uint8_t { Never, ToWrite, ToRead };  // to read, and maybe to write
  Item item_for(const Task& task) const noexcept;
  std::size_t writer_of(const Task& task) const noexcept;
  std::size_t idle_item() const noexcept;
  Result<tiering::StagingItem*> take_item(const Task& task) noexcept;
  std::uint32_t own_free_items() const noexcept;
  bool may_look_ahead() const noexcept;
  bool may_borrow() const noexcept;
  tiering::StagingItem* borrow();
  SubGroup cut(const Task& task) const noexcept;
  SubGroup locate(const Task& task, tiering::StagingItem* item) noexcept;
  std::uint64_t param_first(const SubGroup& group) const noexcept;
  std::uint64_t grad_first(const SubGroup& group) const noexcept;
  Result<void> issue_reads(const Task& task, tiering::StagingItem& item) noexcept;
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
  std::uint64_t record_blocks(std::uint32_t unit) const noexcept;
  bool frozen(std::uint32_t unit) const noexcept {
    return state_.placement().units[unit].master == Master::None;
  }
  /// True if reading the unit's state takes its parameters, too.
  bool state_has_param(std::uint32_t unit) const noexcept {
    return frozen(unit) || state_.placement().update_reads_param(unit);
  }
  std::uint64_t param_offset() const noexcept;
  std::uint64_t grad_offset() const noexcept;
  std::uint64_t saved_offset() const noexcept { return grad_offset(); }

  /// Counts what has been waited for since then.
  void count_wait(std::uint64_t begin_ns) noexcept;

  ModelState& state_;
  const char* const waits_for_;
  BufferLender* lender_ = nullptr;
  // Of the pass under way:
  SubGroupStreamOptions options_;
  bool uses_queues_ = false;  // between its items and a separate device
  SlicedBody body_;           // without slices: `after` is the whole work
  std::vector<Task> tasks_;
  std::vector<std::size_t> unit_end_;         // by unit, the place after its last task; 0: no task
  std::vector<tiering::StagingItem*> items_;  // by task, or null; of one that is done, null
  std::vector<bool> ran_;                     // by task: it is done
  std::function<bool(std::uint32_t)> out_of_turn_;  // may be null
  std::size_t saved_end_ = 0;                       // the place after the last of units_saved
  std::size_t current_ = 0;                         // the first task that is not done
  std::size_t done_ = 0;               // of a pass that was abandoned: where current_ was
  std::size_t issued_ = 0;             // tasks of which all reads have been started
  std::uint32_t writers_waiting_ = 0;  // of these, those that will take an item to write
  std::vector<FreeItem> free_items_;   // not of a task; the first was given back first
  std::uint64_t wait_ns_ = 0;
};

}  // namespace artesian::zero3
