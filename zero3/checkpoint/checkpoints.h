// Checkpoints: saves the state of a training. A fault of a save does not affect the training:
// finish() returns it, and the previous checkpoint remains. checkpoint_load.h loads checkpoints.
//
// Note [Copied as it passes]: from step() until the next backward, all state belongs to one step,
// or will once the step's pending update is applied. So a save begins at step(), and each sub-group
// is copied when the update writes it (add), without extra reads. State that the update does not
// pass through is read in one pass when the update is complete (copy_rest): state updated under
// backward or by a separate device, frozen state, and all state after a skipped step. If the caller
// announces before a step's last backward that the step will be saved (expect), state updated under
// that backward is copied there; if that update is rolled back, the copies are dropped (forget).
// Copies use buffers of the save's own, so that a slow target does not hold items of the staging
// ring. The training waits for the target as long as writes complete, and at most
// CheckpointPlace::stall_seconds if none does.
//
// Note [By several ranks]: each rank writes the file of its own shares, and only rank 0 opens the
// folder. Shares of frozen units are sent to rank 0, which writes all of them, mostly once a run.
// Rank 0 begins the checkpoint, and the others join it. At commit() each rank makes its file
// durable and reports that; rank 0 publishes only when all files are durable, so that a checkpoint
// with a name is complete. If the save fails on one rank, it fails on all, and the training
// continues. All ranks make the same calls, and commit() returns when the checkpoint is durable or
// has failed. Only rank 0 knows whether a late save blocks the next one, but under_way() must be
// the same on all ranks; so the begin of the next save fails instead, on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/executor.h"
#include "base/result.h"
#include "pinned/pool.h"
#include "zero3/checkpoint/checkpoint_saver.h"
#include "zero3/checkpoint/state_snapshot.h"
#include "zero3/plan/saved_units.h"
#include "zero3/step/optimizer.h"

namespace artesian::zero3 {

/// Where and how checkpoints are kept.
struct CheckpointPlace {
  std::string directory{};  // created if its parent exists
  std::uint32_t keep = 2;   // checkpoints of this run's line to keep, the newest ones; 0: all
  /// True: the space of the next checkpoint is reserved at once, and kept.
  bool reserve = true;
  double probe_seconds = 0.0;     // duration of a probe write that measures the folder; 0: none
  double stall_seconds = 10.0;    // a target that does not answer for this long is abandoned
  double commit_seconds = 600.0;  // a save waits at most this long for syncs and renames
  tiering::MakeSnapshotEngine make_engine = nullptr;  // null: the best engine available
};

/// A module's buffer: `bytes` hold it in row-major order, with its type and shape.
struct BufferToSave {
  SavedBuffer buffer{};
  std::span<const std::byte> bytes{};  // valid until the call that begins the save returns
};

/// The content of a checkpoint beside the state of the training.
struct SaveRequest {
  std::string directory{};                      // empty: the open folder
  std::string tag{};                            // empty: "global_stepN"
  std::map<std::string, std::string> client{};  // files of the caller's, by name
  std::map<std::string, std::string> model{};   // files of the model's folder, by name
  std::optional<SavedTrainer> trainer{};        // data position and identity
  std::string config{};                         // the text of the configuration
  std::map<std::string, std::string>
      machine{};  // facts that results depend on: threads, instruction set
  std::map<std::string, std::string> random{};  // states of random generators
  std::vector<BufferToSave> buffers{};
  std::vector<std::pair<std::string, std::string>>
      aliases{};                // pairs: another name, the parameter's name
  bool exclude_frozen = false;  // leave out frozen parameters, which the loader must then supply
  // which existing checkpoint with the tag may be replaced
  Replaces replaces = Replaces::OwnLineage;
  Latest latest = Latest::Becomes;  // whether a resume without a tag uses this one
  /// Called with the bytes copied so far and the total; within calls of the engine, until all state
  /// is copied. It must not throw.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = nullptr;
};

/// The parts of the training that a save needs. All must outlive it.
struct CheckpointSources {
  const std::vector<ParameterSpec>& parameters;
  const Placement& placement;
  Optimizer& optimizer;
  Executor& team;  // threads that copy
  FileSystem& files;
  std::uint64_t run_id;          // of this process's run
  comm::Group* group = nullptr;  // set if several ranks save together: Note [By several ranks]
};

class Checkpoints {
 public:
  explicit Checkpoints(const CheckpointSources& from);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Opens the folder, recovers what a killed run has left, reserves the space of one checkpoint,
  /// and puts zero_to_fp32.py there. Errors: Busy, NoSpace, Io, Invalid, Timeout.
  Result<void> open(const CheckpointPlace& place);
  bool is_open() const noexcept { return saver_ != nullptr; }
  /// Returns what the folder contained then.
  const FolderContent& found() const noexcept {
    ARTESIAN_CHECK(is_open());
    return saver_->found();
  }
  const std::string& directory() const noexcept { return directory_; }
  /// Probed write rate in bytes per second; 0: not probed.
  double write_rate() const noexcept {
    return from_.group == nullptr ? saver_->write_rate() : write_rate_;
  }
  /// Makes the next checkpoint a descendant of this one.
  void go_on_from(const CheckpointLink& link) noexcept {
    ARTESIAN_CHECK(is_open());
    saver_->go_on_from(link);
  }
  /// Bytes of a checkpoint's data, of all ranks.
  std::uint64_t data_bytes() const noexcept;

  /// True if a save has begun, and finish() has neither returned its outcome nor waited
  /// commit_seconds.
  bool under_way() const noexcept;
  /// Announces that the current step, number `step`, will be saved by a request with the same tag
  /// and buffers. No save may be under way. finish() returns the errors.
  void expect(const SaveRequest& request, std::uint64_t step);
  bool expects(std::uint64_t step) const noexcept { return expected_ == step; }
  bool expects_any() const noexcept { return expected_.has_value(); }
  /// True if sub-groups may be added: from expect() or begin() until copy_rest(), unless the save
  /// failed before.
  bool adds() const noexcept {
    return save_state_ == SaveState::Expected || save_state_ == SaveState::Copying;
  }
  /// Drops the copies added so far, as they are not the state to be saved.
  void forget() noexcept;
  /// Begins a save of a step's state: Note [Copied as it passes]. No other save may be under way,
  /// except one expected for this step. finish() returns its errors.
  void begin(const SaveRequest& request, TrainingState state, std::vector<SavedGroup> groups);
  /// True from begin() until copy_rest(), unless the save has failed: some state is still to be
  /// copied.
  bool copying() const noexcept { return save_state_ == SaveState::Copying; }
  /// Copies a sub-group whose state is final for this checkpoint; call it while adds() is true.
  void add(const SubGroup& group) noexcept;
  /// Nanoseconds spent in add() since the last call of this function.
  std::uint64_t take_copy_ns() noexcept { return std::exchange(copy_ns_, 0); }
  /// While copying: reads the state that was not added. The update must be complete. Errors: those
  /// of the tiers: Io, Corrupt, Timeout; the save has then failed.
  Result<void> copy_rest();
  /// Starts to make the copied state durable on a thread of its own, unless the save has failed.
  /// `trainer`: replaces the request's.
  void commit(std::optional<SavedTrainer> trainer);
  /// Abandons a save that was not committed. finish() returns `cause`.
  void abandon(Error cause);
  /// Waits up to this long until the checkpoint is durable. Returns nothing if no save was
  /// committed or abandoned since the last outcome. Errors: those of the save: NoSpace, Io, Timeout
  /// (it may still become durable), Busy (the previous one may still become durable), Invalid (tag,
  /// names); or the tiers' error.
  Result<std::optional<SavedCheckpoint>> finish(double seconds);
  /// Records the outcome of a save that missed its deadline, if it has ended. False: it still waits
  /// for the disk. No save may be under way.
  bool end_former_save();
  /// As CheckpointPlace::commit_seconds.
  double commit_seconds() const noexcept { return commit_seconds_; }
  /// Waits for a committed save, abandons one that was not committed, and frees the reserved space.
  /// Errors: Busy, Io, Timeout.
  Result<void> close() noexcept;

 private:
  enum class SaveState : std::uint8_t { None, Expected, Copying, Copied };

  void end_before_close();
  void write_script(double stall_seconds) const;
  void start(const SaveRequest& request, std::uint64_t step, SaveState state);
  Result<void> begin_save(const SaveRequest& request, std::uint64_t step);
  Result<void> lay_out(const std::vector<BufferToSave>& buffers);
  Result<void> link_frozen();
  void report_copied() const noexcept;
  Result<void> copy_missing(const SavedUnits& units, StateSnapshot& snapshot);
  Result<void> copy_all_missing();
  void end_copying();
  CheckpointManifest manifest_of(const SaveRequest& request, TrainingState state,
                                 std::vector<SavedGroup> groups) const;
  void remember_frozen(const SavedCheckpoint& saved);
  std::uint32_t rank() const noexcept { return from_.group == nullptr ? 0 : from_.group->rank(); }
  std::uint32_t ranks() const noexcept { return from_.group == nullptr ? 1 : from_.group->ranks(); }
  // In checkpoints_of_ranks.cpp: collective functions for several ranks.
  Result<void> open_of_ranks(Result<void> own);
  Result<void> begin_of_ranks(Result<void> own, const std::string& tag, std::uint64_t step);
  Result<void> collect_frozen();
  Result<void> send_frozen(std::uint32_t unit);
  Result<void> pass_frozen(std::uint32_t unit, std::uint32_t owner, std::uint64_t index,
                           std::span<const std::byte> mine);
  Result<SavedCheckpoint> commit_of_ranks();
  Result<SavedCheckpoint> publish_of_ranks();
  Result<void> add_records(const std::string& mine);
  Result<std::vector<SavedPart>> parts_of_ranks() const;

  const CheckpointSources from_;
  const SavedUnits trained_;
  const SavedUnits frozen_;
  std::shared_ptr<const CheckpointLayout> trained_layout_;
  std::shared_ptr<const CheckpointLayout> frozen_layout_;  // null if nothing is frozen
  std::unique_ptr<pinned::Pool> buffers_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::string directory_;
  double commit_seconds_ = 0.0;
  // For the save under way:
  SaveState save_state_ = SaveState::None;
  std::optional<std::uint64_t> expected_;     // number of the step announced by expect()
  std::optional<Error> not_begun_;            // why the save could not begin
  std::optional<StateSnapshot> copy_;         // copy of the trained parameters' state
  std::optional<StateSnapshot> frozen_copy_;  // empty if nothing is frozen or the file is linked
  CheckpointManifest manifest_;
  std::vector<SideFile> side_files_;
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
  std::uint64_t copy_ns_ = 0;
  // For several ranks:
  double write_rate_ = 0.0;                          // measured by rank 0
  std::vector<SavedPart> parts_;                     // the parts of all ranks' files, on rank 0
  bool joined_ = false;                              // all ranks have begun, and none has committed
  std::optional<Error> own_failure_;                 // error of this rank's part
  std::optional<Result<SavedCheckpoint>> of_ranks_;  // outcome of all ranks' save
  bool late_ = false;  // finish() has waited commit_seconds, and the commit is still under way
  // For the last durable checkpoint:
  std::string frozen_tag_;  // the checkpoint whose file of frozen parameters can be linked
  std::optional<SavedDataFile> frozen_record_;
};

}  // namespace artesian::zero3
