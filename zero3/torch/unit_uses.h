// UnitUses: uses of units in any autograd graph. A driver of StepCore for models that are run by
// somebody else: it is told when a stage's module begins and ends, and finds out by itself when
// backward comes to what the module has computed, and when it is done with it. Knows tensors and
// nodes; no modules, no Python.
//
// A use is what one call of a module has added to the graph: the nodes behind its outputs that are
// younger than the call, found by a walk when it ends. In backward it opens before the first of its
// nodes runs, which enters the units, and closes when every ender has run: a node with an edge to a
// leaf or to an older node, or with none at all. Every path through the use ends in one, so no node
// that reads a parameter comes later, and the stage below opens after the one above has closed.
// Enders are counted at opening, of those nodes that this backward runs: so an output that is not
// in the loss holds nothing, and a second backward over a retained graph opens the use again.
//
// Gradients of the stage's parameters are taken at the enders. What several of them give to one
// parameter is summed in the dtype that is computed in and added once.
//
// A call that returns a parameter, or a view of one, leaves its stage to the call around it, which
// has it until its own end, and again in backward. Of the outermost call, nobody has it any more.
//
// Gradients that no use takes (of graphs that a reentrant checkpoint makes in backward, of
// parameters with hooks of the caller's, of accesses outside of any unit) are taken where autograd
// has accumulated them.
//
// What the caller does to parameters and gradients behind its back, a ParameterWatch finds.
// Persistent units can be read between passes; from step() to the next pass they cannot, since
// their update is pending.
//
// A step whose caller asked for as many gradients as in the step before is taken to have had its
// last backward: under it units are updated, as soon as no use of them is left for backward to come
// to. Whatever else comes between it and step(), another backward, a forward, a look at state,
// other constants, takes that back, and so does a use, or a gradient, of a unit that seemed to have
// had its last. The bits are those of an update that waited for step().
//
// What is frozen when the engine is made, stays so: it has no optimizer state. What is trainable
// may be switched off for a while; a step in which no gradient has come for it leaves it out.
//
// The graph owns its uses. They may die on any thread, in a forked child too: the destructor only
// leaves word, in a list without locks, and the next call on the caller's thread reads it.
//
// Passes: the outermost call decides. A training pass opens a forward of the step, which then stays
// open until gradients come; the backward stays open until the next forward, evaluation or step: so
// several forwards and several backwards in any order are one micro-batch, or more.
//
// A parameter that one pass uses several times, a tied one or a block that is shared, has a
// gradient of each use; they are summed in the dtype of the parameters until the backward ends, and
// added once. What several forwards of one micro-batch make of a
// parameter that each uses once is added one by one; with several ranks it is summed, too, since
// each sends what its micro-batch has made once.
//
// Used from any thread, one at a time: each call and hook holds the link's lock. On a device
// autograd runs nodes, their hooks and what a checkpoint computes once more on a thread of the
// device's. Each thread has a stack of calls of its own; the first call of all begins the pass, and
// the last one to end ends it. While a graph task runs, threads that have no part in it are
// refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "zero3/step/step_core.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/parameter_tensors.h"
#include "zero3/torch/parameter_watch.h"

namespace artesian::zero3 {

enum class Pass : std::uint8_t { Train, Evaluate };
enum class FrozenBy : std::uint8_t { Caller, Engine };

class UnitUses {
 public:
  /// The constants by parameter group that the next step() would be given now; none: not known.
  using Constants = std::function<std::vector<GroupStep>()>;
  /// Tensors that were adopted. All must outlive it, and the core, a hooked one, must have its
  /// weights. `constants` may be null; then nothing is updated under backward. `device`: where the
  /// tensors are; null: on the CPU.
  UnitUses(StepCore& core, ParameterTensors& tensors, Constants constants,
           const ComputeDevice* device = nullptr);
  /// Uses that are alive do nothing any more.
  ~UnitUses();
  UnitUses(const UnitUses&) = delete;
  UnitUses& operator=(const UnitUses&) = delete;

  /// A call of a module begins: of a stage's, by the stage's number, or of one above stages, which
  /// has a number of its own from their count on. `pass`: what it is, if it is the outermost call.
  /// Errors: Io, Corrupt, Timeout, Exhausted, which end the run; Invalid: out of order, a parameter
  /// that somebody changed in place.
  Result<void> enter(std::uint32_t module, Pass pass);
  /// It ends. `outputs`: all tensors in what it returned; none after an exception. A call whose
  /// enter() failed is no call. Errors: as enter.
  Result<void> leave(std::uint32_t module, std::span<const at::Tensor> outputs);
  /// Rows of a tiled parameter, [rows, width], in the dtype that is computed in. Its gradient is
  /// added row by row, and is nowhere dense; in backward its unit is not gathered for the stage
  /// whose look-up it is.
  /// Shape: ids: [...], int64; returns [..., width]. Rows `padding` get no gradient; -1: all do.
  /// Throws what at::embedding throws.
  at::Tensor look_up(std::uint32_t parameter, const at::Tensor& ids, std::int64_t padding);
  /// at::linear with a tiled parameter, [rows, width], in the dtype that is computed in, or in that
  /// of autocast. Where that is fp32 and the parameter is stored in 16 bit, it is expanded by
  /// tiles. Its gradient is made by tiles, each added at once. Shape: input: [..., width]; bias:
  /// [rows], or undefined; returns [..., rows]. Throws what at::linear throws.
  /// `frozen_by`: by whom, if it is frozen; plain PyTorch multiplies some inputs by a frozen weight
  /// to other bits, and would have known of the caller's freezing alone.
  at::Tensor multiply(std::uint32_t parameter, const at::Tensor& input, const at::Tensor& bias,
                      FrozenBy frozen_by = FrozenBy::Caller);
  /// The innermost call is about to read a parameter. Where that belongs to another module, it is
  /// gathered at once, and from here on with each call of this one. Errors: as enter.
  Result<void> gather(std::uint32_t parameter);
  /// This thread's calls that have not ended. Never waits for a call.
  std::size_t depth() const;
  /// This thread's calls that have not ended were broken off (by a signal's exception): ends them.
  /// In a training pass the step is damaged by it. Errors: Io, Timeout.
  Result<void> unwind();

  /// The caller is about to ask autograd for gradients of this loss. Without it, the first gradient
  /// begins the backward. Errors: Invalid (out of order); Io.
  Result<void> begin_backward(double loss);
  /// That call has returned, or failed, which damages the step. Errors: the error that a hook met,
  /// in place of what it threw; Io.
  Result<void> backward_ended(bool failed);
  /// Announces that the caller multiplies this loss by the loss scale and calls autograd itself.
  /// Otherwise such a backward is an error unless the loss scale is 1.
  Result<void> scales_by_itself(double loss);
  /// StepCore::step over all micro-batches since the last one, and new versions for all parameters.
  Result<StepResult> step(const StepRequest& request);
  /// Drops all gradients since the last step, if there are any, or the step is damaged. Errors: as
  /// StepCore::abandon_step.
  Result<void> zero_gradients();
  /// Before anything else is asked of the core: no pass is open then. Errors: Invalid (a module's
  /// call has not ended); Io.
  Result<void> settle();
  /// Before what is between two steps alone. A forward that nobody has asked a gradient of is
  /// forgotten. Errors: as settle, and StepCore::abandon_step.
  Result<void> leave_step();
  /// The caller has given the parameter memory of its own, until it says the contrary.
  void lend(std::uint32_t parameter, bool lent);
  /// Before the core is closed: nothing stays pinned, whatever broke off.
  void let_go();
  /// Weights were replaced or dropped: graphs from before must not be asked for gradients.
  void weights_replaced(std::optional<std::uint32_t> unit = {});
  /// Of resident parameters: those that the caller has changed.
  std::vector<std::uint32_t> changed(LookFor look) const;
  /// Records the parameters' values as valid.
  void remember(std::span<const std::uint32_t> parameters);

  std::size_t open_max() const noexcept { return open_max_; }  // the most stages in use at once
  std::size_t closed_late() const noexcept { return late_; }   // uses, by the end of a backward
  std::size_t uses_alive() const noexcept;

 private:
  struct Word;  // message of a use that was destroyed
  struct Link;  // between uses and this, which may end before them
  struct Use;   // a use: what one call added to the graph
  class OpeningHook;
  class EndingHook;
  class AccumulateHook;
  struct LookUp;  // autograd functions whose backward adds gradients by itself
  struct Multiply;
  struct Table;  // what these functions know of a parameter

  struct Frame {
    std::uint32_t module = 0;
    std::uint64_t thread = 0;             // whose nodes are numbered by themselves
    std::uint64_t first_node = 0;         // sequence number of the first node that it can have made
    std::vector<std::uint32_t> stages{};  // stages that it holds
  };
  using Frames = std::vector<Frame>;
  struct Task {
    int number = 0;
    std::weak_ptr<const void> runs;  // expires with autograd's graph task
  };
  struct Held {
    at::Tensor gradient{};
    bool own = false;  // no other tensor shares its memory
    /// Adds to the sum.
    void add(const at::Tensor& more);
  };
  std::unique_lock<std::recursive_mutex> alone() const;
  Frames* frames();
  void push(Frame frame);
  void pop();
  Result<void> unwind_calls(bool of_all_threads);
  bool backward_runs() const;
  Result<void> check_no_backward_elsewhere() const;
  Result<void> check_stream_of(const char* call) const;
  bool has_failed(int task) const noexcept { return task != -1 && task <= failed_through_; }
  Result<void> begin_call(Pass pass);
  Result<void> end_call();
  Result<void> begin_pass(Pass pass);
  Result<void> open_forward();
  Result<void> close_forward_and_backward();
  Result<void> close_backward();
  Result<void> hold(std::uint32_t access);
  Result<void> hold_all(const std::shared_ptr<Use>& use);
  Result<void> release(std::uint32_t access);
  Result<void> release_all(const std::vector<std::uint32_t>& accesses);
  void bind_persistent();
  void bind_for_long(std::uint32_t unit);
  void put_persistent_away();
  Result<void> bring_persistent_back();
  std::optional<std::uint32_t> parameter_at(const torch::autograd::Node& node,
                                            const Use& use) const;
  std::optional<std::uint32_t> stage_of(std::uint32_t parameter,
                                        std::span<const std::uint32_t> stages) const;
  std::uint32_t owner_of(std::uint32_t parameter) const;
  void hand_over(const Frame& frame, std::span<const at::Tensor> outputs);
  std::shared_ptr<Use> walk(const Frame& frame, std::span<const at::Tensor> outputs);
  Result<void> open(const std::shared_ptr<Use>& use, int task);
  Result<void> strike(Use& use);
  Result<void> close(Use& use);
  Result<void> take(Use& use, std::uint32_t parameter, const at::Tensor& gradient);
  Result<void> add(std::uint32_t parameter, const at::Tensor& gradient);
  Result<void> add_once(std::uint32_t parameter, const at::Tensor& gradient);
  Result<void> add_held();
  void count_call(std::uint32_t stage);
  at::Tensor of_all_ranks(const at::Tensor& gradient) const;
  Result<void> check_added(std::uint32_t parameter, const at::Tensor& gradient) const;
  bool takes_by_itself(std::uint32_t parameter) const;
  Result<void> add_rows(std::uint32_t parameter, const at::Tensor& ids, const at::Tensor& gradient,
                        std::int64_t padding);
  Result<void> add_tiles(std::uint32_t parameter, const at::Tensor& factor,
                         const at::Tensor& input);
  Result<void> ready_for_gradients();
  std::vector<GroupStep> constants_if_last() const;
  Result<void> reopen(std::uint32_t unit);
  std::vector<std::uint32_t> units_of(const std::vector<std::uint32_t>& stages) const;
  void complete_units(const Use& use);
  bool holds_any_of(std::uint32_t unit) const;
  Result<void> end_passes();
  Result<void> end_task(int task);
  Result<void> release_open();
  Result<void> release_ahead();
  Result<void> check_whole();
  Result<void> read_words();
  void follow_task(int task);
  Result<void> drop_gradients_if_the_caller_did();
  void raise(Result<void> result);

  StepCore& core_;
  ParameterTensors& tensors_;
  const Layout& layout_;
  const Constants constants_;
  const ComputeDevice* const device_;
  ParameterWatch watch_;
  std::shared_ptr<Link> link_;
  /// By thread, of those that have any. Changed with both locks held; `depths_`, which is held for
  /// a moment only, is enough to read.
  std::unordered_map<std::uint64_t, Frames> stacks_;
  mutable std::mutex depths_;
  bool evaluating_ = false;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> others_;  // stages, by module
  /// Units that are entered for a stage, by its number; and behind all, for those whose backward
  /// gathers less.
  std::vector<AccessOrder::Access> accesses_;
  std::vector<std::uint32_t> in_backward_;  // by stage: the number of its access in backward
  std::vector<std::uint32_t> holds_;        // by access: how many uses hold it
  std::vector<std::uint32_t> unit_holds_;
  std::vector<bool> away_;  // by unit: persistent, and not bound since the last step
  std::unordered_map<const void*, std::uint32_t> parameter_of_;  // by tensor and by storage
  std::vector<std::shared_ptr<void>> accumulators_;              // nodes, kept alive
  std::vector<std::weak_ptr<Use>> open_;                         // uses that hold their stage
  std::vector<Task> tasks_;                                      // running graph tasks of autograd
  int failed_through_ = -1;             // numbers of tasks that failed; they rise
  std::optional<double> loss_;          // loss of the announced backward
  std::optional<double> scaled_loss_;   // loss of a backward that the caller starts itself
  std::vector<std::uint32_t> calls_;    // by parameter: calls below the outermost that read it
  std::vector<bool> several_;           // by parameter: some pass has used it several times
  std::map<std::uint32_t, Held> held_;  // sums of these, by parameter
  std::vector<bool> added_;             // by parameter: a gradient was added since the last step
  std::uint64_t backwards_ = 0;         // calls of autograd that have ended, since then
  std::uint64_t backwards_before_ = 0;  // backwards of the step before
  bool damaged_ = false;
  std::optional<Error> error_;  // what a hook ran into
  std::atomic<std::size_t> open_max_ = 0;
  std::atomic<std::size_t> late_ = 0;
};

}  // namespace artesian::zero3
