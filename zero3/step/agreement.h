// Agreement: what several ranks tell each other beside gradients and parameters, so that each comes
// to the same verdict by itself: what it is about to do, its losses, whether it was asked to stop.
// Each says it in the same number of bytes, and a rank that is about to do something else is an
// error on all of them, before any gradient could be taken for another one.
//
// With one rank it answers at once.
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
  /// `group`: null with one rank; else it outlives this.
  explicit Agreement(comm::Group* group) noexcept : group_(group) {}

  std::uint32_t ranks() const noexcept { return group_ == nullptr ? 1 : group_->ranks(); }

  /// Facts that must be equal on all ranks: (name, value) in the same order. Errors: Invalid,
  /// naming the first difference, the rank and both values; the group's.
  using Facts = std::vector<std::pair<std::string, std::string>>;
  Result<void> compare(const Facts& facts);
  /// Returns rank 0's value.
  Result<std::uint64_t> of_first(std::uint64_t value, const char* what);
  Result<std::uint64_t> least(std::uint64_t value, const char* what);

  /// Ends the forward of a group of micro-batches of step `step`, before which `done` are done.
  /// Returns all ranks' losses by micro-batch, then rank. Errors: Invalid, where ranks are about to
  /// do different things, which ends the run; or one has refused its batch: refused(). The group's.
  /// Of a model that somebody else runs it is the end of a micro-batch's backward.
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
    bool stop = false;         // some rank was asked to
  };
  /// Begins the update of step `step`. `constants`: a digest of what all ranks must update with.
  /// Errors: as end_forward.
  Result<StepFacts> step(std::uint64_t step, std::uint64_t done, std::uint64_t tokens, bool stop,
                         std::uint64_t constants = 0);
  /// Before the ranks send each other shares of units that they enter alike: `first` is one of
  /// them, `units` a digest of all, and of which a share is missing. Returns whether all are
  /// `ready`. Errors: as end_forward; the message has `name_of` for a unit.
  struct Entry {
    std::uint64_t first = 0;
    std::uint64_t units = 0;
    bool evaluates = false;
    bool ready = false;
  };
  Result<bool> enter(std::uint64_t step, std::uint64_t done, const Entry& entry,
                     const std::function<std::string(std::uint64_t unit)>& name_of);
  /// It becomes what it is on rank 0.
  Result<void> take_first(std::vector<std::uint32_t>& values, const char* what);

 private:
  enum class Kind : std::uint32_t { EndForward, Step, Enter, Evaluate, EndEvaluation, Refuse };
  struct Control;
  Result<std::vector<Control>> tell(const Control& mine, const char* what);

  comm::Group* const group_;
  bool refused_ = false;
};

}  // namespace artesian::zero3
