#include "zero3/torch/unit_uses.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "zero3/plan/step_accesses.h"
#include "zero3/torch/unit_use.h"

namespace artesian::zero3 {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

/// True if the graph task that runs on this thread executes the node.
bool runs_in_current_task(Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr || !nodes->contains(node)) return false;
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) return true;
  const auto found = info->find(node);
  return found != info->end() && found->second.should_execute();
}

const AccumulateGrad* as_accumulator(const Node* node) {
  // A leaf's node has the largest number, so other nodes need no cast.
  if (node->sequence_nr() != ~std::uint64_t{0}) return nullptr;
  return dynamic_cast<const AccumulateGrad*>(node);
}

/// Visits the node that computes the tensor, and that of its base if the tensor is a view.
template <typename Visit>
void visit_nodes(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined() || !tensor.requires_grad()) return;
  visit(torch::autograd::impl::gradient_edge(tensor).function);
  if (!tensor.is_view()) return;
  const at::Tensor base(tensor._base());
  if (base.requires_grad()) visit(torch::autograd::impl::gradient_edge(base).function);
}

}  // namespace

/// Runs before each node of a use.
class UnitUses::OpeningHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit OpeningHook(std::shared_ptr<Use> use) : use_(std::move(use)) {}

  variable_list operator()(const variable_list& gradients) override {
    use_->link->with_uses([&](UnitUses& uses) {
      const int task = current_task();
      if (uses.has_failed(task)) return;
      const bool known = use_->inner.task == task;  // this task has opened the use before
      if (!known) uses.raise(uses.open(use_, task));
      // With a separate device the host's thread is idle anyway.
      if (!uses.core_.state().separate_device()) uses.core_.update_between_operators();
    });
    return gradients;
  }

 private:
  std::shared_ptr<Use> use_;
};

/// Runs after a node with an edge out of the use: takes the gradients of parameters, and passes
/// none on.
class UnitUses::EndingHook final : public torch::autograd::FunctionPostHook {
 public:
  struct Taken {
    std::size_t edge;
    std::uint32_t parameter;
  };
  EndingHook(std::shared_ptr<Use> use, Node& node) : use_(std::move(use)), node_(node) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    variable_list rest = outputs;
    use_->link->with_uses([&](UnitUses& uses) {
      if (uses.has_failed(current_task())) {  // the next backward must not take these gradients
        for (const Taken& each : taken) rest[each.edge] = at::Tensor();
        return;
      }
      if (!use_->is_open_in(current_task())) return;
      for (const auto& [edge, parameter] : taken) {
        at::Tensor gradient;
        Node* const accumulator = node_.next_edge(edge).function.get();
        // The caller may have added hooks since the forward.
        if (accumulates_in_current_task(accumulator) && !has_hooks(*accumulator)) {
          gradient = std::exchange(rest[edge], at::Tensor());
        }
        uses.raise(uses.take(*use_, parameter, gradient));
      }
      uses.raise(uses.strike(*use_));
    });
    return rest;
  }

  std::vector<Taken> taken;

 private:
  std::shared_ptr<Use> use_;
  Node& node_;  // owns this hook
};

/// Takes the gradient that autograd has accumulated for a parameter.
class UnitUses::AccumulateHook final : public torch::autograd::FunctionPostHook {
 public:
  AccumulateHook(std::shared_ptr<Link> link, std::uint32_t parameter)
      : link_(std::move(link)), parameter_(parameter) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    link_->with_uses([&](UnitUses& uses) {
      at::Tensor tensor = uses.tensors_.at(parameter_);
      if (!tensor.grad().defined()) return;
      const at::Tensor gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
      if (uses.has_failed(current_task())) return;
      uses.follow_task(current_task());
      uses.raise(uses.add(parameter_, gradient));
    });
    return outputs;
  }

 private:
  std::shared_ptr<Link> link_;
  std::uint32_t parameter_;
};

UnitUses::UnitUses(StepCore& core, ParameterTensors& tensors, Constants constants,
                   const ComputeDevice* device)
    : core_(core),
      tensors_(tensors),
      layout_(core.layout()),
      constants_(std::move(constants)),
      device_(device),
      watch_(core, tensors),
      link_(std::make_shared<Link>(this, layout_.units.size())),
      accesses_(layout_.stages),
      unit_holds_(layout_.units.size(), 0),
      calls_(layout_.places.size(), 0),
      several_(layout_.places.size(), false),
      added_(layout_.places.size(), false) {
  const auto& stages = core.shape().stages;
  for (std::uint32_t stage = 0; stage < stages.size(); ++stage) {
    AccessOrder::Access units = backward_units(layout_, stages, stage);
    const bool less = units != accesses_[stage];
    in_backward_.push_back(less ? static_cast<std::uint32_t>(accesses_.size()) : stage);
    if (less) accesses_.push_back(std::move(units));
  }
  holds_.assign(accesses_.size(), 0);
  for (std::uint32_t parameter = 0; parameter < layout_.places.size(); ++parameter) {
    const at::Tensor& tensor = tensors_.at(parameter);
    parameter_of_[tensor.unsafeGetTensorImpl()] = parameter;
    parameter_of_[tensor.storage().unsafeGetStorageImpl()] = parameter;
    if (!tensor.requires_grad()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
    accumulator->add_post_hook(std::make_unique<AccumulateHook>(link_, parameter));
    accumulators_.push_back(std::move(accumulator));
  }
  bind_persistent();
}

UnitUses::~UnitUses() {
  const std::lock_guard held(link_->mutex);  // waits for a running hook
  watch_.take_gradients_away();
  link_->uses = nullptr;
}

std::size_t UnitUses::uses_alive() const noexcept {
  return link_->alive.load(std::memory_order_relaxed);
}

/// Called by a hook: autograd stops, and backward_ended() returns the error to the caller.
void UnitUses::raise(Result<void> result) {
  if (result.has_value()) return;
  if (!error_.has_value()) error_ = std::move(result).error();
  TORCH_CHECK(false, error_->to_string());
}

Result<void> UnitUses::hold(std::uint32_t access) {
  if (holds_[access]++ > 0) return {};
  const AccessOrder::Access& units = accesses_[access];
  if (units.empty()) return {};
  auto entered = Result<void>();
  for (const std::uint32_t unit : units) {
    if (entered.has_value()) entered = reopen(unit);
  }
  if (entered.has_value()) entered = core_.enter(units);
  if (!entered.has_value()) {
    if (core_.state_of_step() == StepState::Broken) damaged_ = true;  // by another rank
    --holds_[access];
    return entered;
  }
  for (const std::uint32_t unit : units) {
    if (unit_holds_[unit]++ > 0 || layout_.units[unit].persistent) continue;
    tensors_.bind(unit, core_.data(unit));
    watch_.remember(unit, /*readable=*/false);
  }
  const auto open = static_cast<std::size_t>(
      std::count_if(holds_.begin(), holds_.end(), [](std::uint32_t holds) { return holds > 0; }));
  open_max_ = std::max(open_max_.load(), open);
  return {};
}

Result<void> UnitUses::release(std::uint32_t access) {
  ARTESIAN_CHECK(holds_[access] > 0, access);
  if (--holds_[access] > 0) return {};
  const AccessOrder::Access& units = accesses_[access];
  if (units.empty()) return {};
  auto unchanged = Result<void>();
  for (const std::uint32_t unit : units) {
    ARTESIAN_CHECK(unit_holds_[unit] > 0, unit);
    if (--unit_holds_[unit] > 0 || layout_.units[unit].persistent) continue;
    if (unchanged.has_value()) unchanged = watch_.check_unchanged(unit);
    tensors_.unbind(unit);
  }
  ARTESIAN_TRY_VOID(core_.remember(core_.leave(units)));
  return unchanged;
}

Result<void> UnitUses::release_all(const std::vector<std::uint32_t>& accesses) {
  auto outcome = Result<void>();
  // Leave all of them, as units that stay pinned would never be released.
  for (const std::uint32_t access : accesses) {
    auto released = release(access);
    if (outcome.has_value()) outcome = std::move(released);
  }
  return outcome;
}

/// Releases the stages of uses that were destroyed while holding them.
Result<void> UnitUses::read_words() {
  Word* word = link_->words.exchange(nullptr, std::memory_order_acquire);
  auto outcome = Result<void>();
  for (Word* at = word; at != nullptr; at = at->next) {
    auto released = release_all(at->accesses);
    if (outcome.has_value()) outcome = std::move(released);
  }
  Link::forget(word);
  return outcome;
}

Result<void> UnitUses::begin_pass(Pass pass) {
  ARTESIAN_TRY_VOID(check_whole());
  ARTESIAN_TRY_VOID(watch_.check());
  ARTESIAN_TRY_VOID(core_.take_update_back());
  calls_.assign(calls_.size(), 0);
  if (pass == Pass::Train) {
    ARTESIAN_TRY_VOID(drop_gradients_if_the_caller_did());
    return open_forward();
  }
  ARTESIAN_TRY_VOID(close_forward_and_backward());
  ARTESIAN_TRY_VOID(core_.begin_evaluation());
  evaluating_ = true;
  return {};
}

Result<void> UnitUses::open_forward() {
  const StepState state = core_.state_of_step();
  if (state == StepState::Backward) {
    // A forward after the step's last backward belongs to that backward's micro-batch.
    if (core_.micro_batches() + 1 >= core_.config().accumulation_steps) return {};
    ARTESIAN_TRY_VOID(close_backward());
  } else if (state == StepState::Forward || state == StepState::AwaitsBackward ||
             state == StepState::Full) {
    return {};
  }
  return core_.begin_forward(1);
}

/// Closes the pass, so that other calls are allowed.
Result<void> UnitUses::close_forward_and_backward() {
  if (core_.state_of_step() == StepState::Forward) return core_.end_forward({});
  if (core_.state_of_step() == StepState::Backward) return close_backward();
  return {};
}

Result<void> UnitUses::close_backward() {
  auto closed = core_.end_backward(0);
  // Another rank's micro-batch is damaged.
  if (core_.state_of_step() == StepState::Broken) damaged_ = true;
  return closed;
}

Result<void> UnitUses::enter(std::uint32_t module, Pass pass) {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(begin_call(pass));
  std::vector<std::uint32_t> stages;
  if (module < layout_.stages.size()) stages.push_back(module);
  const auto others = others_.find(module);
  if (others != others_.end()) {
    stages.insert(stages.end(), others->second.begin(), others->second.end());
  }
  push({.module = module,
        .thread = at::RecordFunction::currentThreadId(),
        .first_node = at::sequence_number::peek()});
  for (const std::uint32_t stage : stages) {
    count_call(stage);
    auto held = hold(stage);
    if (held.has_value()) {
      frames()->back().stages.push_back(stage);
      continue;
    }
    static_cast<void>(
        end_call(/*failed=*/true).has_value());  // the first error is the one to report
    return held;
  }
  return {};
}

Result<void> UnitUses::gather(std::uint32_t parameter) {
  const auto held_alone = alone();
  if (unit_holds_[layout_.places[parameter].unit] > 0 || frames() == nullptr) return {};
  const std::uint32_t stage = owner_of(parameter);
  count_call(stage);
  ARTESIAN_TRY_VOID(hold(stage));
  frames()->back().stages.push_back(stage);
  others_[frames()->back().module].push_back(stage);
  return {};
}

Result<void> UnitUses::leave(std::uint32_t module, std::span<const at::Tensor> outputs,
                             bool failed) {
  const auto held_alone = alone();
  Frames* const calls = frames();
  if (calls == nullptr || calls->back().module != module) return {};
  const Frame frame = std::move(calls->back());
  std::shared_ptr<Use> use;
  if (at::GradMode::is_enabled() && !frame.stages.empty()) use = walk(frame, outputs);
  hand_over(frame, outputs);
  if (use != nullptr && current_task() != no_task) {
    ARTESIAN_TRY_VOID(release_ahead());
    ARTESIAN_TRY_VOID(hold_all(use));  // created by a recomputation, whose backward follows
  }
  auto left = release_all(frame.stages);
  ARTESIAN_TRY_VOID(end_call(failed));
  return left;
}

/// The first stage with this parameter.
std::uint32_t UnitUses::owner_of(std::uint32_t parameter) const {
  const auto& stages = core_.shape().stages;
  const auto owner = std::find_if(stages.begin(), stages.end(), [&](const StageSpec& stage) {
    const auto& own = stage.parameters;
    return std::find(own.begin(), own.end(), parameter) != own.end();
  });
  ARTESIAN_CHECK(owner != stages.end(), parameter);
  return static_cast<std::uint32_t>(owner - stages.begin());
}

/// If a call returns a parameter, or a view of one, its stage then also belongs to the calling
/// module, as if that had read the parameter itself.
void UnitUses::hand_over(const Frame& frame, std::span<const at::Tensor> outputs) {
  Frames& calls = *frames();
  if (calls.size() < 2) return;
  auto& callers = calls[calls.size() - 2].stages;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.has_storage()) continue;
    const auto known = parameter_of_.find(output.storage().unsafeGetStorageImpl());
    if (known == parameter_of_.end() || stage_of(known->second, callers).has_value()) continue;
    const auto stage = stage_of(known->second, frame.stages);
    if (!stage.has_value()) continue;
    ++holds_[*stage];
    callers.push_back(*stage);
  }
}

/// Closes uses whose backward has not begun: if several modules are recomputed together, backward
/// begins with the last.
Result<void> UnitUses::release_ahead() {
  const auto open = open_;
  for (const std::weak_ptr<Use>& weak : open) {
    const std::shared_ptr<Use> use = weak.lock();
    if (use != nullptr && use->holds && use->inner.task == no_task) ARTESIAN_TRY_VOID(close(*use));
  }
  return {};
}

/// Finds the nodes of a call, and adds hooks to them. Null if there are none.
std::shared_ptr<UnitUses::Use> UnitUses::walk(const Frame& frame,
                                              std::span<const at::Tensor> outputs) {
  // Leaves' nodes have the largest number; the call's nodes have numbers of its thread, from its
  // first on. Each thread counts separately: in a recomputation on a device's thread the input's
  // node may have a larger number.
  const auto is_outside = [&](const Node* node) {
    return as_accumulator(node) != nullptr || node->thread_id() != frame.thread ||
           node->sequence_nr() < frame.first_node;
  };
  std::vector<Node*> found;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (!is_outside(node) && seen.insert(node).second) found.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    visit_nodes(output, [&](const std::shared_ptr<Node>& node) { visit(node.get()); });
  }
  if (found.empty()) return nullptr;
  std::vector<std::uint32_t> accesses = frame.stages;
  for (std::uint32_t& access : accesses) {
    // A reader of another module's table may need it in backward.
    if (access == frame.module) access = in_backward_[access];
  }
  auto use =
      std::make_shared<Use>(link_, frame.stages, units_of(frame.stages), std::move(accesses));
  for (std::size_t index = 0; index < found.size(); ++index) {  // `found` grows in the loop
    Node& node = *found[index];
    auto ending = std::make_unique<EndingHook>(use, node);
    bool ends = true;  // no edge stays inside the use, or some edge leaves it
    bool leaves = false;
    for (std::size_t edge = 0; edge < node.num_outputs(); ++edge) {
      const std::shared_ptr<Node>& next = node.next_edge(edge).function;
      if (next == nullptr) continue;
      if (is_outside(next.get())) {
        leaves = true;
        const auto parameter = parameter_at(*next, *use);
        if (parameter.has_value()) ending->taken.push_back({edge, *parameter});
      } else {
        ends = false;
        visit(next.get());
      }
    }
    node.add_pre_hook(std::make_unique<OpeningHook>(use));
    if (!ends && !leaves) continue;
    Use::Ender entry{.node = node.getptr(), .parameters = {}};
    for (const auto& taken : ending->taken) entry.parameters.push_back(taken.parameter);
    use->enders.push_back(std::move(entry));
    node.add_post_hook(std::move(ending));
  }
  return use;
}

/// The parameter of the use's stages for which this node accumulates, if its gradient is to be
/// taken before.
std::optional<std::uint32_t> UnitUses::parameter_at(const Node& node, const Use& use) const {
  const AccumulateGrad* leaf = as_accumulator(&node);
  if (leaf == nullptr || has_hooks(*leaf)) return std::nullopt;
  const auto known = parameter_of_.find(leaf->variable.unsafeGetTensorImpl());
  if (known == parameter_of_.end()) return std::nullopt;
  if (!stage_of(known->second, use.stages).has_value()) return std::nullopt;
  return known->second;
}

/// Returns the first of these stages with the parameter.
std::optional<std::uint32_t> UnitUses::stage_of(std::uint32_t parameter,
                                                std::span<const std::uint32_t> stages) const {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](std::uint32_t stage) {
    const auto& own = core_.shape().stages[stage].parameters;
    return std::find(own.begin(), own.end(), parameter) != own.end();
  });
  return found == stages.end() ? std::nullopt : std::optional(*found);
}

/// Records a graph task, and makes autograd report its end.
void UnitUses::follow_task(int task) {
  const auto is_it = [task](const Task& known) { return known.number == task; };
  if (std::any_of(tasks_.begin(), tasks_.end(), is_it)) return;
  const bool outermost = tasks_.empty();
  auto runs = std::make_shared<const int>(task);  // lives as long as the task keeps its callback
  tasks_.push_back({.number = task, .runs = runs});
  if (outermost) {
    raise(check_stream_of("backward"));
    // More backwards than in the previous step.
    if (backwards_ >= backwards_before_) raise(core_.take_update_back());
    raise(drop_gradients_if_the_caller_did());
    watch_.take_gradients_away();
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [link = link_, runs = std::move(runs)] {
        link->with_uses([&](UnitUses& uses) {
          if (!uses.has_failed(*runs)) uses.raise(uses.end_task(*runs));
        });
      });
}

Result<void> UnitUses::hold_all(const std::shared_ptr<Use>& use) {
  for (const std::uint32_t access : use->accesses) ARTESIAN_TRY_VOID(hold(access));
  use->holds = true;
  open_.push_back(use);
  return {};
}

Result<void> UnitUses::open(const std::shared_ptr<Use>& opened, int task) {
  Use& use = *opened;
  follow_task(task);
  ARTESIAN_TRY_VOID(read_words());
  if (!use.holds) ARTESIAN_TRY_VOID(hold_all(opened));
  // A checkpoint's task, in the middle of this one.
  if (use.inner.open) use.around.push_back(std::move(use.inner));
  use.inner = {.task = task, .open = true};
  for (const Use::Ender& ender : use.enders) {
    const std::shared_ptr<Node> node = ender.node.lock();
    if (node == nullptr || !runs_in_current_task(node.get())) continue;
    ++use.inner.left;
    for (const std::uint32_t parameter : ender.parameters) ++use.sum_of(parameter).left;
  }
  return {};
}

/// Called when one of the nodes that the use waits for has run.
Result<void> UnitUses::strike(Use& use) {
  ARTESIAN_CHECK(use.inner.open && use.inner.left > 0, use.inner.left);
  if (--use.inner.left > 0) return {};
  return close(use);
}

/// Closes the use in the task that opened it last; it keeps its stages if it is still open in an
/// outer task.
Result<void> UnitUses::close(Use& use) {
  use.inner.open = false;
  const bool added = !use.inner.sums.empty();
  for (Use::Sum& sum : use.inner.sums) {
    const at::Tensor rest = std::exchange(sum.held, {}).gradient;  // for readers that never ran
    if (rest.defined()) ARTESIAN_TRY_VOID(add(sum.parameter, rest));
  }
  use.inner.sums.clear();
  if (!use.around.empty()) {
    use.inner = std::move(use.around.back());
    use.around.pop_back();
    return {};
  }
  use.holds = false;
  std::erase_if(open_, [&](const std::weak_ptr<Use>& other) {
    const std::shared_ptr<Use> alive = other.lock();
    return alive == nullptr || alive.get() == &use;
  });
  ARTESIAN_TRY_VOID(release_all(use.accesses));
  use.came_by();
  ARTESIAN_TRY_VOID(send_gradients(use));
  if (!added) return {};
  complete_units(use);
  return core_.remember(core_.stage_accumulated(use.stages.front()));
}

/// Called when autograd has finished a graph task without failure.
Result<void> UnitUses::end_task(int task) {
  const bool outermost = tasks_.size() == 1;
  const auto open = open_;
  for (const std::weak_ptr<Use>& weak : open) {
    const std::shared_ptr<Use> use = weak.lock();
    if (use == nullptr || !use->holds) continue;
    const Use::Opened& inner = use->inner;
    if (inner.task != task && !(outermost && inner.task == no_task)) continue;
    late_ += inner.open && inner.left > 0 ? 1 : 0;
    ARTESIAN_TRY_VOID(close(*use));
  }
  std::erase_if(tasks_, [task](const Task& ended) { return ended.number == task; });
  if (outermost) {
    ARTESIAN_TRY_VOID(add_held());
    ++backwards_;
    watch_.place_gradients(added_);
  }
  return read_words();
}

/// After a failure: drops all open uses.
Result<void> UnitUses::release_open() {
  held_.clear();
  // One of their nodes may still run on another thread: its hooks must not do anything any more.
  for (const Task& task : tasks_) failed_through_ = std::max(failed_through_, task.number);
  tasks_.clear();
  for (const std::weak_ptr<Use>& weak : std::exchange(open_, {})) {
    const std::shared_ptr<Use> use = weak.lock();
    if (use == nullptr || !use->holds) continue;
    use->holds = use->inner.open = false;
    use->inner.sums.clear();
    use->around.clear();
    ARTESIAN_TRY_VOID(release_all(use->accesses));
  }
  return read_words();
}

Result<void> UnitUses::begin_backward(double loss) {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(read_words());
  if (damaged_) return settle();
  ARTESIAN_TRY_VOID(drop_gradients_if_the_caller_did());
  watch_.take_gradients_away();
  loss_ = loss;
  return ready_for_gradients();
}

Result<void> UnitUses::scales_by_itself(double loss) {
  const auto held_alone = alone();
  scaled_loss_ = loss;
  return {};
}

Result<void> UnitUses::backward_ended(bool failed) {
  const auto held_alone = alone();
  loss_.reset();
  if (!failed) return {};
  damaged_ = true;
  core_.break_pass();
  ARTESIAN_TRY_VOID(release_open());
  ARTESIAN_TRY_VOID(unwind_calls(/*of_all_threads=*/true));
  if (!error_.has_value()) return {};
  return *std::exchange(error_, std::nullopt);
}

void UnitUses::let_go() {
  const std::lock_guard held(link_->mutex);
  static_cast<void>(release_open().has_value());
  static_cast<void>(unwind_calls(/*of_all_threads=*/true).has_value());
}

/// Module.zero_grad() removes all gradients that it finds, so the step's gradients are dropped,
/// too.
Result<void> UnitUses::drop_gradients_if_the_caller_did() {
  ARTESIAN_TRY(dropped, watch_.gradients_dropped(added_));
  return dropped ? zero_gradients() : Result<void>();
}

Result<void> UnitUses::end_passes() {
  ARTESIAN_TRY_VOID(check_no_backward_elsewhere());
  ARTESIAN_TRY_VOID(unwind_calls(/*of_all_threads=*/false));
  if (!stacks_.empty()) {
    return make_error(ErrorCode::Invalid,
                      "a call of the model on another thread has not ended; wait for it, or, if it "
                      "was broken off, call zero_grad()");
  }
  ARTESIAN_TRY_VOID(read_words());
  ARTESIAN_TRY_VOID(check_whole());
  return close_forward_and_backward();
}

Result<void> UnitUses::settle() {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(end_passes());
  return core_.take_update_back();
}

Result<void> UnitUses::leave_step() {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(settle());
  const bool forgotten =
      core_.state_of_step() == StepState::AwaitsBackward && core_.micro_batches() == 0;
  return forgotten ? core_.abandon_step() : Result<void>();
}

/// Checks that nothing was interrupted.
Result<void> UnitUses::check_whole() {
  ARTESIAN_TRY_VOID(check_no_backward_elsewhere());
  if (!tasks_.empty() && current_task() == no_task) {  // a backward that was not announced
    damaged_ = true;
    core_.break_pass();
    ARTESIAN_TRY_VOID(release_open());
  }
  if (!damaged_) return {};
  return make_error(ErrorCode::Invalid,
                    "the step is damaged: a pass broke off in its middle, and gradients are there "
                    "in part; call zero_grad(), which drops them, and go on");
}

Result<StepResult> UnitUses::step(const StepRequest& request) {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(end_passes());
  ARTESIAN_TRY_VOID(watch_.check());
  ARTESIAN_TRY_VOID(drop_gradients_if_the_caller_did());
  if (watch_.lends()) {
    return make_error(ErrorCode::Invalid,
                      "step(): out of order: parameters are gathered by zero.GatheredParameters; "
                      "leave that first");
  }
  if (core_.state_of_step() == StepState::AwaitsBackward) {  // a forward whose loss got no backward
    ARTESIAN_TRY_VOID(core_.begin_backward({.last = false}));
    ARTESIAN_TRY_VOID(close_backward());
  }
  ARTESIAN_TRY_VOID(core_.check(StepCall::FinishUpdate, "step"));
  if (core_.micro_batches() == 0) {
    return make_error(ErrorCode::Invalid,
                      "step(): out of order: there are no gradients since the last step; call "
                      "backward() first");
  }
  StepRequest all = request;
  if (all.micro_batches == 0) all.micro_batches = core_.micro_batches();
  ARTESIAN_TRY(result, core_.step(all));
  watch_.take_gradients_away();
  added_.assign(added_.size(), false);
  backwards_before_ = std::exchange(backwards_, 0);
  scaled_loss_.reset();
  if (result.overflow) return result;
  tensors_.bump_versions();
  // The caller may read persistent parameters from now on; with several ranks all are here
  // together.
  ARTESIAN_TRY_VOID(core_.update_persistent());
  bind_persistent();
  return result;
}

Result<void> UnitUses::zero_gradients() {
  const auto held_alone = alone();
  ARTESIAN_TRY_VOID(check_no_backward_elsewhere());
  ARTESIAN_TRY_VOID(unwind_calls(/*of_all_threads=*/true));
  ARTESIAN_TRY_VOID(read_words());
  watch_.take_gradients_away();
  const bool whole = check_whole().has_value();
  const bool some = std::find(added_.begin(), added_.end(), true) != added_.end() ||
                    core_.is_awaited() || (core_.ranks() > 1 && core_.micro_batches() > 0);
  if (whole && !some) return {};
  ARTESIAN_TRY_VOID(core_.abandon_step());
  damaged_ = false;
  backwards_ = 0;
  added_.assign(added_.size(), false);
  error_.reset();
  return {};
}

}  // namespace artesian::zero3
