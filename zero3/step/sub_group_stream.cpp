#include "zero3/step/sub_group_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace artesian::zero3 {
namespace {

constexpr std::size_t sub_groups_together_max = 16;  // of the largest size: 4 Mi elements

}  // namespace

Overlap overlap(const ParameterPlace& place, const SubGroup& group) noexcept {
  const std::uint64_t begin = std::max(place.first, group.image_first);
  const std::uint64_t end = std::min(place.first + place.numel, group.image_first + group.count);
  if (begin >= end) return {};
  return {begin - place.first, begin - group.image_first, end - begin};
}

using tiering::RingNeed;
using tiering::Route;
using tiering::ShardId;
using tiering::StagingItem;

// Layout of an item's bytes: [record of the optimizer state][parameter][gradient], each with the
// length for a whole sub-group, so that offsets do not depend on the task. The old parameter is
// stored in the place of the gradient, which is then in memory.
std::uint64_t SubGroupStream::param_offset() const noexcept {
  return state_.placement().record_bytes_max(state_.placement().sub_group);
}

std::uint64_t SubGroupStream::grad_offset() const noexcept {
  const Placement& plan = state_.placement();
  return param_offset() + plan.sub_group_max(plan.sub_group) * dtype_size(plan.param_dtype);
}

/// The route between the shard's home and the host, which works on it.
Route SubGroupStream::route(ShardId id) const noexcept {
  return state_.placement().host_route(state_.store().shard(id).home);
}

RingNeed SubGroupStream::need(const Task& task) const noexcept {
  return ring_need(state_.placement(), task,
                   {.read_state = options_.read_state,
                    .read_grad = options_.read_grad,
                    .write_state = options_.write_state,
                    .write_grad = options_.write_grad,
                    .restore_param = options_.restore_param});
}

/// Returns the sub-group with its elements' indices.
SubGroup SubGroupStream::cut(const Task& task) const noexcept {
  const Placement& plan = state_.placement();
  SubGroup group;
  group.unit = task.unit;
  group.index = task.index;
  group.share_first = task.index * plan.sub_group_of(task.unit);
  group.image_first = state_.share_begin(task.unit) + group.share_first;
  group.count = plan.sub_group_numel(task.unit, task.index);
  ARTESIAN_CHECK(group.count != 0 && group.count <= plan.sub_group_of(task.unit), group.count);
  const std::uint64_t image = plan.layout.units[task.unit].image;
  ARTESIAN_CHECK(group.image_first + group.count <= image, group.image_first, group.count, image);
  return group;
}

/// Index of the sub-group's first element in the parameters' home: in the image, if each rank has
/// all of it.
std::uint64_t SubGroupStream::param_first(const SubGroup& group) const noexcept {
  return state_.placement().params_cut ? group.share_first : group.image_first;
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
      place(state_.grad(task.unit), group.share_first * dtype_size(plan.grad_dtype), grad_offset());
  std::byte* rest = place(state_.optimizer(task.unit, task.index), 0, 0);
  const Master master = plan.units[task.unit].master;
  if (master == Master::Parameter) group.master = reinterpret_cast<float*>(group.param);
  if (rest == nullptr) return group;
  const auto next = [&](std::string_view moment, float*& array, std::uint16_t*& half) {
    if (moment.empty()) return;
    std::byte* at = std::exchange(rest, rest + group.count * dtype_size(plan.moment_dtype));
    if (plan.moment_dtype == DType::Float32) {
      array = reinterpret_cast<float*>(at);
    } else {
      half = reinterpret_cast<std::uint16_t*>(at);
    }
  };
  next(plan.moments_of(task.unit).average, group.exp_avg, group.half_avg);
  next(plan.moments_of(task.unit).squares, group.exp_avg_sq, group.half_avg_sq);
  if (master == Master::Own) group.master = reinterpret_cast<float*>(rest);
  if (master == Master::Split) group.master_low = reinterpret_cast<std::uint16_t*>(rest);
  return group;
}

Result<void> SubGroupStream::read(const Task& task, StagingItem& item) noexcept {
  const Placement& plan = state_.placement();
  const SubGroup group = cut(task);
  ARTESIAN_CHECK(item.size() >= ring().item_bytes(), item.size());
  const auto start = [&](ShardId id, std::uint64_t offset, std::uint64_t bytes,
                         std::uint64_t item_offset) -> Result<void> {
    const Route road = route(id);
    if (road == Route::Disk) item.read(id, {offset, bytes}, item_offset, options_.read_priority);
    if (road != Route::Queues) return {};
    return item.copy_to_host(item_offset, state_.store().memory(id) + offset, bytes);
  };
  const std::uint64_t param_size = dtype_size(plan.param_dtype);
  const tiering::ByteRange param{param_first(group) * param_size, group.count * param_size};
  if (options_.restore_param && state_.saves_param(task.unit)) {
    return start(state_.saved_param(task.unit), param.offset, param.length, saved_offset());
  }
  const bool record = options_.read_state || options_.restore_param;
  if (record && !frozen(task.unit)) {
    ARTESIAN_TRY_VOID(start(state_.optimizer(task.unit, task.index), 0,
                            plan.record_bytes(task.unit, task.index), 0));
  }
  if (options_.read_state && state_has_param(task.unit)) {
    ARTESIAN_TRY_VOID(start(state_.param(task.unit), param.offset, param.length, param_offset()));
  }
  if (!options_.read_grad) return {};
  const std::uint64_t size = dtype_size(plan.grad_dtype);
  ARTESIAN_CHECK(grad_offset() + group.count * size <= item.size(), grad_offset(), item.size());
  return start(state_.grad(task.unit), group.share_first * size, group.count * size, grad_offset());
}

/// Lists a sub-group's record, with one block per array, and its parameter.
void SubGroupStream::list_state(const SubGroup& group, bool with_param,
                                GroupBlocks& blocks) const noexcept {
  if (frozen(group.unit)) return list_param(group, blocks);
  const Placement& plan = state_.placement();
  const ShardId record = state_.optimizer(group.unit, group.index);
  const Master master = plan.units[group.unit].master;
  std::uint64_t block = 0;
  for (const float* moment : {group.exp_avg, group.exp_avg_sq}) {
    if (moment != nullptr) blocks.list(record, block++, moment, 4);
  }
  for (const std::uint16_t* moment : {group.half_avg, group.half_avg_sq}) {
    if (moment != nullptr) blocks.list(record, block++, moment, 2);
  }
  if (master == Master::Split) blocks.list(record, block, group.master_low, 2);
  if (master == Master::Own) blocks.list(record, block, group.master, 4);
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
  ARTESIAN_CHECK(route(state_.grad(group.unit)) == Route::Disk, group.unit);  // its gradients spill
  item.write(state_.grad(group.unit), {group.share_first * size, group.count * size},
             grad_offset());
}

/// False without a separate device, and for passes over gradients that are all host-accessible.
bool SubGroupStream::may_use_queues(const std::vector<Task>& tasks) const noexcept {
  if (!state_.separate_device()) return false;
  return options_.read_state || options_.write_state || options_.restore_param ||
         std::any_of(tasks.begin(), tasks.end(), [&](const Task& task) {
           return route(state_.grad(task.unit)) == Route::Queues;
         });
}

/// Runs `work(begin, end)` on a sub-group's elements, on the thread pool.
template <typename Work>
void SubGroupStream::for_each_slice(const SubGroup& group, const Work& work) {
  constexpr std::uint64_t slice = GroupBlocks::slice;
  const std::uint64_t slices = (group.count + slice - 1) / slice;
  state_.executor().parallel_for(slices, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (; from < to; ++from) work(from * slice, std::min((from + 1) * slice, group.count));
  });
}

/// Verifies the blocks read, runs the body, and computes checksums of the blocks to write.
Result<void> SubGroupStream::work_on(const SubGroup& group, GroupBlocks& written) noexcept {
  GroupBlocks read(state_.store());
  list_read(group, read);
  list_written(group, written);
  const bool sliced = body_.slice != nullptr;
  const bool whole = body_.whole && state_.layout().units[group.unit].rows != 0;
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
      if (!whole) written.add_to_seal(begin, end);
    });
  }
  ARTESIAN_TRY_VOID(read.verify());
  if (whole) {
    ARTESIAN_TRY_VOID(body_.whole(group));
    for_each_slice(group, [&](std::uint64_t begin, std::uint64_t end) {
      body_.second(group, begin, end);
      written.add_to_seal(begin, end);
    });
  }
  if (body_.after) ARTESIAN_TRY_VOID(body_.after(group));
  if (sliced || written.empty()) return {};
  for_each_slice(group,
                 [&](std::uint64_t begin, std::uint64_t end) { written.add_to_seal(begin, end); });
  return {};
}

Result<void> SubGroupStream::work(std::size_t place, const Task& task, StagingItem* item) noexcept {
  SubGroup group = locate(task, item);
  const bool saved = options_.restore_param || place < saved_end_;
  if (saved && state_.saves_param(task.unit)) {
    ARTESIAN_CHECK(item != nullptr, task.unit, task.index);
    const std::uint64_t size = dtype_size(state_.placement().param_dtype);
    ARTESIAN_CHECK(saved_offset() + group.count * size <= item->size(), saved_offset());
    group.saved = item->data() + saved_offset();
  }
  if (item != nullptr) ARTESIAN_TRY_VOID(finish(*item));
  GroupBlocks written(state_.store());
  ARTESIAN_TRY_VOID(work_on(group, written));
  if (item == nullptr) return {};
  if (uses_queues_) ARTESIAN_TRY_VOID(item->hold());
  written.seal();
  if (options_.write_grad) write_grad(group, *item);
  if (options_.restore_param) return write_param(group, *item);
  return options_.write_state ? write(group, *item) : Result<void>();
}

/// A body without slices, or with two passes over them, needs each sub-group as a whole.
std::size_t SubGroupStream::together_max() const noexcept {
  return body_.slice != nullptr && !body_.whole ? sub_groups_together_max : 1;
}

Result<void> SubGroupStream::work_together(std::size_t first,
                                           std::span<const Task> tasks) noexcept {
  constexpr std::uint64_t slice = GroupBlocks::slice;
  std::array<SubGroup, sub_groups_together_max> groups;
  // First slice of each sub-group; and the end.
  std::array<std::uint64_t, sub_groups_together_max + 1> begin{};
  ARTESIAN_CHECK(!tasks.empty() && tasks.size() <= groups.size(), first, tasks.size());
  for (std::size_t place = 0; place < tasks.size(); ++place) {
    const Task& task = tasks[place];
    const bool saved = first + place < saved_end_ && state_.saves_param(task.unit);
    ARTESIAN_CHECK(!saved, task.unit, task.index);
    groups[place] = locate(task, nullptr);
    begin[place + 1] = begin[place] + (groups[place].count + slice - 1) / slice;
  }
  state_.executor().parallel_for(begin[tasks.size()], 1, [&](std::uint64_t from, std::uint64_t to) {
    for (std::size_t place = 0; from < to; ++from) {
      while (from >= begin[place + 1]) ++place;
      const std::uint64_t element = (from - begin[place]) * slice;
      body_.slice(groups[place], element, std::min(element + slice, groups[place].count));
    }
  });
  for (std::size_t place = 0; place < tasks.size(); ++place) {
    if (body_.after) ARTESIAN_TRY_VOID(body_.after(groups[place]));
  }
  return {};
}

Result<void> SubGroupStream::begin_tasks(std::vector<Task> tasks,
                                         const SubGroupStreamOptions& options,
                                         SlicedBody body) noexcept {
  ARTESIAN_CHECK(!under_way());
  options_ = options;
  uses_queues_ = may_use_queues(tasks);
  // Copies must follow earlier uses of the device's state, and later uses must follow the copies.
  if (uses_queues_) ARTESIAN_TRY_VOID(state_.device().join_queues());
  body_ = std::move(body);
  saved_end_ = 0;
  return Order::begin(tasks);
}

std::vector<SubGroupStream::Task> SubGroupStream::list_tasks(
    const std::vector<std::uint32_t>& units) const {
  std::vector<Task> tasks;
  for (const auto unit : units) {
    const std::uint64_t count = state_.placement().sub_group_count(unit);
    for (std::uint64_t index = 0; index < count; ++index) tasks.push_back({unit, index});
  }
  return tasks;
}

Result<void> SubGroupStream::begin(const std::vector<std::uint32_t>& units,
                                   const SubGroupStreamOptions& options, Body body) noexcept {
  return begin_tasks(list_tasks(units), options, {.slice = {}, .after = std::move(body)});
}

Result<void> SubGroupStream::begin(const std::vector<std::uint32_t>& units,
                                   const SubGroupStreamOptions& options, SlicedBody body) noexcept {
  auto begun = begin_tasks(list_tasks(units), options, std::move(body));
  ARTESIAN_CHECK(options.units_saved <= units.size(), options.units_saved, units.size());
  if (options.units_saved != 0) saved_end_ = end_of(units[options.units_saved - 1]);
  return begun;
}

Result<void> SubGroupStream::abandon() noexcept {
  ARTESIAN_TRY(done, Order::abandon());
  done_ = std::move(done);
  return {};
}

Result<void> SubGroupStream::run_on_done(const SubGroupStreamOptions& options,
                                         SlicedBody body) noexcept {
  ARTESIAN_TRY_VOID(begin_tasks(std::exchange(done_, {}), options, std::move(body)));
  return finish();
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
  std::vector<Task> tasks = list_tasks(units);
  std::erase_if(tasks, [&](const Task& task) { return !wanted(task.unit, task.index); });
  ARTESIAN_TRY_VOID(begin_tasks(std::move(tasks), options, {.slice = {}, .after = body}));
  return finish();
}

Result<void> SubGroupStream::run_range(std::uint32_t unit, std::uint64_t image_first,
                                       std::uint64_t count, const SubGroupStreamOptions& options,
                                       const Body& body) noexcept {
  const std::uint64_t image = state_.layout().units[unit].image;
  ARTESIAN_CHECK(image_first + count <= image, image_first, count, image);
  std::vector<Task> tasks;
  for (std::uint64_t index = 0; index < state_.placement().sub_group_count(unit); ++index) {
    const SubGroup group = cut({unit, index});
    const bool overlaps =
        group.image_first < image_first + count && image_first < group.image_first + group.count;
    if (overlaps) tasks.push_back({unit, index});
  }
  ARTESIAN_TRY_VOID(begin_tasks(std::move(tasks), options, {.slice = {}, .after = body}));
  return finish();
}

Result<void> SubGroupStream::run_some(std::uint32_t unit, const std::vector<std::uint64_t>& indices,
                                      const SubGroupStreamOptions& options,
                                      const Body& body) noexcept {
  std::vector<Task> tasks;
  for (const std::uint64_t index : indices) tasks.push_back({unit, index});
  ARTESIAN_TRY_VOID(begin_tasks(std::move(tasks), options, {.slice = {}, .after = body}));
  return finish();
}

}  // namespace artesian::zero3
