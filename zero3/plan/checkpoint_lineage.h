// Decides which checkpoint of a folder is the newest and which may be removed: by descent, not by
// step. A run that resumes from an older checkpoint no longer owns the later ones; neither these
// nor checkpoints of other runs are ever taken for the newest, or removed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace artesian::zero3 {

struct CheckpointLink {
  std::uint64_t id = 0;       // random, never 0
  std::uint64_t parent = 0;   // id of the run's previous checkpoint; 0: none
  std::uint64_t lineage = 0;  // chosen at step 0, inherited when a run resumes
  std::uint64_t serial = 0;   // one more than the parent's

  bool operator==(const CheckpointLink&) const = default;
};

/// A checkpoint in a folder, by its manifest.
struct FoundCheckpoint {
  std::string tag{};
  CheckpointLink link{};
  std::uint64_t step = 0;
};

/// Indices into `found` of the checkpoint with this tag and of its ancestors, newest first; empty
/// if there is no such tag. The line ends at a parent that is missing or invalid.
std::vector<std::size_t> line_of(const std::vector<FoundCheckpoint>& found, const std::string& tag);

/// The tag of the checkpoint that was saved last, by its serial; empty if there is none.
std::string newest_of(const std::vector<FoundCheckpoint>& found);

/// Returns the checkpoints that may be removed, oldest first: the line of `latest` except its
/// newest `keep`; none if `keep` is 0.
std::vector<std::size_t> to_prune(const std::vector<FoundCheckpoint>& found,
                                  const std::string& latest, std::uint32_t keep);

/// The space that checkpoints will need beyond what they use now.
struct CheckpointRoom {
  std::uint64_t checkpoint_bytes = 0;  // bytes of one checkpoint
  std::uint64_t saves = 1;             // the most saves to come; 0: no limit
  std::uint32_t keep = 2;              // checkpoints kept; 0: all
  std::uint64_t present = 0;           // existing checkpoints that count towards `keep`
  std::uint64_t spares = 0;            // existing files with reserved space
};
/// Returns bytes. A checkpoint is removed only when the next one is durable, so one more than
/// `keep` may exist at once. Returns the largest number if neither `saves` nor `keep` is limited.
std::uint64_t bytes_to_come(const CheckpointRoom& room) noexcept;

/// True if training waits for most of the time in which a checkpoint is written: writing takes more
/// than a second, and the folder's rate is less than half of that of the state's disks. Rates are
/// bytes per second; 0 means an unknown folder rate, or state that is on no disk.
bool holds_up_training(std::uint64_t checkpoint_bytes, double folder_rate,
                       double state_rate) noexcept;

}  // namespace artesian::zero3
