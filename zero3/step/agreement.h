// Agreement: what ranks exchange besides gradients and parameters, so that all reach the same
// decisions: what each is about to do, its losses, and whether it was asked to stop. All messages
// have the same length. A rank that is about to do something else causes an error on all ranks,
// before any gradient could be mistaken for another.
//
// With one rank nothing is exchanged.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"

namespace artesian::zero3 {

class Agreement {
 public:
  /// `group`: null with one rank; otherwise it must outlive this object.
  explicit Agreement(comm::Group* group) noexcept : group_(group) {}

  std::uint32_t ranks() const noexcept { return group_ == nullptr ? 1 : group_->ranks(); }

  /// Facts that must be equal on all ranks: (name, value) in the same order. Errors: Invalid,
  /// naming the first difference, the rank and both values; the group's.
  using Facts = std::vector<std::pair<std::string, std::string>>;
  Result<void> compare(const Facts& facts);
  /// Returns rank 0's value on all ranks.
  Result<std::uint64_t> of_first(std::uint64_t value, const char* what);
  Result<std::uint64_t> least(std::uint64_t value, const char* what);

  /// Ends the forward of a group of micro-batches in step `step`, after `done` micro-batches.
  /// Returns all ranks' losses by micro-batch, then rank. Errors: Invalid: the ranks are about to
  /// do different things, which ends the run, or one has refused its batch: refused(); the group's.
  /// For a hooked model it is called at the end of a micro-batch's backward.
  Result<std::vector<double>> end_forward(std::uint64_t step, std::uint64_t done,
                                          std::span<const double> losses);
  /// Of a rank whose batch cannot be taken, in place of its next call in that pass: the others'
  /// fails, be it end_forward, enter or end_evaluation. Errors: the group's.
  Result<void> refuse(std::uint64_t step, std::uint64_t done);
  /// Ends a pass without gradients, where ranks bring each other their shares of parameters.
  /// Errors: as end_forward.
  Result<void> end_evaluation(std::uint64_t step, std::uint64_t done);
  /// True if the last call failed because some rank has refused its batch.
  bool refused() const noexcept { return refused_; }

  struct StepFacts {
    std::uint64_t tokens = 0;  // tokens of all ranks
    bool stop = false;         // some rank was asked to stop
  };
  /// Begins the update of step `step`. `constants`: digest of the update's constants, which must be
  /// the same on all ranks. Errors: as end_forward.
  Result<StepFacts> step(std::uint64_t step, std::uint64_t done, std::uint64_t tokens, bool stop,
                         std::uint64_t constants = 0);
  /// Called before the ranks exchange shares of units that all enter: `first` is one of these
  /// units, `units` a digest of all, and of those with missing shares. Returns whether all ranks
  /// are `ready`. Errors: as end_forward; the message has `name_of` for a unit.
  struct Entry {
    std::uint64_t first = 0;
    std::uint64_t units = 0;
    bool evaluates = false;
    bool ready = false;
  };
  Result<bool> enter(std::uint64_t step, std::uint64_t done, const Entry& entry,
                     const std::function<std::string(std::uint64_t unit)>& name_of);
  /// Sets the values to those of rank 0.
  Result<void> take_first(std::vector<std::uint32_t>& values, const char* what);

 private:
  enum class Kind : std::uint32_t { EndForward, Step, Enter, Evaluate, EndEvaluation, Refuse };
  struct Control;
  Result<std::vector<Control>> tell(const Control& mine, const char* what);

  comm::Group* const group_;
  bool refused_ = false;
};

}  // namespace artesian::zero3
