// LateQueues: the queues of a simulated accelerator. Enqueued work runs when a call waits for it
// (Late), at once (Early), or at random (Random), on the thread that waits. Knows nothing of torch.
//
// Each operation names the memory that it reads and writes. Two operations of different queues are
// a race if they touch the same bytes, one of them writing, without an order between them. Races
// are counted and described whatever order ran and whatever the bits are. Vector clocks give the
// order: what each queue, and the host, has waited for.
//
// Thread: any. Operations run with the lock held, so they must not enter Python. Objects that they
// hold are destroyed after the lock is released, since the last reference to a tensor may enter
// Python.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace artesian::test_support {

enum class Order : std::uint8_t { Late, Early, Random };

struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool written = false;
  bool overlaps(const Range& other) const {
    const bool some = begin < end && other.begin < other.end;
    return some && begin < other.end && other.begin < end;
  }
};

inline Range range_at(const void* at, std::uint64_t bytes, bool written) {
  const auto* begin = static_cast<const std::byte*>(at);
  return {begin, begin + bytes, written};
}

class LateQueues {
 public:
  using Work = std::function<void()>;
  using Clock = std::vector<std::uint64_t>;  // by queue: the last operation that has passed
  /// A place in a queue, behind all that was enqueued before. A default mark has always passed.
  struct Mark {
    std::size_t queue = 0;
    std::uint64_t sequence = 0;
    Clock clock{};
    std::chrono::steady_clock::time_point when{};
  };
  struct Counts {
    std::uint64_t races = 0;
    std::uint64_t ran = 0;
    std::uint64_t waits = 0;         // of the host
    std::uint64_t pending_most = 0;  // in one queue
  };

  void set_order(Order order, std::uint64_t seed) {
    const Held held(*this);
    order_ = order;
    random_.seed(seed);
  }
  std::size_t add_queue() {
    const Held held(*this);
    queues_.emplace_back();
    return queues_.size() - 1;
  }
  std::uint64_t enqueue(std::size_t queue, std::string what, std::vector<Range> ranges, Work work) {
    const Held held(*this);
    Queue& own = queues_[queue];
    merge(own.clock, host_);
    const std::uint64_t sequence = ++own.enqueued;
    check_order(queue, sequence, what, ranges);
    own.pending.push_back(
        {.sequence = sequence, .work = std::move(work), .ranges = std::move(ranges)});
    counts_.pending_most = std::max<std::uint64_t>(counts_.pending_most, own.pending.size());
    run_some();
    return sequence;
  }
  Mark record(std::size_t queue) {
    const Held held(*this);
    Queue& own = queues_[queue];
    merge(own.clock, host_);
    Mark mark{queue, own.enqueued, own.clock, std::chrono::steady_clock::now()};
    at(mark.clock, queue) = own.enqueued;
    return mark;
  }
  /// Makes work that is enqueued in `queue` later run after the mark.
  void wait(std::size_t queue, const Mark& mark) {
    const Held held(*this);
    if (mark.sequence == 0 || mark.queue == queue) return;
    Queue& own = queues_[queue];
    merge(own.clock, mark.clock);
    own.pending.push_back({.sequence = ++own.enqueued, .after = mark, .waits = true});
    run_some();
  }
  bool passed(const Mark& mark) {
    const Held held(*this);
    if (queues_[mark.queue].done < mark.sequence) return false;
    merge(host_, mark.clock);
    return true;
  }
  /// The host waits for the mark.
  void finish(const Mark& mark) {
    const Held held(*this);
    ++counts_.waits;
    run_until(mark.queue, mark.sequence);
    merge(host_, mark.clock);
  }
  void finish_all() {
    const Held held(*this);
    for (std::size_t queue = 0; queue < queues_.size(); ++queue) finish(record(queue));
    for (Queue& queue : queues_) queue.accesses.clear();
  }
  bool idle(std::size_t queue) {
    const Held held(*this);
    return queues_[queue].pending.empty();
  }
  bool all_idle() {
    const Held held(*this);
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const Queue& queue) { return queue.pending.empty(); });
  }
  /// True if pending work uses the memory.
  bool is_used(const Range& range) {
    const Held held(*this);
    for (const Queue& queue : queues_) {
      for (const Operation& operation : queue.pending) {
        for (const Range& used : operation.ranges) {
          if (used.overlaps(range)) return true;
        }
      }
    }
    return false;
  }
  /// Notes that the host itself uses memory, through a queue that it has waited for.
  void touch(std::size_t queue, const std::string& what, const std::vector<Range>& ranges) {
    const Held held(*this);
    Queue& own = queues_[queue];
    merge(own.clock, host_);
    check_order(queue, ++own.enqueued, what, ranges);
    own.pending.push_back({.sequence = own.enqueued});
    run_until(queue, own.enqueued);
    at(host_, queue) = own.enqueued;
  }
  Counts counts() {
    const Held held(*this);
    return counts_;
  }
  /// Descriptions of the first races.
  std::vector<std::string> races() {
    const Held held(*this);
    return races_;
  }
  void forget_counts() {
    const Held held(*this);
    counts_ = {};
    races_.clear();
  }

 private:
  struct Operation {
    std::uint64_t sequence = 0;
    Mark after{};
    bool waits = false;  // for `after`, and does nothing
    Work work{};
    std::vector<Range> ranges{};
  };
  struct Access {
    Range range;
    std::uint64_t sequence = 0;
    std::string what;
  };
  struct Queue {
    std::deque<Operation> pending{};
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    Clock clock{};
    std::vector<Access> accesses{};  // that another queue may not be ordered after
  };
  /// The lock. The last to release it destroys what has run.
  class Held {
   public:
    explicit Held(LateQueues& queues) : queues_(queues), lock_(queues.mutex_) { ++queues_.depth_; }
    ~Held() {
      if (--queues_.depth_ > 0) return;
      const std::vector<Work> ran = std::exchange(queues_.ran_, {});
      lock_.unlock();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    LateQueues& queues_;
    std::unique_lock<std::recursive_mutex> lock_;
  };

  static std::uint64_t& at(Clock& clock, std::size_t queue) {
    if (clock.size() <= queue) clock.resize(queue + 1, 0);
    return clock[queue];
  }
  static void merge(Clock& into, const Clock& from) {
    for (std::size_t i = 0; i < from.size(); ++i) at(into, i) = std::max(at(into, i), from[i]);
  }
  void check_order(std::size_t queue, std::uint64_t sequence, const std::string& what,
                   const std::vector<Range>& ranges) {
    Queue& own = queues_[queue];
    for (std::size_t other = 0; other < queues_.size(); ++other) {
      if (other == queue) continue;
      const std::uint64_t known = at(own.clock, other);
      for (const Access& access : queues_[other].accesses) {
        if (access.sequence <= known) continue;
        for (const Range& range : ranges) {
          const bool writes = access.range.written || range.written;
          if (writes && access.range.overlaps(range)) {
            note_race(queue, what, range, other, access);
          }
        }
      }
    }
    for (const Range& range : ranges) own.accesses.push_back({range, sequence, what});
    if (own.accesses.size() % 256 == 0) forget_what_all_know(queue);
  }
  void note_race(std::size_t queue, const std::string& what, const Range& range, std::size_t other,
                 const Access& access) {
    constexpr std::size_t described = 16;
    ++counts_.races;
    if (races_.size() >= described) return;
    races_.push_back(
        what + " in queue " + std::to_string(queue) + (range.written ? " writes" : " reads") +
        " what " + access.what + " in queue " + std::to_string(other) +
        (access.range.written ? " writes" : " reads") + ", and nothing orders the two");
  }
  void forget_what_all_know(std::size_t queue) {
    std::uint64_t known = ~std::uint64_t{0};
    for (std::size_t other = 0; other < queues_.size(); ++other) {
      if (other != queue) known = std::min(known, at(queues_[other].clock, queue));
    }
    std::erase_if(queues_[queue].accesses,
                  [known](const Access& access) { return access.sequence <= known; });
  }
  void run_next(std::size_t queue) {
    Operation operation = std::move(queues_[queue].pending.front());
    queues_[queue].pending.pop_front();
    if (operation.waits) run_until(operation.after.queue, operation.after.sequence);
    queues_[queue].done = operation.sequence;
    ++counts_.ran;
    if (!operation.work) return;
    ran_.push_back(std::move(operation.work));
    const Work work = ran_.back();  // may enqueue: `ran_` grows
    work();
  }
  void run_until(std::size_t queue, std::uint64_t sequence) {
    while (queues_[queue].done < sequence && !queues_[queue].pending.empty()) run_next(queue);
  }
  void run_some() {
    if (order_ == Order::Late || running_) return;
    struct Running {
      explicit Running(bool& flag) : is(flag) { is = true; }
      ~Running() { is = false; }
      bool& is;
    };
    const Running running(running_);
    for (std::size_t queue = 0; queue < queues_.size(); ++queue) {
      std::size_t count = queues_[queue].pending.size();
      if (order_ == Order::Random) count = std::min<std::size_t>(count, random_() % 4);
      while (count-- != 0 && !queues_[queue].pending.empty()) run_next(queue);
    }
  }

  std::recursive_mutex mutex_;
  int depth_ = 0;
  Order order_ = Order::Late;
  std::mt19937_64 random_{1};
  std::deque<Queue> queues_;
  Clock host_;
  bool running_ = false;
  Counts counts_;
  std::vector<std::string> races_;
  std::vector<Work> ran_;  // destroyed when the lock is free
};

}  // namespace artesian::test_support
