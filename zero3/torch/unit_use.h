// UnitUses' own: what it keeps of each call of a module in the graph, and how a use that dies tells
// of it. A use holds no node; hooks of its nodes hold it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

inline constexpr int no_task = -1;  // instead of an autograd graph task

inline int current_task() {
  return torch::autograd::get_current_graph_task_id();
}

/// True if the task accumulates what this node gets, rather than handing it to the caller.
inline bool accumulates_in_current_task(torch::autograd::Node* accumulator) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) return true;
  const auto found = info->find(accumulator);
  return found != info->end() && found->second.needed_;
}

/// True if the caller looks at this leaf's gradient where autograd accumulates it.
inline bool has_hooks(const torch::autograd::Node& accumulator) {
  auto& node = const_cast<torch::autograd::Node&>(accumulator);
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

/// Left by a use that died while it held its accesses.
struct UnitUses::Word {
  std::vector<std::uint32_t> accesses{};
  Word* next = nullptr;
};

struct UnitUses::Link {
  Link(UnitUses* owner, std::size_t units) : uses(owner), awaited(units) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { forget(words.exchange(nullptr)); }

  static void forget(Word* word) {
    while (word != nullptr) delete std::exchange(word, word->next);
  }
  void leave_word(std::unique_ptr<Word> word) noexcept {
    if (getpid() != process) return;  // a forked child has no reader
    Word* given = word.release();
    given->next = words.load(std::memory_order_relaxed);
    while (!words.compare_exchange_weak(given->next, given, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
  }

  /// Calls with the link's target under its lock. False if the target is gone.
  template <typename Call>
  bool with_uses(const Call& call) {
    const std::lock_guard held(mutex);
    if (uses != nullptr) call(*uses);
    return uses != nullptr;
  }

  /// Held in each function and hook of UnitUses. Nobody waits for it with Python's GIL held, as its
  /// holder may need that. Recursive: what is done under it may run Python, and so call again.
  std::recursive_mutex mutex;
  UnitUses* uses;  // null once it is destroyed
  std::atomic<Word*> words{nullptr};
  std::atomic<std::size_t> alive{0};
  std::vector<std::atomic<std::uint32_t>> awaited;  // by unit: uses that backward may still reach
  const pid_t process = getpid();
};

struct UnitUses::Use {
  struct Ender {
    std::weak_ptr<torch::autograd::Node> node;
    std::vector<std::uint32_t> parameters;  // whose gradients are taken there
  };
  struct Sum {
    std::uint32_t parameter = 0;
    std::uint32_t left = 0;  // edges whose nodes have not run
    Held held{};
  };
  /// Keeps how far backward is with the use in one graph task.
  struct Opened {
    int task = no_task;
    bool open = false;
    std::uint32_t left = 0;  // enders that have not run
    std::vector<Sum> sums{};
  };

  Use(std::shared_ptr<Link> owner, const std::vector<std::uint32_t>& its_stages,
      std::vector<std::uint32_t> its_units, std::vector<std::uint32_t> its_accesses)
      : link(std::move(owner)),
        stages(its_stages),
        units(std::move(its_units)),
        accesses(std::move(its_accesses)),
        word(std::make_unique<Word>()) {
    link->alive.fetch_add(1, std::memory_order_relaxed);
    for (const std::uint32_t unit : units) {
      link->awaited[unit].fetch_add(1, std::memory_order_relaxed);
    }
    word->accesses = accesses;
  }
  ~Use() {
    link->alive.fetch_sub(1, std::memory_order_relaxed);
    came_by();
    if (holds) link->leave_word(std::move(word));
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Sum& sum_of(std::uint32_t parameter) {
    for (Sum& sum : inner.sums) {
      if (sum.parameter == parameter) return sum;
    }
    return inner.sums.emplace_back(Sum{.parameter = parameter});
  }
  /// Backward has been here, or never will be.
  void came_by() noexcept {
    if (!std::exchange(awaited, false)) return;
    for (const std::uint32_t unit : units) {
      link->awaited[unit].fetch_sub(1, std::memory_order_relaxed);
    }
  }
  bool is_open_in(int current) const noexcept { return inner.open && inner.task == current; }

  const std::shared_ptr<Link> link;
  const std::vector<std::uint32_t> stages;    // the module's, and others' that it reads
  const std::vector<std::uint32_t> units;     // each of these once
  const std::vector<std::uint32_t> accesses;  // accesses to enter for them in backward
  std::vector<Ender> enders;
  std::unique_ptr<Word> word;
  bool awaited = true;         // counted in Link::awaited
  bool holds = false;          // its accesses
  Opened inner;                // the task that opened it last
  std::vector<Opened> around;  // outer tasks that have it open, the outermost first
};

}  // namespace artesian::zero3
