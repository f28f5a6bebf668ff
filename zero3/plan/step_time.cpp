#include "zero3/plan/step_time.h"

#include <algorithm>
#include <list>
#include <span>
#include <utility>

#include "base/check.h"
#include "tiering/ring_order.h"
#include "zero3/flow/ring_need.h"
#include "zero3/flow/update_order.h"

namespace artesian::zero3 {

using tiering::RingNeed;
using tiering::RingTask;
using tiering::Route;
using tiering::Tier;
using Kind = StepEvent::Kind;
using Task = Schedule::Task;

namespace {

constexpr std::uint64_t sub_groups_max = 4096;  // of one step: beyond, several count as one
constexpr int steps = 4;
constexpr int operators = 16;  // of a stage, between which the update may go on

class Simulation {
 public:
  explicit Simulation(const StepTimeRequest& request)
      : request_(request),
        plan_(*request.placement),
        rates_(request.rates),
        separate_(plan_.separate_device),
        schedule_(request.rates.disk),
        fetched_(plan_.layout.units.size(), Schedule::none),
        put_(plan_.layout.stages.size(), Schedule::none),
        grad_written_(plan_.layout.units.size(), Schedule::none),
        grad_items_(std::max(plan_.ring_count, 1u), Schedule::none),
        reduced_(plan_.layout.units.size(), Schedule::none),
        gathered_(plan_.layout.units.size(), Schedule::none),
        order_(plan_),
        updates_(plan_.layout.units.size()),
        items_(*this),
        ring_(items_) {
    const std::size_t stages = plan_.layout.stages.size();
    ARTESIAN_CHECK(request_.stages.forward.size() == stages, request_.stages.forward.size());
    ARTESIAN_CHECK(request_.stages.backward.size() == stages, request_.stages.backward.size());
    std::uint64_t count = 0;
    for (std::uint32_t unit = 0; unit < plan_.layout.units.size(); ++unit) {
      count += plan_.sub_group_count(unit);
    }
    grain_ = count / sub_groups_max + 1;
    for (const StepEvent& event : request_.plan->events) {
      if (event.kind == Kind::Update) updates_[event.unit] = update_of(event);
    }
  }

  StepTime run() {
    for (int step = 0; step < steps; ++step) {
      begin_ = schedule_.finish(barrier_);
      time_.spans.clear();
      time_.model_seconds = 0.0;
      time_.busy = {};
      if (step != 0) begin_updates_left();
      one_step();
      ARTESIAN_CHECK(end_of_step_ >= begin_, end_of_step_, begin_);
      time_.seconds = end_of_step_ - begin_;
    }
    for (StepSpan& span : time_.spans) {
      span.begin -= begin_;
      span.end -= begin_;
    }
    // A resource cannot do a step's work in less, whatever the steps before have left it.
    const double disk = std::max(busy(Resource::DiskRead) + busy(Resource::DiskWrite),
                                 busy(Resource::ParamRead) + busy(Resource::ParamWrite));
    if (rates_.disk == Disk::Shared) time_.seconds = std::max(time_.seconds, disk);
    for (const double seconds : time_.busy) time_.seconds = std::max(time_.seconds, seconds);
    return std::move(time_);
  }

 private:
  double busy(Resource resource) const { return time_.busy[static_cast<std::size_t>(resource)]; }

  static double seconds_for(std::uint64_t bytes, double rate) {
    if (bytes == 0) return 0.0;
    ARTESIAN_CHECK(rate > 0.0, bytes);
    return static_cast<double>(bytes) / rate;
  }
  double memory_seconds(std::uint64_t bytes) const { return seconds_for(bytes, rates_.memory); }
  double checksum_seconds(std::uint64_t bytes) const {
    return rates_.checksum > 0.0 ? seconds_for(bytes, rates_.checksum) : 0.0;
  }

  /// Nothing is queued for nothing: then it is done when what it waits for is.
  Task add(Kind kind, Resource resource, double seconds, std::initializer_list<Task> after) {
    if (seconds == 0.0) return schedule_.join(after);
    const Task task = schedule_.add(resource, seconds, after);
    time_.busy[static_cast<std::size_t>(resource)] += seconds;
    const double begin = schedule_.start(task);
    auto& spans = time_.spans;
    const bool joins = !spans.empty() && spans.back().resource == resource &&
                       spans.back().kind == kind && spans.back().end == begin;
    if (joins) {
      spans.back().end = schedule_.finish(task);
    } else {
      spans.push_back({resource, kind, begin, schedule_.finish(task)});
    }
    return task;
  }

  /// On the disk of parameters, spilled gradients and kept inputs. `count`: it is one of so many
  /// parts.
  Task read_param(Kind kind, std::uint64_t bytes, std::initializer_list<Task> after,
                  std::uint64_t count = 1) {
    const double rate = rates_.param_read > 0.0 ? rates_.param_read : rates_.disk_read;
    return add(kind, rates_.param_apart ? Resource::ParamRead : Resource::DiskRead,
               seconds_for(bytes, rate) / static_cast<double>(count), after);
  }
  Task write_param(Kind kind, std::uint64_t bytes, std::initializer_list<Task> after,
                   std::uint64_t count = 1) {
    const double rate = rates_.param_write > 0.0 ? rates_.param_write : rates_.disk_write;
    return add(kind, rates_.param_apart ? Resource::ParamWrite : Resource::DiskWrite,
               seconds_for(bytes, rate) / static_cast<double>(count), after);
  }
  bool two_places() const { return rates_.param_read > 0.0 || rates_.param_write > 0.0; }

  Resource worker() const { return separate_ ? Resource::Host : Resource::Compute; }

  void one_step() {
    last_backward_ = false;
    norm_begun_ = false;
    const auto& events = request_.plan->events;
    const std::size_t last_backward = begin_of_last_backward();
    for (std::size_t index = 0; index < events.size(); ++index) {
      if (index == last_backward) {
        finish_update();
        begin_updates_ahead();
      }
      see(events[index]);
    }
    items_.lend(0);  // soon forward needs all memory
    while (order_.updated().size() < order_.ahead().size()) update_next();
    gather_below(static_cast<std::uint32_t>(gathered_.size()));
    barrier_ = computed_ = worked_ = schedule_.join({computed_, worked_});
    end_of_step_ = schedule_.finish(barrier_);
  }

  std::size_t begin_of_last_backward() const {
    const auto& events = request_.plan->events;
    for (std::size_t index = events.size(); index-- > 0;) {
      const StepEvent& event = events[index];
      const bool last_stage = event.stage + 1 == plan_.layout.stages.size();
      const bool computes = event.kind == Kind::Compute && event.direction == Direction::Backward;
      if (computes && last_stage) return index;
    }
    return events.size();
  }

  void see(const StepEvent& event) {
    switch (event.kind) {
      case Kind::Fetch: return fetch(event);
      case Kind::Await: return await(event);
      case Kind::Compute: return compute(event);
      case Kind::Input: return input(event);
      case Kind::Gradients:
      case Kind::Rows:
      case Kind::Zero:
      case Kind::Norm: return gradients(event);
      case Kind::Update: return update(event);
    }
  }

  void fetch(const StepEvent& event) {
    gather_below(event.unit);
    const Moved& moved = event.moved.param;
    Task task = read_param(event.kind, moved.nvme_read, {computed_, barrier_});
    if (separate_) {
      task = add(event.kind, Resource::ToDevice, seconds_for(moved.to_device, rates_.to_device),
                 {task});
    }
    fetched_[event.unit] =
        add(event.kind, Resource::Bus, seconds_for(moved.bus, rates_.bus), {task});
  }

  /// On a CPU the team verifies and expands what has come.
  void await(const StepEvent& event) {
    const UnitPlacement& place = plan_.units[event.unit];
    const std::uint64_t image = plan_.layout.units[event.unit].image;
    double seconds = 0.0;
    if (!separate_) {
      if (event.moved.param.to_device != 0) {
        seconds += memory_seconds(event.moved.param.to_device + image * dtype_size(place.computed));
      }
      if (place.param == Tier::Nvme) {
        seconds += checksum_seconds(image * dtype_size(plan_.param_dtype));
      }
    }
    computed_ = add(event.kind, Resource::Compute, seconds, {computed_, fetched_[event.unit]});
  }

  void compute(const StepEvent& event) {
    const auto& by_stage =
        event.direction == Direction::Forward ? request_.stages.forward : request_.stages.backward;
    const double seconds = by_stage[event.stage] * static_cast<double>(event.micro_batches);
    time_.model_seconds += seconds;
    if (event.direction == Direction::Backward && !last_backward_) finish_update();
    if (event.direction == Direction::Forward) keeps_below_ = event.updated_ahead;
    for (const std::uint32_t unit : plan_.layout.stages[event.stage]) {
      computed_ = schedule_.join({computed_, gathered_[unit]});
    }
    const bool lends = last_backward_ && items_.may_borrow();
    const int parts = (may_update_next() || lends) && !separate_ ? operators : 1;
    for (int part = 0; part < parts; ++part) {
      computed_ = add(event.kind, Resource::Compute, seconds / parts, {computed_, barrier_});
      update_ahead();
    }
    if (last_backward_ && !separate_) items_.lend(items_left_by(event.stage));
  }

  /// Items that fit in the half of what activations have left, once that stage's backward is done:
  /// they are as if all stages kept the same.
  std::uint64_t items_left_by(std::size_t stage) const {
    const std::uint64_t stages = plan_.layout.stages.size();
    const std::uint64_t left = request_.activation_bytes / stages * (stages - stage);
    return plan_.ring_item_bytes == 0 ? 0 : left / 2 / (plan_.ring_item_bytes * grain_);
  }

  /// Inputs go to their tier behind what computes, and come while the stage before computes.
  void input(const StepEvent& event) {
    const Moved& moved = event.moved.input;
    const std::uint64_t bytes = moved.to_host + moved.to_device;
    const double work = (separate_ ? 0.0 : memory_seconds(2 * bytes)) +
                        checksum_seconds(moved.nvme_read + moved.nvme_write);
    if (event.direction == Direction::Forward) {
      Task task = computed_;
      if (separate_) {
        task = add(event.kind, Resource::ToHost, seconds_for(bytes, rates_.to_host), {task});
      }
      task = add(event.kind, worker(), work, {task});
      if (!separate_) computed_ = task;
      put_[event.stage] = write_param(event.kind, moved.nvme_write, {task});
      return;
    }
    Task task = read_param(event.kind, moved.nvme_read, {put_[event.stage], taken_});
    taken_ = computed_;
    task = add(event.kind, worker(), work, {task, separate_ ? Schedule::none : computed_});
    if (separate_) {
      task = add(event.kind, Resource::ToDevice, seconds_for(bytes, rates_.to_device), {task});
    }
    computed_ = schedule_.join({computed_, task});
  }

  bool may_update_next() const {
    return order_.may_update_next([this](std::uint32_t unit) { return unit < keeps_below_; });
  }

  /// Updates what has been read, and of all ranks, by now; and reads on.
  void update_ahead() {
    const auto may = [this] { return may_update_next() && is_past(reduced_[order_.next()]); };
    expect(zero3::update_ahead(order_, ring_, may, [](std::uint32_t) { return Result<void>(); }));
  }

  /// All sub-groups of the next unit that are left.
  void update_next() {
    expect(ring_.advance_past(order_.next()));
    order_.update_next();
  }

  static void expect(const Result<void>& outcome) { ARTESIAN_CHECK(outcome.has_value()); }

  /// True if it is done when the thread that runs the step gets here.
  bool is_past(Task task) const {
    double now = schedule_.finish(computed_);
    if (!separate_) now = std::max(now, schedule_.finish(worked_));
    return schedule_.finish(task) <= now;
  }

  /// The host waits for its writes before new gradients come.
  void finish_update() {
    (separate_ ? worked_ : computed_) = schedule_.join({computed_, worked_, written_});
    written_ = Schedule::none;
  }

  /// Returns the bytes that the kernels read and write: each micro-batch's gradient, on a CPU made
  /// fp32 before where it is not, from a device rounded there; and what it is added to, which the
  /// first of a step only writes.
  std::uint64_t gradient_bytes(const StepEvent& event) const {
    const std::uint64_t size = dtype_size(plan_.grad_dtype);
    const std::uint64_t computed = dtype_size(plan_.compute_dtype);
    const bool comes = plan_.units[event.unit].gradient == Route::Queues;
    const std::uint64_t added = comes ? dtype_size(plan_.param_dtype) : 4;
    const std::uint64_t cast = !separate_ && computed != 4 ? computed + 4 : 0;
    const std::uint64_t each = cast + added + 2 * size;
    const std::uint64_t unread = event.sets ? size : 0;
    return event.numel * (additions(event) * each - unread) / plan_.ranks;
  }

  std::uint64_t additions(const StepEvent& event) const {
    return plan_.additions(event.unit, event.micro_batches, event.sets);
  }

  /// A separate device adds what it sums before: it reads two and writes one.
  void sum_on_device(const StepEvent& event) {
    const std::uint64_t sums = event.micro_batches - additions(event);
    const std::uint64_t bytes = sums * event.numel * 3 * dtype_size(plan_.grad_dtype);
    computed_ =
        add(event.kind, Resource::Compute, seconds_for(bytes, rates_.device_memory), {computed_});
  }

  /// Over the bus, to the host where it is apart, then the kernels; where
  /// they spill, in the ring. Who computes does not wait for the bus: its kernels count at once,
  /// though they add what comes later.
  void gradients(const StepEvent& event) {
    const Moved& moved = event.moved.grad;
    if (event.kind == Kind::Norm && !norm_begun_) begin_norm();
    const bool on_device = plan_.units[event.unit].gradient == Route::OnDevice;
    if (event.kind == Kind::Gradients) sum_on_device(event);
    const std::uint64_t bytes =
        event.kind == Kind::Norm ? plan_.grad_bytes(event.unit) : gradient_bytes(event);
    const Task reduced =
        add(event.kind, Resource::Bus, seconds_for(moved.bus, rates_.bus), {computed_});
    reduced_[event.unit] = schedule_.join({reduced_[event.unit], reduced});
    if (event.kind == Kind::Rows) computed_ = reduced;  // nothing is left to go on with
    if (on_device) {
      computed_ =
          add(event.kind, Resource::Compute, seconds_for(bytes, rates_.device_memory), {computed_});
      return;
    }
    Task task = computed_;
    if (separate_) {
      task =
          add(event.kind, Resource::ToHost, seconds_for(moved.to_host, rates_.to_host), {reduced});
    }
    if (moved.nvme_read + moved.nvme_write > 0) {
      stream_gradients(event, task, bytes);
    } else {
      worked_ = add(event.kind, worker(), memory_seconds(bytes), {task, worked_});
    }
    if (!separate_) computed_ = worked_;
  }

  /// The host waits until all gradients are written, and whoever sums them until they are of all
  /// ranks.
  void begin_norm() {
    for (const Task reduced : reduced_) computed_ = schedule_.join({computed_, reduced});
    Task begin = schedule_.join({computed_, separate_ ? worked_ : Schedule::none});
    for (const Task item : grad_items_) begin = schedule_.join({begin, item});
    (separate_ ? worked_ : computed_) = begin;
    norm_begun_ = true;
  }

  /// Sub-groups are read ahead as far as there are items, and written behind; a unit is not read
  /// before it is written.
  void stream_gradients(const StepEvent& event, Task given, std::uint64_t touched) {
    const Moved& moved = event.moved.grad;
    const std::size_t depth = grad_items_.size();
    const std::uint64_t count = (plan_.sub_group_count(event.unit) + grain_ - 1) / grain_;
    ARTESIAN_CHECK(count != 0, event.unit);
    const auto part = [&](double seconds) { return seconds / static_cast<double>(count); };
    const double work =
        part(memory_seconds(touched) + checksum_seconds(moved.nvme_read + moved.nvme_write));
    given = schedule_.join({given, worked_, grad_written_[event.unit]});
    std::vector<Task> reads;
    for (std::uint64_t index = 0; index < count; ++index) {
      for (; reads.size() < std::min<std::uint64_t>(count, index + depth);) {
        const Task free = grad_items_[(grad_turn_ + reads.size() - index) % depth];
        reads.push_back(read_param(event.kind, moved.nvme_read, {given, free}, count));
      }
      worked_ = add(event.kind, worker(), work, {reads[index], worked_});
      grad_items_[grad_turn_++ % depth] =
          write_param(event.kind, moved.nvme_write, {worked_}, count);
    }
    grad_written_[event.unit] = grad_items_[(grad_turn_ - 1) % depth];
  }

  /// Returns the bytes that the kernels read and write: the state, in place; the gradient; the
  /// parameter, fresh and where it is needed old.
  std::uint64_t update_bytes(std::uint32_t unit) const {
    const std::uint64_t param = plan_.update_reads_param(unit) ? 2 : 1;
    return elements(unit) * (2 * plan_.state_size(unit) + dtype_size(plan_.grad_dtype) +
                             param * dtype_size(plan_.param_dtype));
  }

  std::uint64_t elements(std::uint32_t unit) const { return plan_.layout.units[unit].share; }

  /// The unit's slot, if it has one, has its parameters when they are copied or cast.
  void update(const StepEvent& event) {
    if (event.under_backward) {
      order_.gradient_is_final(event.unit);
      update_ahead();
    } else if (plan_.units[event.unit].updated_on_device()) {
      computed_ = add(event.kind, Resource::Compute,
                      seconds_for(update_bytes(event.unit), rates_.device_memory), {computed_});
      const double seconds = seconds_for(event.moved.param.bus, rates_.bus);
      to_gather_.push_back({.unit = event.unit, .seconds = seconds, .updated = computed_});
    } else {
      while (order_.demands(event.unit)) update_next();
    }
  }

  struct Gather {  // of what the other ranks have made anew of a unit, or of a part of it
    std::uint32_t unit = 0;
    double seconds = 0.0;
    Task updated = Schedule::none;  // this rank's share
  };
  /// Stages that use the unit wait for it.
  void gather(const Gather& fresh) {
    gathered_[fresh.unit] = add(Kind::Update, Resource::Bus, fresh.seconds, {fresh.updated});
  }
  /// Gathers units before one that is fetched: what a step's end has updated comes in the order in
  /// which the next one uses it, and so does what is fetched ahead for that.
  void gather_below(std::uint32_t unit) {
    const auto end = std::find_if(to_gather_.begin(), to_gather_.end(),
                                  [unit](const Gather& fresh) { return fresh.unit >= unit; });
    std::for_each(to_gather_.begin(), end, [this](const Gather& fresh) { gather(fresh); });
    to_gather_.erase(to_gather_.begin(), end);
  }

  struct UnitUpdate {
    Moved moved;                // of the whole unit, as are
    Moved state;                // what of it is the optimizer's, and the
    std::uint64_t touched = 0;  // bytes, by the kernels
    std::uint64_t count = 1;    // tasks that share them
    std::uint64_t reads = 0;    // of these: that share what is read
    std::uint64_t items = 0;    // and that have an item of the ring, and share what is written
  };
  UnitUpdate update_of(const StepEvent& event) const {
    const UnitPlacement& place = plan_.units[event.unit];
    const std::uint64_t slot = elements(event.unit) * dtype_size(place.computed);
    const bool fills = place.gather == Route::Memory || place.gather == Route::Disk;
    UnitUpdate update{.moved = event.moved.total(),
                      .state = event.moved.optimizer,
                      .touched = update_bytes(event.unit) + (fills ? slot : 0),
                      .count = (plan_.sub_group_count(event.unit) + grain_ - 1) / grain_};
    for (std::uint64_t index = 0; index < update.count; ++index) {
      const RingNeed need = need_of({event.unit, index});
      update.reads += need == RingNeed::ToRead ? 1 : 0;
      update.items += need != RingNeed::Nothing ? 1 : 0;
    }
    return update;
  }

  /// Of `grain_` sub-groups that count as one, what any of them needs.
  RingNeed need_of(const RingTask& task) const {
    const std::uint64_t first = task.index * grain_;
    const std::uint64_t end = std::min(first + grain_, plan_.sub_group_count(task.unit));
    RingNeed need = RingNeed::Nothing;
    for (std::uint64_t index = first; index < end; ++index) {
      need = std::max(need, ring_need(plan_, {task.unit, index}, update_pass));
    }
    return need;
  }

  /// The staging ring as times: an item is when its last transfer ends. Reads start as soon as the
  /// disk has written what their item had, as if the engine looked at any time.
  class RingTimes {
   public:
    struct Item {
      Task done = Schedule::none;
      bool lent = false;
    };
    explicit RingTimes(Simulation& simulation)
        : simulation_(simulation), own_(std::max(simulation.plan_.ring_count, 1u)) {}
    std::uint32_t count() const { return static_cast<std::uint32_t>(own_.size()); }
    Item& own(std::uint32_t index) { return own_[index]; }
    static bool borrowed(const Item& item) { return item.lent; }
    static bool is_free(const Item&) { return true; }
    bool is_idle(const Item& item) const { return simulation_.is_past(item.done); }
    static Result<void> finish(const Item&) { return {}; }
    bool may_borrow() const { return lent_.size() < lendable_; }
    Item* borrow() { return &lent_.emplace_back(Item{.lent = true}); }
    void give_back(const Item& item) {
      const auto place = std::find_if(lent_.begin(), lent_.end(),
                                      [&](const Item& each) { return &each == &item; });
      ARTESIAN_CHECK(place != lent_.end());
      lent_.erase(place);
    }
    bool computes_elsewhere() const { return simulation_.separate_; }
    static bool writes() { return true; }
    RingNeed need(const RingTask& task) const { return simulation_.need_of(task); }
    Result<void> read(const RingTask& task, Item& item) {
      simulation_.read_item(task, item.done);
      return {};
    }
    Result<void> work(std::size_t, const RingTask& task, Item* item) {
      Task in_place = Schedule::none;
      simulation_.work_on(task, item != nullptr ? item->done : in_place);
      return {};
    }
    static std::size_t together_max() { return 1; }
    static Result<void> work_together(std::size_t, std::span<const RingTask>) { return {}; }

    /// So many items may be borrowed at once from here on.
    void lend(std::uint64_t items) { lendable_ = items; }

   private:
    Simulation& simulation_;
    std::vector<Item> own_;
    std::list<Item> lent_;
    std::uint64_t lendable_ = 0;
  };

  /// All of the update that the step before has left: read from this step's begin on, or since that
  /// one's last backward.
  void begin_updates_left() {
    if (!order_.begin_deferred()) begin_pass(barrier_);
    if (separate_) return;
    keeps_below_ = first_kept();
    ring_.allow_out_of_turn([this](std::uint32_t unit) { return unit < keeps_below_; });
  }

  /// As far as the first forward of a step may update ahead.
  std::uint32_t first_kept() const {
    for (const StepEvent& event : request_.plan->events) {
      if (event.kind == Kind::Compute) return event.updated_ahead;
    }
    return 0;
  }

  /// Begins what is updated under the last backward, read from its begin on, and what is read
  /// behind it.
  void begin_updates_ahead() {
    if (order_.phase() == UpdatePhase::Deferred) order_.finish();  // forward did the rest
    std::vector<std::uint32_t> units;
    for (const StepEvent& event : request_.plan->events) {
      if (event.kind == Kind::Update && event.under_backward) units.push_back(event.unit);
    }
    order_.begin_ahead(std::move(units), /*tried=*/false);
    begin_pass(schedule_.join({barrier_, computed_}));
    last_backward_ = true;
  }

  void begin_pass(Task not_before) {
    std::vector<RingTask> tasks;
    for (const std::uint32_t unit : order_.pass()) {
      for (std::uint64_t index = 0; index < updates_[unit].count; ++index) {
        tasks.push_back({unit, index});
      }
    }
    not_before_ = not_before;
    expect(ring_.begin(tasks));
  }

  /// `done`: of the item, before and after.
  void read_item(const RingTask& task, Task& done) {
    const UnitUpdate& update = updates_[task.unit];
    const Task before = schedule_.join({not_before_, done});
    const auto part = [&](double seconds) { return seconds / static_cast<double>(update.reads); };
    const std::uint64_t bytes = two_places() ? update.state.nvme_read : update.moved.nvme_read;
    done =
        add(Kind::Update, Resource::DiskRead, part(seconds_for(bytes, rates_.disk_read)), {before});
    if (two_places()) {
      const Task rest =
          read_param(Kind::Update, update.moved.nvme_read - bytes, {before}, update.reads);
      done = schedule_.join({done, rest});
    }
    if (!separate_) return;
    done = add(Kind::Update, Resource::ToHost,
               part(seconds_for(update.moved.to_host, rates_.to_host)), {done});
  }

  /// `done`: of what the task has read, and then of what it writes.
  void work_on(const RingTask& task, Task& done) {
    const UnitUpdate& update = updates_[task.unit];
    const bool has_item = need_of(task) != RingNeed::Nothing;
    const auto part = [&](double seconds) { return seconds / static_cast<double>(update.count); };
    const auto of_items = [&](double seconds) {
      return has_item ? seconds / static_cast<double>(update.items) : 0.0;
    };
    const double work =
        part(memory_seconds(update.touched)) +
        of_items(checksum_seconds(update.moved.nvme_read + update.moved.nvme_write));
    const Task before = separate_ ? worked_ : schedule_.join({worked_, computed_});
    worked_ = add(Kind::Update, worker(), work, {done, reduced_[task.unit], before});
    Task updated = worked_;
    const std::uint64_t bytes = two_places() ? update.state.nvme_write : update.moved.nvme_write;
    done = add(Kind::Update, Resource::DiskWrite, of_items(seconds_for(bytes, rates_.disk_write)),
               {worked_});
    if (two_places() && has_item) {
      const Task rest =
          write_param(Kind::Update, update.moved.nvme_write - bytes, {worked_}, update.items);
      done = schedule_.join({done, rest});
    }
    if (separate_) {
      updated = add(Kind::Update, Resource::ToDevice,
                    part(seconds_for(update.moved.to_device, rates_.to_device)), {worked_});
      done = schedule_.join({done, updated});
    }
    // A stage of forward waits for its update; backward does not, where others make it.
    if (!separate_ || !last_backward_) computed_ = schedule_.join({computed_, updated});
    gather({.unit = task.unit,
            .seconds = part(seconds_for(update.moved.bus, rates_.bus)),
            .updated = updated});
    written_ = schedule_.join({written_, done});
  }

  const StepTimeRequest& request_;
  const Placement& plan_;
  const Rates& rates_;
  const bool separate_;
  Schedule schedule_;
  std::vector<Task> fetched_;       // by unit
  std::vector<Task> put_;           // by stage: its inputs are in their tier
  Task taken_ = Schedule::none;     // before the inputs that were taken last were waited for
  std::vector<Task> grad_written_;  // by unit: its spilled gradients are on the disk
  std::vector<Task> grad_items_;    // of the ring: what such gradients left in them is written
  std::vector<Task> reduced_;       // by unit: its gradients are those of all ranks
  std::vector<Task> gathered_;      // by unit: its parameters are as all ranks updated them
  std::vector<Gather> to_gather_;   // of what was updated when a step ended, by unit
  bool norm_begun_ = false;         // of this step
  std::size_t grad_turn_ = 0;       // of these: taken so far
  UpdateOrder order_;
  std::vector<UnitUpdate> updates_;  // by unit
  RingTimes items_;
  tiering::RingOrder<RingTimes> ring_;  // of the optimizer's pass
  std::uint32_t keeps_below_ = 0;       // slots of units below are there to be filled, and stay
  std::uint64_t grain_ = 1;             // sub-groups that count as one
  bool last_backward_ = false;          // it has begun
  Task not_before_ = Schedule::none;    // the update's reads
  Task computed_ = Schedule::none;
  Task worked_ = Schedule::none;   // by the host's CPU
  Task written_ = Schedule::none;  // the optimizer's writes
  Task barrier_ = Schedule::none;  // the end of the last step
  double begin_ = 0.0;
  double end_of_step_ = 0.0;
  StepTime time_;
};

}  // namespace

StepTime simulate_step(const StepTimeRequest& request) {
  return Simulation(request).run();
}

}  // namespace artesian::zero3
