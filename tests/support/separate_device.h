// SeparateDevice: a device with memory of its own and without a GPU. Enqueued work runs later, in
// any order that queues and fences allow (as late as possible, as early as possible, or at random),
// with the CPU versions of the kernels. It always shows mistakes that a GPU would show by chance:
//
//   a missing fence         every operation has a vector clock; two that touch the same bytes, one
//                           of them writing, without an order between them, fail the test
//   a target read too soon  it holds 0xff until its copy has run (a NaN in every dtype)
//   a source changed or     copies that run late copy what is there then
//   reused too soon
//   device memory touched   it is inaccessible but while operations run and while the model
//   computes by the host             (begin_compute to end_compute): SIGSEGV
//
// LibTorch computes on the CPU, and has finished when a call returns. The memory that it reads is
// inferred from the fences that the queue Compute waits for.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "tests/support/wait_sites.h"
#include "tiering/device/host_device.h"

namespace artesian::test_support {

using tiering::DeviceFence;
using tiering::Queue;

class SeparateDevice : public tiering::Device {
 public:
  enum class Order : std::uint8_t { Late, Early, Random };
  explicit SeparateDevice(Order order = Order::Late, std::uint64_t seed = 1)
      : order_(order), random_(seed) {}
  ~SeparateDevice() override { EXPECT_EQ(arena_, nullptr) << "the arena was not given back"; }

  // Faults.
  std::uint64_t bytes_max = ~std::uint64_t{0};             // more than this much is Exhausted
  std::uint64_t calls_until_failure = ~std::uint64_t{0};   // then every call is an error of code Io
  bool runs_late = false;                                  // whatever the order
  bool hangs = false;                                      // no fence passes; waits are a Timeout
  std::uint64_t registered_bytes_max = ~std::uint64_t{0};  // more than this much is Exhausted
  std::size_t micro_batches_at_once = 1;                   // that each stage computes, in turn
  std::uint64_t races = 0;                                 // operations that lacked an order
  std::uint64_t update_calls = 0;
  std::map<DType, std::uint64_t> gradient_calls;  // by the dtype of what is added
  std::uint64_t small_copies = 0;                 // to the device, of less than 4 KiB
  std::uint64_t fences = 0;                       // recorded
  bool expect_races = false;                      // the test counts them

  std::string name() const override { return "separate:0"; }
  bool host_accessible() const noexcept override { return false; }
  Result<std::unique_ptr<pinned::Pool>> create_arena(std::uint64_t bytes) override;
  Result<void> register_host(std::span<std::byte> range) override;
  void unregister_host(std::span<std::byte> range) noexcept override;
  /// For a double of a comm::DeviceGroup: work in the queue Bus, on parts of the arena, which stops
  /// the queue if it fails; and an end to what is enqueued there.
  Result<void> enqueue_on_bus(std::span<const std::span<const std::byte>> read,
                              std::span<const std::span<std::byte>> written,
                              std::function<Result<void>()> work);
  void drop_bus();
  /// Page-locked bytes; and bytes of copies whose host memory is not page-locked.
  std::uint64_t bytes_registered() const noexcept;
  std::uint64_t bytes_pageable() const noexcept { return bytes_pageable_; }

  Result<void> copy_to_device(std::byte* target, const std::byte* source,
                              std::uint64_t bytes) override {
    if (!in_arena(target, bytes)) expect_ordered(Queue::ToDevice, 1, "a copy to a tensor");
    EXPECT_FALSE(in_arena(source, 1)) << "a copy to the device comes from it";
    bytes_to_device_ += bytes;
    if (bytes < 4096) ++small_copies;
    count_pageable(source, bytes);
    return copy(Queue::ToDevice, target, source, bytes);
  }
  Result<void> copy_to_host(std::byte* target, const std::byte* source,
                            std::uint64_t bytes) override {
    EXPECT_FALSE(in_arena(target, 1)) << "a copy to the host goes to the device";
    if (!in_arena(source, bytes)) expect_computed(Queue::ToHost, "a copy to the host");
    bytes_to_host_ += bytes;
    count_pageable(target, bytes);
    return copy(Queue::ToHost, target, source, bytes);
  }
  Result<void> copy_within(Queue queue, std::byte* target, const std::byte* source,
                           std::uint64_t bytes) override {
    EXPECT_TRUE(in_arena(target, bytes) && in_arena(source, bytes)) << "a copy within the device";
    return copy(queue, target, source, bytes);
  }
  Result<void> zero(Queue queue, std::byte* target, std::uint64_t bytes) override {
    return enqueue(queue, {{target, bytes, true}},
                   [=](auto& host) { return host.zero(queue, target, bytes); });
  }
  Result<void> expand(Queue queue, const std::byte* source, DType dtype, float* target,
                      std::uint64_t count) override {
    return enqueue(queue, {{target, count * 4, true}, {source, count * dtype_size(dtype), false}},
                   [=](auto& host) { return host.expand(queue, source, dtype, target, count); });
  }
  Result<void> accumulate_gradients(Queue queue, std::span<const kernels::GradientPiece> pieces,
                                    const kernels::GradientDtypes& dtypes) override {
    ++gradient_calls[dtypes.grad];
    std::vector<Range> ranges;
    for (const kernels::GradientPiece& piece : pieces) {
      if (queue == Queue::Bus && !in_arena(piece.grad, 1)) expect_computed(queue, "a packed slice");
      ranges.push_back({piece.acc, piece.count * dtype_size(dtypes.acc), true});
      ranges.push_back({piece.grad, piece.count * dtype_size(dtypes.grad), false});
    }
    const std::vector<kernels::GradientPiece> copied(pieces.begin(), pieces.end());
    return enqueue(queue, std::move(ranges),
                   [=](auto& host) { return host.accumulate_gradients(queue, copied, dtypes); });
  }
  Result<void> sum_squares(Queue queue, const std::byte* data, DType dtype, std::uint64_t count,
                           double* leaf_sums) override {
    const std::uint64_t leaves = (count + kernels::norm_leaf - 1) / kernels::norm_leaf;
    return enqueue(
        queue, {{leaf_sums, leaves * 8, true}, {data, count * dtype_size(dtype), false}},
        [=](auto& host) { return host.sum_squares(queue, data, dtype, count, leaf_sums); });
  }
  Result<void> update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                            const kernels::UpdateStep& step) override {
    ++update_calls;
    std::vector<Range> ranges;
    for (const auto& [arrays, count] : pieces) {
      for (float* moment : {arrays.exp_avg, arrays.exp_avg_sq}) {
        if (moment != nullptr) ranges.push_back({moment, count * 4, true});
      }
      ranges.push_back({arrays.grad, count * dtype_size(arrays.grad_dtype), false});
      if (arrays.param != nullptr) ranges.push_back({arrays.param, count * 4, true});
      if (arrays.master_low != nullptr) ranges.push_back({arrays.master_low, count * 2, true});
      if (arrays.param_out == nullptr) continue;
      ranges.push_back({arrays.param_out, count * dtype_size(arrays.param_out_dtype), true});
    }
    const std::vector<kernels::AdamPiece> copied(pieces.begin(), pieces.end());
    return enqueue(queue, std::move(ranges),
                   [=](auto& host) { return host.update_steps(queue, copied, step); });
  }

  Result<DeviceFence> record(Queue queue) override;
  Result<void> wait(Queue queue, DeviceFence fence) override;
  bool ready(DeviceFence fence) noexcept override;
  Result<void> finish(DeviceFence fence) noexcept override;

  void begin_compute() noexcept override { open(); }
  void end_compute() noexcept override {
    close();
    computed_.push_back(lane(Queue::Compute).enqueued + 1);
  }

 private:
  struct Range {
    Range(const void* at, std::uint64_t bytes, bool is_written)
        : begin(static_cast<const std::byte*>(at)), end(begin + bytes), written(is_written) {}
    bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
    bool covers(const Range& other) const { return begin <= other.begin && other.end <= end; }
    const std::byte* begin;
    const std::byte* end;
    bool written;
  };
  using Clock = std::array<std::uint64_t, tiering::queue_count>;  // what each queue has passed
  using Work = std::function<Result<void>(tiering::HostDevice&)>;
  struct Operation {
    std::uint64_t sequence = 0;
    DeviceFence after;  // a wait, where there is no work
    Work work;
    std::vector<Range> ranges;
  };
  struct Access {
    Range range;
    Queue queue;
    std::uint64_t sequence;
  };
  struct Lane {  // one queue
    std::deque<Operation> pending;
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    Clock clock{};
    std::map<std::uint64_t, Clock> recorded;  // what precedes a fence of this queue
    std::vector<Range> written;               // since the last fence
    std::map<std::uint64_t, std::vector<Range>> written_before;  // by fence
  };

  Lane& lane(Queue queue) { return lanes_[static_cast<std::size_t>(queue)]; }
  bool in_arena(const void* at, std::uint64_t bytes) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return arena_ != nullptr && byte >= arena_ && byte + bytes <= arena_ + arena_bytes_;
  }
  Result<void> call() {
    if (calls_until_failure == 0) return make_error(ErrorCode::Io, "the device has failed");
    if (calls_until_failure != ~std::uint64_t{0}) --calls_until_failure;
    return {};
  }
  void count_pageable(const std::byte* host, std::uint64_t bytes) {
    bytes_pageable_ += bytes - registered_within(host, host + bytes);
  }
  std::uint64_t registered_within(const std::byte* begin, const std::byte* end) const noexcept;
  void open() noexcept {
    if (opened_++ == 0 && arena_ != nullptr) {
      EXPECT_EQ(::mprotect(arena_, arena_bytes_, PROT_READ | PROT_WRITE), 0);
    }
  }
  void close() noexcept {
    if (--opened_ == 0 && arena_ != nullptr) {
      EXPECT_EQ(::mprotect(arena_, arena_bytes_, PROT_NONE), 0);
    }
  }
  /// Called when a tensor of the model is read or its memory reused. `since`: how many computations
  /// may have followed its own.
  void expect_ordered(Queue queue, std::size_t since, const char* what) {
    merge(lane(queue).clock, host_);
    const std::uint64_t own =
        computed_.size() > since ? computed_[computed_.size() - 1 - since] : 0;
    if (lane(queue).clock[static_cast<std::size_t>(Queue::Compute)] >= own) return;
    ++races;
    EXPECT_TRUE(expect_races) << what << " does not wait for what computes with that memory";
  }
  /// Of a gradient, which follows those of the next stage and their sums.
  void expect_computed(Queue queue, const char* what) {
    expect_ordered(queue, 2 * micro_batches_at_once - 1, what);
  }
  Result<void> copy(Queue queue, std::byte* target, const std::byte* source, std::uint64_t bytes);
  void fill_until_run(Queue queue, const std::vector<Range>& targets);
  Result<void> enqueue(Queue queue, std::vector<Range> ranges, Work work);
  void check_order(Queue queue, std::uint64_t sequence, const std::vector<Range>& ranges);
  void merge(Clock& into, const Clock& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  Clock clock_of(DeviceFence fence);
  void run_next(Queue queue);
  void run_until(DeviceFence fence);
  void run_some();

  const Order order_;
  std::mt19937_64 random_;
  std::byte* arena_ = nullptr;
  std::uint64_t arena_bytes_ = 0;
  int opened_ = 0;
  std::vector<std::uint64_t> computed_;          // fences, one after each computation
  std::map<std::byte*, std::byte*> registered_;  // pieces: where each begins and ends
  std::uint64_t bytes_pageable_ = 0;
  std::array<Lane, tiering::queue_count> lanes_;
  Clock host_{};  // what the host has waited for
  std::vector<Access> accesses_;
  bool stopped_ = false;  // the queue Bus, by a rank that is gone
  tiering::HostDevice kernels_;
};

inline Result<std::unique_ptr<pinned::Pool>> SeparateDevice::create_arena(std::uint64_t bytes) {
  ARTESIAN_TRY_VOID(call());
  const std::uint64_t size = round_up(bytes, 4096);
  if (size > bytes_max) {
    return make_error(ErrorCode::Exhausted, "artesian.device_memory: " + format_size(size) +
                                                " asked, " + format_size(bytes_max) + " free on " +
                                                name() + "; lower it");
  }
  void* mapped = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena_ != nullptr || mapped == MAP_FAILED) {
    return make_error(ErrorCode::Exhausted, "a second arena, or no memory for it");
  }
  arena_ = static_cast<std::byte*>(mapped);
  arena_bytes_ = size;
  open();
  std::memset(arena_, 0xff, size);
  close();
  return pinned::Pool::over({arena_, static_cast<std::size_t>(size)}, "device memory", [this] {
    for (const Lane& own : lanes_) {
      for (const Operation& pending : own.pending) {
        for (const Range& range : pending.ranges) {
          EXPECT_TRUE(hangs || calls_until_failure == 0 || !in_arena(range.begin, 1))
              << "the arena is given back while work is enqueued that uses it";
        }
      }
    }
    ::munmap(arena_, arena_bytes_);
    arena_ = nullptr;
    accesses_.clear();
  });
}

/// Takes what is not page-locked yet, piece by piece, as CudaDevice does.
inline Result<void> SeparateDevice::register_host(std::span<std::byte> range) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.data()) % 4096, 0u);
  std::byte* const end = range.data() + range.size();
  for (std::byte* at = range.data(); at != end;) {
    const auto next = registered_.upper_bound(at);
    if (next != registered_.begin() && std::prev(next)->second > at) {
      at = std::min(end, std::prev(next)->second);
      continue;
    }
    std::byte* const piece_end = next == registered_.end() ? end : std::min(end, next->first);
    const auto bytes = static_cast<std::uint64_t>(piece_end - at);
    if (bytes_registered() + bytes > registered_bytes_max) {
      return make_error(ErrorCode::Exhausted, name() + ": page-locking host memory");
    }
    registered_.emplace(at, piece_end);
    at = piece_end;
  }
  return {};
}

inline void SeparateDevice::unregister_host(std::span<std::byte> range) noexcept {
  std::byte* const range_end = range.data() + range.size();
  std::erase_if(registered_, [&](const auto& piece) {
    const bool within = piece.first >= range.data() && piece.first < range_end;
    EXPECT_TRUE(!within || piece.second <= range_end);
    return within;
  });
}

inline std::uint64_t SeparateDevice::registered_within(const std::byte* begin,
                                                       const std::byte* end) const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [first, last] : registered_) {
    const std::byte* from = std::max<const std::byte*>(first, begin);
    const std::byte* to = std::min<const std::byte*>(last, end);
    if (from < to) bytes += static_cast<std::uint64_t>(to - from);
  }
  return bytes;
}

inline std::uint64_t SeparateDevice::bytes_registered() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [first, last] : registered_) bytes += static_cast<std::uint64_t>(last - first);
  return bytes;
}

/// Targets of what was enqueued last: they hold 0xff until it runs, unless an earlier operation
/// that is pending uses them.
inline void SeparateDevice::fill_until_run(Queue queue, const std::vector<Range>& targets) {
  if (lane(queue).pending.empty()) return;
  const Operation* const last = &lane(queue).pending.back();
  for (const Range& range : targets) {
    bool awaited = false;
    for (const Lane& other : lanes_) {
      for (const Operation& operation : other.pending) {
        for (const Range& used : operation.ranges) {
          awaited = awaited || (&operation != last && used.overlaps(range));
        }
      }
    }
    if (awaited) continue;
    open();
    std::memset(const_cast<std::byte*>(range.begin), 0xff,
                static_cast<std::size_t>(range.end - range.begin));
    close();
  }
}

inline Result<void> SeparateDevice::copy(Queue queue, std::byte* target, const std::byte* source,
                                         std::uint64_t bytes) {
  const Range range(target, bytes, true);
  ARTESIAN_TRY_VOID(enqueue(queue, {range, {source, bytes, false}}, [=](auto&) {
    std::memcpy(target, source, bytes);
    return Result<void>();
  }));
  fill_until_run(queue, {range});
  return {};
}

inline Result<void> SeparateDevice::enqueue_on_bus(std::span<const std::span<const std::byte>> read,
                                                   std::span<const std::span<std::byte>> written,
                                                   std::function<Result<void>()> work) {
  std::vector<Range> ranges;
  std::vector<Range> targets;
  for (const auto& part : read) {
    if (!part.empty()) ranges.push_back({part.data(), part.size(), false});
  }
  for (const auto& part : written) {
    if (!part.empty()) targets.push_back({part.data(), part.size(), true});
  }
  ranges.insert(ranges.end(), targets.begin(), targets.end());
  for (const Range& range : ranges) EXPECT_TRUE(in_arena(range.begin, 1)) << "not on the device";
  ARTESIAN_TRY_VOID(
      enqueue(Queue::Bus, ranges, [work = std::move(work)](auto&) { return work(); }));
  fill_until_run(Queue::Bus, targets);
  return {};
}

inline void SeparateDevice::drop_bus() {
  Lane& bus = lane(Queue::Bus);
  bus.done = bus.enqueued;
  bus.pending.clear();
  stopped_ = false;
}

inline Result<void> SeparateDevice::enqueue(Queue queue, std::vector<Range> ranges, Work work) {
  ARTESIAN_TRY_VOID(call());
  Lane& own = lane(queue);
  merge(own.clock, host_);
  // In the queue Compute an operation belongs to what precedes the next fence.
  const std::uint64_t sequence = own.enqueued + 1;
  if (queue != Queue::Compute) own.enqueued = sequence;
  check_order(queue, sequence, ranges);
  for (const Range& range : ranges) {
    // Memory that a later operation of this queue reads was written for it, not for the model.
    if (!range.written)
      std::erase_if(own.written, [&](const auto& w) { return w.overlaps(range); });
  }
  for (const Range& range : ranges) {
    if (range.written) own.written.push_back(range);
  }
  if (queue == Queue::Compute) {
    open();
    auto outcome = work(kernels_);
    close();
    return outcome;
  }
  own.pending.push_back({sequence, {}, std::move(work), std::move(ranges)});
  run_some();
  return {};
}

inline void SeparateDevice::check_order(Queue queue, std::uint64_t sequence,
                                        const std::vector<Range>& ranges) {
  const Clock& known = lane(queue).clock;
  for (const Range& range : ranges) {
    for (const Access& access : accesses_) {
      if (access.queue == queue || !access.range.overlaps(range)) continue;
      if (!access.range.written && !range.written) continue;
      if (known[static_cast<std::size_t>(access.queue)] >= access.sequence) continue;
      ++races;
      EXPECT_TRUE(expect_races) << "queue " << static_cast<int>(queue)
                                << (range.written ? " writes" : " reads") << " what queue "
                                << static_cast<int>(access.queue)
                                << (access.range.written ? " writes" : " reads")
                                << ", and no fence orders them";
    }
  }
  for (const Range& range : ranges) {
    std::erase_if(accesses_, [&](const Access& access) {
      const bool replaced = access.queue == queue && access.range.written == range.written;
      return range.covers(access.range) && (range.written || replaced);
    });
  }
  for (const Range& range : ranges) accesses_.push_back({range, queue, sequence});
}

inline SeparateDevice::Clock SeparateDevice::clock_of(DeviceFence fence) {
  Clock clock{};
  const auto& recorded = lane(fence.queue).recorded;
  const auto found = recorded.find(fence.sequence);
  if (found != recorded.end()) clock = found->second;
  auto& own = clock[static_cast<std::size_t>(fence.queue)];
  own = std::max(own, fence.sequence);
  return clock;
}

inline Result<DeviceFence> SeparateDevice::record(Queue queue) {
  ARTESIAN_TRY_VOID(call());
  ++fences;
  Lane& own = lane(queue);
  if (WaitSites::instance().drops_if_told("record", __builtin_return_address(0))) {
    return DeviceFence{queue, own.recorded.empty() ? 0 : own.recorded.rbegin()->first};
  }
  merge(own.clock, host_);
  if (queue == Queue::Compute) ++own.enqueued;  // passes when a call waits for it
  own.recorded[own.enqueued] = own.clock;
  auto& written = own.written_before[own.enqueued];
  written.insert(written.end(), own.written.begin(), own.written.end());
  own.written.clear();
  while (own.recorded.size() > 4096) own.recorded.erase(own.recorded.begin());
  while (own.written_before.size() > 4096) own.written_before.erase(own.written_before.begin());
  run_some();
  return DeviceFence{queue, own.enqueued};
}

inline Result<void> SeparateDevice::wait(Queue queue, DeviceFence fence) {
  ARTESIAN_TRY_VOID(call());
  const void* const caller = __builtin_return_address(0);
  if (WaitSites::instance().drops_if_told("wait",
                                          joining_ ? WaitSites::callers_caller() : caller)) {
    return {};
  }
  if (fence.sequence == 0 || fence.queue == queue) return {};
  EXPECT_LE(fence.sequence, lane(fence.queue).enqueued) << "a fence of the future";
  Lane& own = lane(queue);
  merge(own.clock, host_);
  merge(own.clock, clock_of(fence));
  if (queue != Queue::Compute) {
    own.pending.push_back({++own.enqueued, fence, {}, {}});
    run_some();
    return {};
  }
  if (hangs) return {};
  run_until(fence);
  if (joining_) return {};  // a join orders all; no stage is about to read
  const auto written = lane(fence.queue).written_before.find(fence.sequence);
  if (written == lane(fence.queue).written_before.end()) return {};
  for (Range range : written->second) {  // the model is about to read these
    range.written = false;
    if (in_arena(range.begin, 1)) check_order(Queue::Compute, own.enqueued + 1, {range});
  }
  return {};
}

inline bool SeparateDevice::ready(DeviceFence fence) noexcept {
  if (fence.sequence == 0 || calls_until_failure == 0) return true;
  if (hangs || lane(fence.queue).done < fence.sequence) return false;
  merge(host_, clock_of(fence));
  return true;
}

inline Result<void> SeparateDevice::finish(DeviceFence fence) noexcept {
  ARTESIAN_TRY_VOID(call());
  if (WaitSites::instance().drops_if_told("finish", __builtin_return_address(0))) return {};
  if (fence.sequence == 0) return {};
  if (hangs) return make_error(ErrorCode::Timeout, name() + ": no answer from the device");
  if (lane(fence.queue).done < fence.sequence) work_meanwhile();
  run_until(fence);
  if (lane(fence.queue).done < fence.sequence) {
    return make_error(ErrorCode::Timeout, name() + ": no answer from the device");
  }
  merge(host_, clock_of(fence));
  return {};
}

inline void SeparateDevice::run_next(Queue queue) {
  Lane& own = lane(queue);
  const Operation operation = std::move(own.pending.front());
  own.pending.pop_front();
  if (operation.work) {
    open();
    const bool worked = operation.work(kernels_).has_value();
    close();
    EXPECT_TRUE(worked || queue == Queue::Bus);
    stopped_ = stopped_ || !worked;
    if (!worked) return;
  } else {
    run_until(operation.after);
  }
  own.done = operation.sequence;
}

inline void SeparateDevice::run_until(DeviceFence fence) {
  if (fence.queue == Queue::Compute) {
    std::uint64_t& done = lane(fence.queue).done;
    done = std::max(done, fence.sequence);
    return;
  }
  while (lane(fence.queue).done < fence.sequence) {
    if (fence.queue == Queue::Bus && stopped_) return;
    run_next(fence.queue);
  }
}

inline void SeparateDevice::run_some() {
  if (order_ == Order::Late || runs_late || hangs) return;
  for (const Queue queue : {Queue::ToDevice, Queue::ToHost, Queue::Bus}) {
    if (queue == Queue::Bus && stopped_) continue;
    std::size_t count = lane(queue).pending.size();
    if (order_ == Order::Random) count = std::min<std::size_t>(count, random_() % 3);
    while (count-- != 0 && !lane(queue).pending.empty()) run_next(queue);
  }
}

}  // namespace artesian::test_support
