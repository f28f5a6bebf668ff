// RunRanks: the ranks that a launcher has started to train one model together. Rank 0 logs, prints
// and saves for all of them, with figures over all ranks.
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
  /// Only this process.
  RunRanks() = default;
  /// Reads the launcher's environment. Errors: Invalid, naming the variable.
  static Result<RunRanks> find();

  /// Connects the ranks, with this timeout for ranks that do not appear or answer. Errors:
  /// PeerLost, Unsupported.
  Result<void> connect(double timeout_seconds);

  std::uint32_t rank() const noexcept { return launch_.place.rank; }
  std::uint32_t ranks() const noexcept { return launch_.place.ranks; }
  std::uint32_t local_ranks() const noexcept { return launch_.place.local_ranks; }
  bool several() const noexcept { return ranks() > 1; }
  /// True for the rank that logs, prints and saves.
  bool first() const noexcept { return rank() == 0; }
  /// The log level: messages about the run come from rank 0, messages about a machine from its
  /// first rank.
  LogLevel log_level(const TrainOptions& options) const noexcept {
    if (first()) return options.quiet ? LogLevel::Warning : LogLevel::Info;
    return launch_.place.local_rank == 0 ? LogLevel::Warning : LogLevel::Error;
  }
  /// Null with one rank, or before connect().
  comm::Group* group() const noexcept { return group_.get(); }
  /// The program name with which errors begin.
  std::string program() const;
  /// Returns the options for this rank: only rank 0 writes a log, prints and saves, and "cuda"
  /// becomes the rank's own GPU.
  TrainOptions of_rank(TrainOptions options) const;

  /// The step's figures over all ranks: bytes are summed, the largest peaks are used, and the rank
  /// that the others waited for is named. Every rank must call it. Errors: the group's.
  Result<zero3::StepResult> of_all(zero3::StepResult result) const;

 private:
  comm::Launch launch_;
  std::unique_ptr<comm::Group> group_;
};

}  // namespace artesian::tools
