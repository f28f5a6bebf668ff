// RunRanks: the ranks that a launcher has started to train one model together, and what rank 0
// does for all of them: it logs, prints and saves, with figures of all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "comm/group.h"
#include "comm/launch.h"
#include "tools/train/train.h"
#include "zero3/step/step_result.h"

namespace artesian::tools {

class RunRanks {
 public:
  /// This process alone.
  RunRanks() = default;
  /// Of the environment. Errors: Invalid, naming the variable.
  static Result<RunRanks> find();

  /// Meets the others, and waits so long for one that does not come or answer. Errors: PeerLost,
  /// Unsupported.
  Result<void> connect(double timeout_seconds);

  std::uint32_t rank() const noexcept { return launch_.place.rank; }
  std::uint32_t ranks() const noexcept { return launch_.place.ranks; }
  std::uint32_t local_ranks() const noexcept { return launch_.place.local_ranks; }
  bool several() const noexcept { return ranks() > 1; }
  /// True for the one that logs, prints and saves.
  bool first() const noexcept { return rank() == 0; }
  /// What concerns the run, rank 0 says; what concerns a machine, its first rank.
  LogLevel log_level(const TrainOptions& options) const noexcept {
    if (first()) return options.quiet ? LogLevel::Warning : LogLevel::Info;
    return launch_.place.local_rank == 0 ? LogLevel::Warning : LogLevel::Error;
  }
  /// Null for one rank, or before connect().
  comm::Group* group() const noexcept { return group_.get(); }
  /// What errors begin with.
  std::string program() const;
  /// The options as they are for this rank: rank 0 alone writes a log, prints and saves, and "cuda"
  /// is a GPU of its own.
  TrainOptions of_rank(TrainOptions options) const;

  /// The step's figures of all ranks: bytes are summed, of peaks the largest is taken. Every rank
  /// calls it alike. Errors: the group's.
  Result<zero3::StepResult> of_all(zero3::StepResult result) const;

 private:
  comm::Launch launch_;
  std::unique_ptr<comm::Group> group_;
};

}  // namespace artesian::tools
