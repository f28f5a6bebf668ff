// UnitUses: tracks uses of units in arbitrary autograd graphs. It is a driver of StepCore for
// hooked models, which the caller runs: it is told when a stage's module begins and ends, and
// detects by itself when backward reaches the part of the graph that the module has created, and
// when backward is done with it. It works on tensors and nodes, without modules or Python.
//
// A use is the part of the graph that one module call has added: the nodes behind its outputs that
// are younger than the call, found by a walk when the call ends. In backward a use opens before the
// first of its nodes runs, which enters the units. It closes when every ender has run; an ender is
// a node with an edge to a leaf or to an older node, or without edges. Every path through the use
// ends at an ender, so no later node reads a parameter, and an earlier stage opens only after a
// later one has closed. When a use opens, only enders that this backward runs are counted. So an
// output that is not part of the loss holds nothing, and a second backward over a retained graph
// opens the use again.
//
// Gradients of the stage's parameters are taken at the enders. If several enders contribute to one
// parameter, their gradients are summed in the compute dtype and added once.
//
// If a call returns a parameter, or a view of one, the enclosing call keeps its stage until that
// call ends, and again in backward. After the outermost call the stage is released.
//
// Gradients that no use takes (in graphs that a reentrant checkpoint creates in backward, of
// parameters with hooks of the caller, of accesses outside of any unit) are taken after autograd
// has accumulated them.
//
// A ParameterWatch detects changes that the caller makes to parameters and gradients. Persistent
// units can be read between passes; from step() to the next pass they cannot, since their update is
// pending.
//
// A backward is assumed to be the step's last one when the caller has made as many as in the
// previous step. Under it, a unit is updated as soon as backward has no more uses of it to reach.
// Anything else before step() (another backward, a forward, a read of state, other constants) rolls
// these updates back, and so does a further use or gradient of a unit that was considered done. The
// bits are those of an update that waited for step().
//
// Parameters that are frozen when the engine is created remain so, as they have no optimizer state.
// Trainable ones may be frozen for a while; a step in which they get no gradient skips them.
//
// The graph owns its uses. They may be destroyed on any thread, also in a forked child: the
// destructor only leaves a note in a lock-free list, which the next call on the caller's thread
// reads.
//
// Passes: the outermost call decides. A training pass opens a forward of the step, which then stays
// open until gradients come; the backward stays open until the next forward, evaluation or step: so
// several forwards and several backwards in any order are one micro-batch, or more.
//
// A parameter that one pass uses several times (a tied weight or a shared block) gets a gradient
// from each use; these are summed in the parameters' dtype until the backward ends, and added once.
// If several forwards of one micro-batch each use a parameter once, their gradients are added one
// by one; with several ranks they are summed, too, since each rank sends its micro-batch's
// gradients once.
//
// Used from any thread, one at a time: each call and hook holds the link's lock. With a device,
// autograd runs nodes, their hooks and a checkpoint's recomputation on the device's own thread.
// Each thread has its own stack of calls; the first of all calls begins the pass, and the last one
// to return ends it. While a graph task runs, calls from threads outside of it are refused.
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
  /// The constants by parameter group that the next step() would get now; empty if unknown.
  using Constants = std::function<std::vector<GroupStep>()>;
  /// `tensors`: adopted tensors. `core`: a hooked core that has its weights. All must outlive this
  /// object. `constants` may be null; then nothing is updated under backward. `device`: the
  /// tensors' device; null: the CPU.
  UnitUses(StepCore& core, ParameterTensors& tensors, Constants constants,
           const ComputeDevice* device = nullptr);
  /// Uses that still exist have no effect any more.
  ~UnitUses();
  UnitUses(const UnitUses&) = delete;
  UnitUses& operator=(const UnitUses&) = delete;

  /// Begins a module's call. `module`: the number of its stage; modules above stages have numbers
  /// from the stage count on. `pass`: the kind of pass if this is the outermost call. Errors: Io,
  /// Corrupt, Timeout, Exhausted, which end the run; Invalid: out of order, or a parameter was
  /// changed in place.
  Result<void> enter(std::uint32_t module, Pass pass);
  /// Ends a module's call. `outputs`: all tensors in its result; none after an exception. Not
  /// called if enter() failed. Errors: as enter.
  /// `failed`: an exception ended it; asked of the outermost call alone.
  Result<void> leave(std::uint32_t module, std::span<const at::Tensor> outputs,
                     bool failed = false);
  /// Looks up rows of a tiled parameter, [rows, width], in the compute dtype. Its gradient is added
  /// row by row and is never dense; in backward its unit is not gathered for the stage with this
  /// look-up. Shape: ids: [...], int64; returns [..., width]. Row `padding` gets no gradient; -1:
  /// all rows do. Throws like at::embedding.
  at::Tensor look_up(std::uint32_t parameter, const at::Tensor& ids, std::int64_t padding);
  /// at::linear with a tiled parameter, [rows, width], in the compute dtype, or in that of
  /// autocast. If that is fp32 and the parameter is stored in 16 bit, it is expanded tile by tile.
  /// Its gradient is computed by tiles, each added at once. Shape: input: [..., width]; bias:
  /// [rows], or undefined; returns [..., rows]. Throws like at::linear. `frozen_by`: who froze it,
  /// if it is frozen. For some inputs, plain PyTorch's product with a frozen weight has other bits;
  /// it would only know of the caller's freezing.
  at::Tensor multiply(std::uint32_t parameter, const at::Tensor& input, const at::Tensor& bias,
                      FrozenBy frozen_by = FrozenBy::Caller);
  /// Call it when the innermost call is about to read a parameter. If that belongs to another
  /// module, it is gathered at once, and from now on with each call of this module. Errors: as
  /// enter.
  Result<void> gather(std::uint32_t parameter);
  /// Number of this thread's calls that have not ended. Never waits for another call.
  std::size_t depth() const;
  /// Ends this thread's calls that were interrupted (by a signal's exception). In a training pass
  /// this damages the step. Errors: Io, Timeout.
  Result<void> unwind();

  /// Announces that the caller will ask autograd for gradients of this loss. Without this call, the
  /// first gradient begins the backward. Errors: Invalid (out of order); Io.
  Result<void> begin_backward(double loss);
  /// Reports that this call of autograd has returned, or failed, which damages the step. Errors:
  /// the error that a hook met, which replaces what it threw; Io.
  Result<void> backward_ended(bool failed);
  /// Announces that the caller multiplies this loss by the loss scale and calls autograd itself.
  /// Otherwise such a backward is an error unless the loss scale is 1.
  Result<void> scales_by_itself(double loss);
  /// From now on gradients of backwards that the caller starts itself are divided by the
  /// accumulation steps, as DeepSpeed does.
  void divide_own_losses() noexcept {
    own_parts_ = static_cast<double>(core_.config().accumulation_steps);
  }
  /// StepCore::step over all micro-batches since the last one; all parameters get new versions.
  Result<StepResult> step(const StepRequest& request);
  /// Drops all gradients since the last step, if there are any or if the step is damaged. Errors:
  /// as StepCore::abandon_step.
  Result<void> zero_gradients();
  /// Call it before any other use of the core: closes open passes. Errors: Invalid (a module's call
  /// has not ended); Io.
  Result<void> settle();
  /// Call it before operations that are only allowed between two steps. Drops a forward without a
  /// backward. Errors: as settle, and StepCore::abandon_step.
  Result<void> leave_step();
  /// Records that the caller has given the parameter memory of its own, or ends that.
  void lend(std::uint32_t parameter, bool lent);
  /// Call it before the core is closed: unpins everything, even after an interrupted pass.
  void let_go();
  /// Records that weights were replaced or dropped: older graphs must not be used for gradients.
  void weights_replaced(std::optional<std::uint32_t> unit = {});
  /// Returns the resident parameters that the caller has changed.
  std::vector<std::uint32_t> changed(LookFor look) const;
  /// Records the parameters' values as valid.
  void remember(std::span<const std::uint32_t> parameters);

  std::size_t open_max() const noexcept { return open_max_; }  // the most stages in use at once
  std::size_t closed_late() const noexcept {
    return late_;
  }  // uses that were closed only at the end of a backward
  std::size_t uses_alive() const noexcept;

 private:
  struct Word;  // note left by a destroyed use
  struct Link;  // link between uses and this object, which may be destroyed before them
  struct Use;   // a use: the part of the graph that one call added
  class OpeningHook;
  class EndingHook;
  class AccumulateHook;
  struct LookUp;  // autograd functions whose backward adds gradients itself
  struct Multiply;
  struct Table;  // their data about a parameter

  struct Frame {
    std::uint32_t module = 0;
    std::uint64_t thread = 0;  // thread, which numbers its nodes separately
    // sequence number of the first node that the call can have created
    std::uint64_t first_node = 0;
    std::vector<std::uint32_t> stages{};  // stages that the call holds
  };
  using Frames = std::vector<Frame>;
  struct Task {
    int number = 0;
    std::weak_ptr<const void> runs;  // expires with autograd's graph task
  };
  struct Held {
    at::Tensor gradient{};
    bool own = false;  // whether no other tensor shares its memory
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
  Result<void> end_call(bool failed);
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
  at::Tensor as_part_of_mean(const at::Tensor& gradient) const;
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
  Result<void> send_gradients(const Use& use);
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
  /// Calls by thread, for threads that have any. Changed with both locks held; to read, `depths_`,
  /// which is locked only for a moment, is enough.
  std::unordered_map<std::uint64_t, Frames> stacks_;
  mutable std::mutex depths_;
  bool evaluating_ = false;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>>
      others_;  // by module: other stages that it reads
  /// Units entered for each stage, by its number; after these, the accesses of stages whose
  /// backward gathers fewer units.
  std::vector<AccessOrder::Access> accesses_;
  std::vector<std::uint32_t> in_backward_;  // by stage: index of its access in backward
  std::vector<std::uint32_t> holds_;        // by access: number of uses that hold it
  std::vector<std::uint32_t> unit_holds_;
  std::unordered_map<const void*, std::uint32_t> parameter_of_;  // by tensor and by storage
  std::vector<std::shared_ptr<void>> accumulators_;              // nodes, kept alive
  std::vector<std::weak_ptr<Use>> open_;                         // uses that hold their stage
  std::vector<Task> tasks_;                                      // running graph tasks of autograd
  int failed_through_ = -1;     // number of the latest task that failed; numbers increase
  double own_parts_ = 1.0;      // divisor of gradients of backwards that the caller starts
  std::optional<double> loss_;  // loss of the announced backward
  std::optional<double>
      scaled_loss_;                   // loss of a backward that the caller scales and starts itself
  std::vector<std::uint32_t> calls_;  // by parameter: calls, other than the outermost, that read it
  std::vector<bool> several_;         // by parameter: whether a pass has used it several times
  std::map<std::uint32_t, Held> held_;  // sums of their gradients, by parameter
  std::vector<bool> added_;      // by parameter: whether a gradient was added since the last step
  std::uint64_t backwards_ = 0;  // calls of autograd that have ended since the last step
  std::uint64_t backwards_before_ = 0;  // number of backwards in the previous step
  bool damaged_ = false;
  std::optional<Error> error_;  // error met by a hook
  std::atomic<std::size_t> open_max_ = 0;
  std::atomic<std::size_t> late_ = 0;
};

}  // namespace artesian::zero3
