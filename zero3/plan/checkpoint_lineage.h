// Which checkpoint of a folder is the newest, and which may go: by descent, not by step. A run that
// goes on from an older checkpoint leaves a future behind that is no longer its own; neither it nor
// what a stranger put there is ever taken for the newest, or removed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::zero3 {

struct CheckpointLink {
  std::uint64_t id = 0;       // random, not 0
  std::uint64_t parent = 0;   // id of the run's checkpoint before it; 0: none
  std::uint64_t lineage = 0;  // fixed at step 0, inherited at resume
  std::uint64_t serial = 0;   // one more than the parent's

  bool operator==(const CheckpointLink&) const = default;
};

/// A checkpoint in a folder, by its manifest.
struct FoundCheckpoint {
  std::string tag{};
  CheckpointLink link{};
  std::uint64_t step = 0;
};

/// Indices into `found` of the checkpoint of this tag and of those it descends from, newest first;
/// none if there is no such tag. A parent that is not there, or could not be one, ends the line.
std::vector<std::size_t> line_of(const std::vector<FoundCheckpoint>& found, const std::string& tag);

/// The tag of the one that was saved last, by its serial; empty: there is none.
std::string newest_of(const std::vector<FoundCheckpoint>& found);

/// Picks those that may be removed, oldest first: all of the line of `latest` but its newest
/// `keep`; 0: none.
std::vector<std::size_t> to_prune(const std::vector<FoundCheckpoint>& found,
                                  const std::string& latest, std::uint32_t keep);

/// The space that checkpoints need beyond what they use now.
struct CheckpointRoom {
  std::uint64_t checkpoint_bytes = 0;  // bytes of one checkpoint
  std::uint64_t saves = 1;             // the most saves to come; 0: without end
  std::uint32_t keep = 2;              // 0: all
  std::uint64_t present = 0;           // existing checkpoints that count against `keep`
  std::uint64_t spares = 0;            // existing files of reserved space
};
/// Bytes. A checkpoint is removed only when the next one is durable, so that one more than are kept
/// exist at once. The largest number there is where `saves` and `keep` have no end.
std::uint64_t bytes_to_come(const CheckpointRoom& room) noexcept;

/// True if a folder of checkpoints makes the training wait for most of the time that one is
/// written: that is more than a second, and the folder takes less than half of what the disks of
/// the state do. Rates are bytes a second; 0: of the folder, not known; of the state, it is on
/// none.
bool holds_up_training(std::uint64_t checkpoint_bytes, double folder_rate,
                       double state_rate) noexcept;

}  // namespace artesian::zero3
