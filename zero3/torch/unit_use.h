// Internal parts of UnitUses: its record of each module call in the graph, and the note that a
// destroyed use leaves. A use holds no nodes; hooks on its nodes hold the use.
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

inline constexpr int no_task = -1;  // stands for "no autograd graph task"

inline int current_task() {
  return torch::autograd::get_current_graph_task_id();
}

/// True if the current task accumulates the gradient that this node gets, rather than returning it
/// to the caller.
inline bool accumulates_in_current_task(torch::autograd::Node* accumulator) {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) return true;
  const auto found = info->find(accumulator);
  return found != info->end() && found->second.needed_;
}

/// True if the caller has hooks on this leaf's gradient where autograd accumulates it.
inline bool has_hooks(const torch::autograd::Node& accumulator) {
  auto& node = const_cast<torch::autograd::Node&>(accumulator);
  return !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

/// Note left by a use that was destroyed while it held its accesses.
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
    if (getpid() != process) return;  // a forked child does not read the notes
    Word* given = word.release();
    given->next = words.load(std::memory_order_relaxed);
    while (!words.compare_exchange_weak(given->next, given, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
  }

  /// Calls with the link's target, under its lock. Returns false if the target is gone.
  template <typename Call>
  bool with_uses(const Call& call) {
    const std::lock_guard held(mutex);
    if (uses != nullptr) call(*uses);
    return uses != nullptr;
  }

  /// Locked in each function and hook of UnitUses. No thread waits for it while holding Python's
  /// GIL, as the lock's holder may need the GIL. Recursive: code under it may run Python, which may
  /// call again.
  std::recursive_mutex mutex;
  UnitUses* uses;  // null once UnitUses is destroyed
  std::atomic<Word*> words{nullptr};
  std::atomic<std::size_t> alive{0};
  std::vector<std::atomic<std::uint32_t>> awaited;  // by unit: uses that backward may still reach
  const pid_t process = getpid();
};

struct UnitUses::Use {
  struct Ender {
    std::weak_ptr<torch::autograd::Node> node;
    std::vector<std::uint32_t> parameters;  // parameters whose gradients are taken at this ender
  };
  struct Sum {
    std::uint32_t parameter = 0;
    std::uint32_t left = 0;  // edges whose nodes have not run yet
    Held held{};
  };
  /// Progress of backward in a use, within one graph task.
  struct Opened {
    int task = no_task;
    bool open = false;
    std::uint32_t left = 0;  // enders that have not run yet
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
  /// Backward has passed this use, or never will.
  void came_by() noexcept {
    if (!std::exchange(awaited, false)) return;
    for (const std::uint32_t unit : units) {
      link->awaited[unit].fetch_sub(1, std::memory_order_relaxed);
    }
  }
  bool is_open_in(int current) const noexcept { return inner.open && inner.task == current; }

  const std::shared_ptr<Link> link;
  const std::vector<std::uint32_t>
      stages;  // the module's stages, and others' whose parameters it reads
  const std::vector<std::uint32_t> units;     // their units, each once
  const std::vector<std::uint32_t> accesses;  // accesses to enter for these stages in backward
  std::vector<Ender> enders;
  std::unique_ptr<Word> word;
  bool awaited = true;         // whether it is counted in Link::awaited
  bool holds = false;          // whether it holds its accesses
  Opened inner;                // the task that opened it last
  std::vector<Opened> around;  // outer tasks in which it is open, outermost first
};

}  // namespace artesian::zero3
