#include "zero3/step/sub_group_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t together_max = 16;  // sub-groups: of the largest, 4 Mi elements

}  // namespace

Overlap overlap(const ParameterPlace& place, const SubGroup& group) noexcept {
  const std::uint64_t begin = std::max(place.first, group.image_first);
  const std::uint64_t end = std::min(place.first + place.numel, group.image_first + group.count);
  if (begin >= end) return {};
  return {begin - place.first, begin - group.image_first, end - begin};
}

using tiering::Route;
using tiering::ShardId;
using tiering::StagingItem;

// An item's bytes: [record of the optimizer state][parameter][gradient], each as long as for a
// whole sub-group, so that offsets do not depend on the task. What a parameter was is where the
// gradient would be, which is in memory then.
std::uint64_t SubGroupStream::param_offset() const noexcept {
  return state_.placement().sub_group * state_.placement().state_size_max();
}

std::uint64_t SubGroupStream::grad_offset() const noexcept {
  return param_offset() + state_.placement().sub_group * dtype_size(state_.placement().param_dtype);
}

/// Blocks of a record, each of one array.
std::uint64_t SubGroupStream::record_blocks(std::uint32_t unit) const noexcept {
  return state_.placement().units[unit].master == Master::Parameter ? 2 : 3;
}

/// Between the shard's home and the host, which works on it.
Route SubGroupStream::route(ShardId id) const noexcept {
  return state_.placement().host_route(state_.store().shard(id).home);
}

SubGroupStream::Item SubGroupStream::item_for(const Task& task) const noexcept {
  const auto passes = [&](ShardId id) { return route(id) != Route::InPlace; };
  const bool record = !frozen(task.unit) && passes(state_.optimizer(task.unit, task.index));
  const bool param = passes(state_.param(task.unit));
  if (options_.restore_param) return record || param ? Item::ToRead : Item::Never;
  const bool reads_state = options_.read_state && (record || (param && state_has_param(task.unit)));
  const bool reads_grad = options_.read_grad && passes(state_.grad(task.unit));
  if (reads_state || reads_grad) return Item::ToRead;
  const bool writes = options_.write_grad || (options_.write_state && (record || param));
  return writes ? Item::ToWrite : Item::Never;
}

/// The place of the free item from which the sub-group was last written, if any: it is neither read
/// nor written again before that is done.
std::size_t SubGroupStream::writer_of(const Task& task) const noexcept {
  const auto writer = std::find_if(free_items_.begin(), free_items_.end(),
                                   [&](const FreeItem& free) { return free.wrote == task; });
  return static_cast<std::size_t>(writer - free_items_.begin());
}

/// The place of the first free item that is idle, if any.
std::size_t SubGroupStream::idle_item() const noexcept {
  const auto idle = std::find_if(free_items_.begin(), free_items_.end(),
                                 [](const FreeItem& free) { return free.item->idle(); });
  return static_cast<std::size_t>(idle - free_items_.begin());
}

void SubGroupStream::count_wait(std::uint64_t begin_ns) noexcept {
  const std::uint64_t end_ns = monotonic_ns();
  wait_ns_ += end_ns - begin_ns;
  Timeline* const timeline = state_.store().timeline();
  if (timeline != nullptr) timeline->add_wait(waits_for_, begin_ns, end_ns);
}

/// A free item with its transfers of last time finished: the one that has written the sub-group, or
/// one that is idle, or else the one that was given back first.
Result<StagingItem*> SubGroupStream::take_item(const Task& task) noexcept {
  ARTESIAN_CHECK(!free_items_.empty());
  std::size_t chosen = writer_of(task);
  if (chosen == free_items_.size()) chosen = idle_item();
  if (chosen == free_items_.size()) chosen = 0;
  FreeItem& free = free_items_[chosen];
  const std::uint64_t before = monotonic_ns();
  auto finished = free.item->finish();
  count_wait(before);
  if (!finished.has_value()) {
    free.failed = finished.error();
    return std::move(finished).error();
  }
  StagingItem* item = free.item;
  free_items_.erase(free_items_.begin() + static_cast<std::ptrdiff_t>(chosen));
  return item;
}

/// Free items that are not borrowed.
std::uint32_t SubGroupStream::own_free_items() const noexcept {
  const auto own = std::count_if(free_items_.begin(), free_items_.end(),
                                 [](const FreeItem& free) { return !free.item->borrowed(); });
  return static_cast<std::uint32_t>(own);
}

/// Without waiting, and with an item left for tasks before it that only write: these take theirs
/// when they come, so that they hold none from reading ahead.
bool SubGroupStream::may_look_ahead() const noexcept {
  ARTESIAN_CHECK(issued_ < tasks_.size(), issued_, tasks_.size());
  if (own_free_items() <= (writers_waiting_ != 0 ? 1u : 0u)) return false;
  const std::size_t writer = writer_of(tasks_[issued_]);
  if (writer < free_items_.size()) return free_items_[writer].item->idle();
  return idle_item() < free_items_.size();
}

/// True if the next task may be read to memory of the lender's: nothing of it is being written.
bool SubGroupStream::may_borrow() const noexcept {
  return lender_ != nullptr && state_.ring().count() != 0 &&
         writer_of(tasks_[issued_]) == free_items_.size() &&
         lender_->may_lend(state_.ring().item_bytes());
}

/// For the next task; null where there is none.
StagingItem* SubGroupStream::borrow() {
  if (!may_borrow()) return nullptr;
  BufferLease memory = lender_->borrow(state_.ring().item_bytes());
  return memory ? &state_.ring().add_borrowed(std::move(memory)) : nullptr;
}

bool SubGroupStream::may_give_back() const noexcept {
  return state_.ring().borrowed() != 0 &&
         std::any_of(free_items_.begin(), free_items_.end(), [](const FreeItem& free) {
           return free.item->borrowed() && free.item->idle();
         });
}

Result<void> SubGroupStream::give_back_borrowed() noexcept {
  Result<void> first;
  if (state_.ring().borrowed() == 0) return first;
  for (std::size_t place = 0; place < free_items_.size();) {
    StagingItem* const item = free_items_[place].item;
    if (!item->borrowed() || !item->idle()) {
      ++place;
      continue;
    }
    auto outcome = item->finish();
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    free_items_.erase(free_items_.begin() + static_cast<std::ptrdiff_t>(place));
    state_.ring().remove(*item);
  }
  return first;
}

/// A sub-group as which elements it is.
SubGroup SubGroupStream::cut(const Task& task) const noexcept {
  const Placement& plan = state_.placement();
  SubGroup group;
  group.unit = task.unit;
  group.index = task.index;
  group.share_first = task.index * plan.sub_group;
  group.image_first = state_.share_begin(task.unit) + group.share_first;
  group.count = plan.sub_group_numel(task.unit, task.index);
  ARTESIAN_CHECK(group.count != 0 && group.count <= plan.sub_group, group.count, plan.sub_group);
  const std::uint64_t image = plan.layout.units[task.unit].image;
  ARTESIAN_CHECK(group.image_first + group.count <= image, group.image_first, group.count, image);
  return group;
}

/// Its first element in the home of the parameters: of the image, where each rank has all of it.
std::uint64_t SubGroupStream::param_first(const SubGroup& group) const noexcept {
  return state_.placement().sharding.param == 1 ? group.image_first : group.share_first;
}

/// The same of the gradients.
std::uint64_t SubGroupStream::grad_first(const SubGroup& group) const noexcept {
  return state_.placement().sharding.grad == 1 ? group.image_first : group.share_first;
}

SubGroup SubGroupStream::locate(const Task& task, StagingItem* item) noexcept {
  const Placement& plan = state_.placement();
  SubGroup group = cut(task);
  const auto place = [&](ShardId id, std::uint64_t home_offset,
                         std::uint64_t item_offset) -> std::byte* {
    const Route road = route(id);
    if (item != nullptr && road != Route::InPlace) return item->data() + item_offset;
    return road == Route::Disk ? nullptr : state_.store().memory(id) + home_offset;
  };
  group.param = place(state_.param(task.unit), param_first(group) * dtype_size(plan.param_dtype),
                      param_offset());
  if (frozen(task.unit)) return group;
  group.grad =
      place(state_.grad(task.unit), grad_first(group) * dtype_size(plan.grad_dtype), grad_offset());
  auto* record = reinterpret_cast<float*>(place(state_.optimizer(task.unit, task.index), 0, 0));
  const Master master = plan.units[task.unit].master;
  if (master == Master::Parameter) group.master = reinterpret_cast<float*>(group.param);
  if (record == nullptr) return group;
  group.exp_avg = record;
  group.exp_avg_sq = record + group.count;
  float* rest = group.exp_avg_sq + group.count;
  if (master == Master::Own) group.master = rest;
  if (master == Master::Split) group.master_low = reinterpret_cast<std::uint16_t*>(rest);
  return group;
}

Result<void> SubGroupStream::issue_reads(const Task& task, StagingItem& item) noexcept {
  const Placement& plan = state_.placement();
  const SubGroup group = cut(task);
  ARTESIAN_CHECK(item.size() >= state_.ring().item_bytes(), item.size());
  const auto read = [&](ShardId id, std::uint64_t offset, std::uint64_t bytes,
                        std::uint64_t item_offset) -> Result<void> {
    const Route road = route(id);
    if (road == Route::Disk) item.read(id, {offset, bytes}, item_offset, options_.read_priority);
    if (road != Route::Queues) return {};
    return item.copy_to_host(item_offset, state_.store().memory(id) + offset, bytes);
  };
  const std::uint64_t param_size = dtype_size(plan.param_dtype);
  const tiering::ByteRange param{param_first(group) * param_size, group.count * param_size};
  if (options_.restore_param && state_.saves_param(task.unit)) {
    return read(state_.saved_param(task.unit), param.offset, param.length, saved_offset());
  }
  const bool record = options_.read_state || options_.restore_param;
  if (record && !frozen(task.unit)) {
    ARTESIAN_TRY_VOID(read(state_.optimizer(task.unit, task.index), 0,
                           plan.record_bytes(task.unit, task.index), 0));
  }
  if (options_.read_state && state_has_param(task.unit)) {
    ARTESIAN_TRY_VOID(read(state_.param(task.unit), param.offset, param.length, param_offset()));
  }
  if (!options_.read_grad) return {};
  const std::uint64_t size = dtype_size(plan.grad_dtype);
  ARTESIAN_CHECK(grad_offset() + group.count * size <= item.size(), grad_offset(), item.size());
  return read(state_.grad(task.unit), grad_first(group) * size, group.count * size, grad_offset());
}

/// The record of a sub-group's optimizer state, and its parameter.
void SubGroupStream::list_state(const SubGroup& group, bool with_param,
                                GroupBlocks& blocks) const noexcept {
  if (frozen(group.unit)) return list_param(group, blocks);
  const Placement& plan = state_.placement();
  const ShardId record = state_.optimizer(group.unit, group.index);
  const bool split = plan.units[group.unit].master == Master::Split;
  blocks.list(record, 0, group.exp_avg, 4);
  blocks.list(record, 1, group.exp_avg_sq, 4);
  if (record_blocks(group.unit) == 3) {
    blocks.list(record, 2, group.exp_avg_sq + group.count, split ? 2 : 4);
  }
  if (with_param) list_param(group, blocks);
}

void SubGroupStream::list_param(const SubGroup& group, GroupBlocks& blocks) const noexcept {
  blocks.list(state_.param(group.unit), group.index, group.param,
              dtype_size(state_.placement().param_dtype));
}

void SubGroupStream::list_saved(const SubGroup& group, GroupBlocks& blocks) const noexcept {
  blocks.list(state_.saved_param(group.unit), group.index, group.saved,
              dtype_size(state_.placement().param_dtype));
}

void SubGroupStream::list_read(const SubGroup& group, GroupBlocks& blocks) const noexcept {
  const Placement& plan = state_.placement();
  if (options_.read_state) list_state(group, state_has_param(group.unit), blocks);
  if (options_.restore_param) {
    if (group.saved != nullptr) return list_saved(group, blocks);
    list_state(group, /*with_param=*/false, blocks);
  }
  if (!options_.read_grad) return;
  blocks.list(state_.grad(group.unit), group.index, group.grad, dtype_size(plan.grad_dtype));
}

void SubGroupStream::list_written(const SubGroup& group, GroupBlocks& blocks) const noexcept {
  if (options_.write_state) {
    list_state(group, /*with_param=*/true, blocks);
    if (group.saved != nullptr) list_saved(group, blocks);
  } else if (options_.restore_param) {
    list_param(group, blocks);
  }
  if (!options_.write_grad) return;
  blocks.list(state_.grad(group.unit), group.index, group.grad,
              dtype_size(state_.placement().grad_dtype));
}

Result<void> SubGroupStream::write(const SubGroup& group, StagingItem& item) noexcept {
  if (frozen(group.unit)) return write_param(group, item);
  const Placement& plan = state_.placement();
  const ShardId record = state_.optimizer(group.unit, group.index);
  const std::uint64_t record_bytes = plan.record_bytes(group.unit, group.index);
  const Route road = route(record);
  if (road == Route::Disk) item.write(record, {0, record_bytes}, 0);
  if (road == Route::Queues) {
    ARTESIAN_TRY_VOID(item.copy_to_device(state_.store().memory(record), 0, record_bytes));
  }
  if (group.saved != nullptr) {
    const std::uint64_t size = dtype_size(plan.param_dtype);
    item.write(state_.saved_param(group.unit), {param_first(group) * size, group.count * size},
               saved_offset());
  }
  return write_param(group, item);
}

Result<void> SubGroupStream::write_param(const SubGroup& group, StagingItem& item) noexcept {
  const ShardId param = state_.param(group.unit);
  const std::uint64_t size = dtype_size(state_.placement().param_dtype);
  const Route road = route(param);
  if (road == Route::Disk) {
    item.write(param, {param_first(group) * size, group.count * size}, param_offset());
  }
  if (road != Route::Queues) return {};
  return item.copy_to_device(state_.store().memory(param) + param_first(group) * size,
                             param_offset(), group.count * size);
}

void SubGroupStream::write_grad(const SubGroup& group, StagingItem& item) noexcept {
  const std::uint64_t size = dtype_size(state_.placement().grad_dtype);
  ARTESIAN_CHECK(route(state_.grad(group.unit)) == Route::Disk, group.unit);  // it spills
  item.write(state_.grad(group.unit), {grad_first(group) * size, group.count * size},
             grad_offset());
}

/// Not without a separate device, nor where the pass is of gradients alone that the host reaches.
bool SubGroupStream::may_use_queues() const noexcept {
  if (!state_.separate_device()) return false;
  return options_.read_state || options_.write_state || options_.restore_param ||
         std::any_of(tasks_.begin(), tasks_.end(), [&](const Task& task) {
           return route(state_.grad(task.unit)) == Route::Queues;
         });
}

/// `work(begin, end)` on the elements of a sub-group, on the compute team.
template <typename Work>
void SubGroupStream::for_each_slice(const SubGroup& group, const Work& work) {
  constexpr std::uint64_t slice = GroupBlocks::slice;
  const std::uint64_t slices = (group.count + slice - 1) / slice;
  state_.executor().parallel_for(slices, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (; from < to; ++from) work(from * slice, std::min((from + 1) * slice, group.count));
  });
}

/// Verifies what was read, runs the body, and makes the checksums of what will be written.
Result<void> SubGroupStream::work_on(const SubGroup& group, GroupBlocks& written) noexcept {
  GroupBlocks read(state_.store());
  list_read(group, read);
  list_written(group, written);
  const bool sliced = body_.slice != nullptr;
  ARTESIAN_CHECK(group.saved == nullptr || group.param != nullptr, group.unit, group.index);
  if (sliced || !read.empty()) {
    const std::uint64_t size = dtype_size(state_.placement().param_dtype);
    for_each_slice(group, [&](std::uint64_t begin, std::uint64_t end) {
      read.add_to_verify(begin, end);
      if (!sliced) return;
      if (group.saved != nullptr && options_.write_state) {
        std::memcpy(group.saved + begin * size, group.param + begin * size, (end - begin) * size);
      }
      body_.slice(group, begin, end);
      written.add_to_seal(begin, end);
    });
  }
  ARTESIAN_TRY_VOID(read.verify());
  if (body_.after) ARTESIAN_TRY_VOID(body_.after(group));
  if (sliced || written.empty()) return {};
  for_each_slice(group,
                 [&](std::uint64_t begin, std::uint64_t end) { written.add_to_seal(begin, end); });
  return {};
}

Result<void> SubGroupStream::run_one(std::size_t place) noexcept {
  const Task& task = tasks_[place];
  StagingItem* const item = items_[place];
  SubGroup group = locate(task, item);
  const bool saved = options_.restore_param || place < saved_end_;
  if (saved && state_.saves_param(task.unit)) {
    ARTESIAN_CHECK(item != nullptr, task.unit, task.index);
    const std::uint64_t size = dtype_size(state_.placement().param_dtype);
    ARTESIAN_CHECK(saved_offset() + group.count * size <= item->size(), saved_offset());
    group.saved = item->data() + saved_offset();
  }
  if (item != nullptr) {
    const std::uint64_t before = monotonic_ns();
    ARTESIAN_TRY_VOID(item->finish());
    count_wait(before);
  }
  GroupBlocks written(state_.store());
  ARTESIAN_TRY_VOID(work_on(group, written));
  if (item == nullptr) return {};
  if (uses_queues_) ARTESIAN_TRY_VOID(item->hold());
  written.seal();
  if (options_.write_grad) write_grad(group, *item);
  if (options_.restore_param) return write_param(group, *item);
  return options_.write_state ? write(group, *item) : Result<void>();
}

Result<void> SubGroupStream::begin_tasks(const SubGroupStreamOptions& options,
                                         SlicedBody body) noexcept {
  current_ = tasks_.size();  // no pass, if this fails
  options_ = options;
  uses_queues_ = may_use_queues();
  // Copies follow whatever has used the device's state, and it is used again after them.
  if (uses_queues_) ARTESIAN_TRY_VOID(state_.device().join_queues());
  body_ = std::move(body);
  items_.assign(tasks_.size(), nullptr);
  ran_.assign(tasks_.size(), false);
  out_of_turn_ = nullptr;
  current_ = issued_ = 0;
  writers_waiting_ = 0;
  saved_end_ = 0;
  unit_end_.assign(state_.layout().units.size(), 0);
  for (std::size_t place = 0; place < tasks_.size(); ++place) {
    ARTESIAN_CHECK(tasks_[place].unit < unit_end_.size(), tasks_[place].unit);
    unit_end_[tasks_[place].unit] = place + 1;
  }
  tiering::StagingRing& ring = state_.ring();
  ARTESIAN_TRY_VOID(give_back_borrowed());
  if (own_free_items() != ring.count()) {  // else in the order in which they were given back
    free_items_.clear();
    for (std::uint32_t turn = 0; turn < ring.count(); ++turn) {
      free_items_.push_back({&ring.at(turn), {}});
    }
  }
  ARTESIAN_CHECK(own_free_items() == ring.count(), own_free_items(), ring.count());
  return advance_to(0);
}

/// Starts reads as long as none has to wait, or only the current task's.
Result<void> SubGroupStream::read_ahead(bool wait) noexcept {
  ARTESIAN_TRY_VOID(give_back_borrowed());
  for (; issued_ < tasks_.size(); ++issued_) {
    const Item need = item_for(tasks_[issued_]);
    ARTESIAN_CHECK(items_[issued_] == nullptr && !ran_[issued_], issued_);
    if (need == Item::ToRead) {
      const bool free = may_look_ahead();
      StagingItem* item = free ? nullptr : borrow();
      if (item == nullptr) {
        const bool may_wait = wait && issued_ == current_;
        if (!free && !may_wait) return {};
        ARTESIAN_TRY(taken, take_item(tasks_[issued_]));
        item = taken;
      }
      items_[issued_] = item;
      ARTESIAN_TRY_VOID(issue_reads(tasks_[issued_], *item));
    } else if (need == Item::ToWrite) {
      ++writers_waiting_;
    }
  }
  return {};
}

/// The first that is not done; or if that is in memory, the first that has come and may go before.
std::size_t SubGroupStream::next_task() const noexcept {
  if (!out_of_turn_ || item_for(tasks_[current_]) != Item::Never) return current_;
  for (std::size_t place = current_ + 1; place < issued_; ++place) {
    const bool come = items_[place] != nullptr && items_[place]->idle();
    if (come && out_of_turn_(tasks_[place].unit)) return place;
  }
  return current_;
}

/// True if an item of the ring is being read, written or copied.
bool SubGroupStream::in_flight() const noexcept {
  const auto moves = [](const StagingItem* item) { return item != nullptr && !item->idle(); };
  return std::any_of(free_items_.begin(), free_items_.end(),
                     [&](const FreeItem& free) { return moves(free.item); }) ||
         std::any_of(items_.begin() + static_cast<std::ptrdiff_t>(current_),
                     items_.begin() + static_cast<std::ptrdiff_t>(issued_), moves);
}

/// The place after the last of the sub-groups from the current one on, below `end`, that one region
/// does: Note [Together].
std::size_t SubGroupStream::together_up_to(std::size_t end) const noexcept {
  std::size_t last = current_;
  if (body_.slice == nullptr || item_for(tasks_[current_]) != Item::Never) return last;
  if (in_flight()) return last;
  end = std::min({end, issued_, current_ + together_max});
  while (last < end && !ran_[last] && item_for(tasks_[last]) == Item::Never) ++last;
  return last;
}

Result<void> SubGroupStream::run_together(std::size_t end) noexcept {
  constexpr std::uint64_t slice = GroupBlocks::slice;
  std::array<SubGroup, together_max> groups;
  std::array<std::uint64_t, together_max + 1> first{};  // of their slices; and the end of all
  const std::size_t count = end - current_;
  ARTESIAN_CHECK(count != 0 && count <= together_max, current_, end);
  for (std::size_t place = 0; place < count; ++place) {
    const Task& task = tasks_[current_ + place];
    const bool saved = current_ + place < saved_end_ && state_.saves_param(task.unit);
    ARTESIAN_CHECK(items_[current_ + place] == nullptr && !saved, task.unit, task.index);
    groups[place] = locate(task, nullptr);
    first[place + 1] = first[place] + (groups[place].count + slice - 1) / slice;
  }
  state_.executor().parallel_for(first[count], 1, [&](std::uint64_t from, std::uint64_t to) {
    for (std::size_t place = 0; from < to; ++from) {
      while (from >= first[place + 1]) ++place;
      const std::uint64_t begin = (from - first[place]) * slice;
      body_.slice(groups[place], begin, std::min(begin + slice, groups[place].count));
    }
  });
  for (std::size_t place = 0; place < count; ++place) {
    if (body_.after) ARTESIAN_TRY_VOID(body_.after(groups[place]));
    ran_[current_ + place] = true;
  }
  return {};
}

/// Goes on by one sub-group, or by several that are done together, none of them at `end` or behind.
Result<void> SubGroupStream::run_next(std::size_t end) noexcept {
  ARTESIAN_TRY_VOID(read_ahead(/*wait=*/true));
  const std::size_t next = next_task();
  ARTESIAN_CHECK(current_ <= next && next < issued_, current_, next, issued_);
  const std::size_t last = next == current_ ? together_up_to(end) : next;
  ARTESIAN_TRY_VOID(last > next + 1 ? run_together(last) : run_task(next));
  while (under_way() && ran_[current_]) ++current_;
  return {};
}

Result<void> SubGroupStream::run_task(std::size_t place) noexcept {
  if (item_for(tasks_[place]) == Item::ToWrite) {
    ARTESIAN_CHECK(items_[place] == nullptr, place);
    ARTESIAN_TRY(item, take_item(tasks_[place]));
    items_[place] = item;
    ARTESIAN_CHECK(writers_waiting_ != 0);
    --writers_waiting_;
  }
  ARTESIAN_TRY_VOID(run_one(place));
  ARTESIAN_CHECK(!ran_[place], place);
  ran_[place] = true;
  StagingItem* const item = std::exchange(items_[place], nullptr);
  if (item == nullptr) return {};
  const bool writes = options_.write_state || options_.write_grad || options_.restore_param;
  free_items_.push_back({item, writes ? std::optional(tasks_[place]) : std::nullopt});
  return {};
}

Result<void> SubGroupStream::advance_to(std::size_t end) noexcept {
  ARTESIAN_CHECK(end <= tasks_.size(), end, tasks_.size());
  Result<void> outcome;
  while (outcome.has_value() && current_ < end) outcome = run_next(end);
  if (outcome.has_value()) outcome = read_ahead(/*wait=*/false);
  if (!outcome.has_value()) current_ = tasks_.size();
  return outcome;
}

void SubGroupStream::list_tasks(const std::vector<std::uint32_t>& units) {
  ARTESIAN_CHECK(!under_way());
  tasks_.clear();
  for (const auto unit : units) {
    const std::uint64_t count = state_.placement().sub_group_count(unit);
    for (std::uint64_t index = 0; index < count; ++index) tasks_.push_back({unit, index});
  }
}

Result<void> SubGroupStream::begin(const std::vector<std::uint32_t>& units,
                                   const SubGroupStreamOptions& options, Body body) noexcept {
  list_tasks(units);
  return begin_tasks(options, {.slice = {}, .after = std::move(body)});
}

Result<void> SubGroupStream::begin(const std::vector<std::uint32_t>& units,
                                   const SubGroupStreamOptions& options, SlicedBody body) noexcept {
  list_tasks(units);
  auto begun = begin_tasks(options, std::move(body));
  ARTESIAN_CHECK(options.units_saved <= units.size(), options.units_saved, units.size());
  if (options.units_saved != 0) saved_end_ = unit_end_[units[options.units_saved - 1]];
  return begun;
}

Result<void> SubGroupStream::advance_past(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(unit < unit_end_.size(), unit, unit_end_.size());
  return advance_to(unit_end_[unit]);
}

/// True if the next task has all that it needs.
bool SubGroupStream::ready() const noexcept {
  if (!under_way()) return false;
  switch (item_for(tasks_[current_])) {
    case Item::Never: return true;
    case Item::ToRead: return current_ < issued_ && items_[current_]->idle();
    case Item::ToWrite: break;
  }
  return idle_item() < free_items_.size();
}

/// True if enough is ready to go on: half of the ring, as the disk does better with some reads in a
/// row, then some writes. Beside a separate device a task that reads nothing does not wait for
/// that; where the host computes the model, too, it goes on when something has come.
bool SubGroupStream::worthwhile() const noexcept {
  if (state_.separate_device() && under_way() && item_for(tasks_[current_]) != Item::ToRead) {
    return ready();
  }
  std::uint32_t come = 0;
  for (std::size_t task = current_; task < issued_; ++task) {
    come += items_[task] != nullptr && items_[task]->idle() ? 1 : 0;
  }
  return 2 * come >= state_.ring().count() && ready();
}

bool SubGroupStream::may_advance() const noexcept {
  return worthwhile() || may_read_on();
}

Result<bool> SubGroupStream::advance_within(std::uint32_t unit) noexcept {
  ARTESIAN_CHECK(unit < unit_end_.size(), unit, unit_end_.size());
  const std::size_t end = unit_end_[unit];
  if (worthwhile()) {
    while (current_ < end && ready()) {
      ARTESIAN_TRY_VOID(advance_to(std::max(current_ + 1, together_up_to(end))));
    }
  }
  const bool done = current_ >= end;
  ARTESIAN_TRY_VOID(read_on());
  return done;
}

Result<void> SubGroupStream::abandon() noexcept {
  ARTESIAN_CHECK(!out_of_turn_);  // for run_on_done the first ones are done, and no others
  Result<void> first;
  for (std::size_t task = current_; task < issued_; ++task) {
    if (items_[task] == nullptr) continue;
    auto outcome = items_[task]->finish();
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
    free_items_.push_back({items_[task], {}});
  }
  done_ = current_;
  current_ = tasks_.size();
  auto given_back = give_back_borrowed();
  return first.has_value() ? std::move(given_back) : std::move(first);
}

Result<void> SubGroupStream::run_on_done(const SubGroupStreamOptions& options,
                                         SlicedBody body) noexcept {
  ARTESIAN_CHECK(!under_way());
  ARTESIAN_CHECK(done_ <= tasks_.size(), done_, tasks_.size());
  tasks_.resize(std::exchange(done_, 0));
  ARTESIAN_TRY_VOID(begin_tasks(options, std::move(body)));
  return finish();
}

Result<void> SubGroupStream::finish() noexcept {
  return advance_to(tasks_.size());
}

Result<void> SubGroupStream::run(const std::vector<std::uint32_t>& units,
                                 const SubGroupStreamOptions& options, const Body& body) noexcept {
  ARTESIAN_TRY_VOID(begin(units, options, body));
  return finish();
}

Result<void> SubGroupStream::run(const std::vector<std::uint32_t>& units,
                                 const SubGroupStreamOptions& options,
                                 const SlicedBody& body) noexcept {
  ARTESIAN_TRY_VOID(begin(units, options, body));
  return finish();
}

Result<void> SubGroupStream::run_where(
    const std::vector<std::uint32_t>& units,
    const std::function<bool(std::uint32_t unit, std::uint64_t index)>& wanted,
    const SubGroupStreamOptions& options, const Body& body) noexcept {
  list_tasks(units);
  std::erase_if(tasks_, [&](const Task& task) { return !wanted(task.unit, task.index); });
  ARTESIAN_TRY_VOID(begin_tasks(options, {.slice = {}, .after = body}));
  return finish();
}

Result<void> SubGroupStream::run_range(std::uint32_t unit, std::uint64_t image_first,
                                       std::uint64_t count, const SubGroupStreamOptions& options,
                                       const Body& body) noexcept {
  ARTESIAN_CHECK(!under_way());
  const std::uint64_t image = state_.layout().units[unit].image;
  ARTESIAN_CHECK(image_first + count <= image, image_first, count, image);
  tasks_.clear();
  for (std::uint64_t index = 0; index < state_.placement().sub_group_count(unit); ++index) {
    const SubGroup group = cut({unit, index});
    const bool overlaps =
        group.image_first < image_first + count && image_first < group.image_first + group.count;
    if (overlaps) tasks_.push_back({unit, index});
  }
  ARTESIAN_TRY_VOID(begin_tasks(options, {.slice = {}, .after = body}));
  return finish();
}

Result<void> SubGroupStream::run_some(std::uint32_t unit, const std::vector<std::uint64_t>& indices,
                                      const SubGroupStreamOptions& options,
                                      const Body& body) noexcept {
  ARTESIAN_CHECK(!under_way());
  tasks_.clear();
  for (const std::uint64_t index : indices) tasks_.push_back({unit, index});
  ARTESIAN_TRY_VOID(begin_tasks(options, {.slice = {}, .after = body}));
  return finish();
}

Result<void> SubGroupStream::finish_left() noexcept {
  Result<void> first;
  const std::uint64_t before = monotonic_ns();
  for (const FreeItem& free : free_items_) {
    auto outcome = free.failed.has_value() ? Result<void>(*free.failed) : free.item->finish();
    if (!outcome.has_value() && first.has_value()) first = std::move(outcome);
  }
  count_wait(before);
  return first;
}

}  // namespace artesian::zero3
