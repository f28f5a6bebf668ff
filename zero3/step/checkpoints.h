// Checkpoints: saves the state of a training. A save is one pass that reads all state, between two
// steps, while blocks go to the checkpoint's files. Its faults never touch the training: they are
// what finish() says, and the former checkpoint stays. The way back is checkpoint_load.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "pinned/pool.h"
#include "zero3/plan/saved_units.h"
#include "zero3/step/checkpoint_saver.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// Where checkpoints go.
struct CheckpointPlace {
  std::string directory{};  // made if the folder above it exists
  std::uint32_t keep = 2;   // newest ones of this run's line; 0: all
  /// True if the room of the next one is taken at once, and kept.
  bool reserve = true;
  double stall_seconds = 10.0;    // after which a target that does not answer is given up
  double commit_seconds = 600.0;  // after which finish() no longer waits for syncs and renames
};

/// What goes into a checkpoint beside the state of the training.
struct SaveRequest {
  std::string directory{};                       // empty: the folder that is open
  std::string tag{};                             // empty: "global_stepN"
  std::map<std::string, std::string> client{};   // files of the caller's, by name
  std::map<std::string, std::string> model{};    // files of the model's folder, by name
  std::optional<SavedTrainer> trainer{};         // data position and identity
  std::string config{};                          // the configuration's text
  std::map<std::string, std::string> machine{};  // what bits depend on: threads, instruction set
  std::map<std::string, std::string> random{};   // states of generators
};

class Checkpoints {
 public:
  /// All must outlive it. `run_id`: of this process's run.
  Checkpoints(const std::vector<ParameterSpec>& parameters, const Placement& placement,
              Optimizer& optimizer, FileSystem& files, std::uint64_t run_id);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Opens the folder, recovers what a run that was killed has left, and takes the room of one
  /// checkpoint; puts zero_to_fp32.py there. Errors: Busy, NoSpace, Io, Invalid, Timeout.
  Result<void> open(const CheckpointPlace& place);
  bool is_open() const noexcept { return saver_ != nullptr; }
  /// What the folder held then.
  const FolderContent& found() const noexcept { return saver_->found(); }
  const std::string& directory() const noexcept { return directory_; }
  /// The checkpoint that comes next descends from this one.
  void go_on_from(const CheckpointLink& link) noexcept { saver_->go_on_from(link); }
  /// Bytes of a checkpoint's data.
  std::uint64_t data_bytes() const noexcept;

  /// Reads all state, which is that of a step that is complete, and starts to make a checkpoint of
  /// it. What the save itself fails by is finish()'s. Errors: of the tiers: Io, Corrupt, Timeout.
  Result<void> save(const SaveRequest& request, TrainingState state,
                    std::vector<SavedGroup> groups);
  /// Waits until the checkpoint is durable. After each save(), whatever came of it. Errors: what
  /// the save failed by: NoSpace, Io, Timeout (it may still become durable), Busy (so may the one
  /// before), Invalid (tag, names); or the tiers' error.
  Result<SavedCheckpoint> finish();
  /// Gives the reserved room back. Errors: Busy, Io, Timeout.
  Result<void> close() noexcept;

 private:
  void end_former_save();
  void write_script(double stall_seconds) const;
  Result<void> begin_save(const std::string& tag, std::uint64_t step);
  Result<void> link_frozen();
  Result<void> copy_state();
  CheckpointManifest manifest_of(const SaveRequest& request, TrainingState state,
                                 std::vector<SavedGroup> groups) const;
  void remember_frozen(const SavedCheckpoint& saved);

  const std::vector<ParameterSpec>& parameters_;
  Optimizer& optimizer_;
  FileSystem& files_;
  const std::uint64_t run_id_;
  const SavedUnits trained_;
  const SavedUnits frozen_;
  std::shared_ptr<const CheckpointLayout> trained_layout_;
  std::shared_ptr<const CheckpointLayout> frozen_layout_;  // null: nothing is frozen
  std::unique_ptr<pinned::Pool> buffers_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::string directory_;
  double commit_seconds_ = 0.0;
  // Of the save under way:
  std::optional<Error> not_begun_;  // why it has not begun
  tiering::SnapshotFile* trained_file_ = nullptr;
  tiering::SnapshotFile* frozen_file_ = nullptr;  // null: there is none, or it is linked
  // Of the last one that was durable:
  std::string frozen_tag_;  // whose file of frozen parameters is linked
  std::optional<SavedDataFile> frozen_record_;
};

}  // namespace artesian::zero3
