// Checkpoints: saves the state of a training. Its faults never touch the training: they are what
// finish() says, and the former checkpoint stays. The way back is checkpoint_load.h.
//
// Note [Copied as it passes]: from step() until the next backward all state is that of one step, or
// becomes it when the step's pending update comes to it. So a save begins with the step, and each
// sub-group that this update makes is copied on its way (add); nothing of it is read for that. What
// did not pass is in nobody's way, and read in one pass when the update is complete (copy_rest):
// state updated under backward, or by a separate device; all of it after a step that was skipped;
// what is frozen. Who knows before a step's last backward that it is to be saved says so (expect),
// and what is updated under that backward is copied there; if it is taken back, that counts for
// nothing (forget). The copy is in buffers of the save's own, so that what a target is slow with
// holds no item of the staging ring: the training waits for it as long as something comes back, and
// at most CheckpointPlace::stall_seconds where nothing does.
//
// Note [By several ranks]: each writes the file of its shares, as they pass, and rank 0 alone has
// the folder. It begins the checkpoint, and the others join it; at commit() each makes its file
// durable and says so, and only when all are does rank 0 publish: a checkpoint that has a name is
// whole. What one of them fails by fails that save on all, and the training goes on. All of them
// call alike, and commit() returns when it is durable or has failed. Whether a save that is late
// hinders the next one only rank 0 knows, and under_way() must be the same on all: so it is the
// begin of the next one that fails, on all.
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

/// Says where checkpoints go.
struct CheckpointPlace {
  std::string directory{};  // made if the folder above it exists
  std::uint32_t keep = 2;   // newest ones of this run's line; 0: all
  /// True if the room of the next one is taken at once, and kept.
  bool reserve = true;
  double probe_seconds = 0.0;     // of a write that measures the folder; 0: none
  double stall_seconds = 10.0;    // after which a target that does not answer is given up
  double commit_seconds = 600.0;  // after which a save no longer waits for syncs and renames
  tiering::MakeSnapshotEngine make_engine = nullptr;  // null: the best there is
};

/// A module's buffer: `bytes` have its type and shape, in row-major order.
struct BufferToSave {
  SavedBuffer buffer{};
  std::span<const std::byte> bytes{};  // until the call that begins the save returns
};

/// What a checkpoint holds beside the state of the training.
struct SaveRequest {
  std::string directory{};                       // empty: the folder that is open
  std::string tag{};                             // empty: "global_stepN"
  std::map<std::string, std::string> client{};   // files of the caller's, by name
  std::map<std::string, std::string> model{};    // files of the model's folder, by name
  std::optional<SavedTrainer> trainer{};         // data position and identity
  std::string config{};                          // the configuration's text
  std::map<std::string, std::string> machine{};  // what bits depend on: threads, instruction set
  std::map<std::string, std::string> random{};   // states of generators
  std::vector<BufferToSave> buffers{};
  std::vector<std::pair<std::string, std::string>> aliases{};  // another name, the parameter's
  bool exclude_frozen = false;  // leave out frozen parameters; the loader must have them
  Replaces replaces = Replaces::OwnLineage;  // a checkpoint that has the tag
  Latest latest = Latest::Becomes;           // whether a resume without a tag takes this one
  /// Told of the bytes that have been copied, and of all that will be; within calls of the engine,
  /// until all state is copied. It must not throw.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = nullptr;
};

/// Holds what a save needs of the training. All must outlive it.
struct CheckpointSources {
  const std::vector<ParameterSpec>& parameters;
  const Placement& placement;
  Optimizer& optimizer;
  Executor& team;  // copies
  FileSystem& files;
  std::uint64_t run_id;          // of this process's run
  comm::Group* group = nullptr;  // several ranks save together: Note [By several ranks]
};

class Checkpoints {
 public:
  explicit Checkpoints(const CheckpointSources& from);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Opens the folder, recovers what a run that was killed has left, and takes the room of one
  /// checkpoint; puts zero_to_fp32.py there. Errors: Busy, NoSpace, Io, Invalid, Timeout.
  Result<void> open(const CheckpointPlace& place);
  bool is_open() const noexcept { return saver_ != nullptr; }
  /// Returns what the folder held then.
  const FolderContent& found() const noexcept {
    ARTESIAN_CHECK(is_open());
    return saver_->found();
  }
  const std::string& directory() const noexcept { return directory_; }
  /// Bytes a second that it took then; 0: not probed.
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

  /// A save has begun, and finish() has neither returned its outcome nor waited commit_seconds.
  bool under_way() const noexcept;
  /// The step under way, which is number `step`, will be saved by a request with the same tag and
  /// buffers. None is under way. What that fails by is finish()'s.
  void expect(const SaveRequest& request, std::uint64_t step);
  bool expects(std::uint64_t step) const noexcept { return expected_ == step; }
  bool expects_any() const noexcept { return expected_.has_value(); }
  /// True if sub-groups may be added: from expect() or begin() until copy_rest(), unless the save
  /// failed before.
  bool adds() const noexcept {
    return save_state_ == SaveState::Expected || save_state_ == SaveState::Copying;
  }
  /// Forgets what has been added: it is not what will be saved.
  void forget() noexcept;
  /// Begins a save of a step's state: Note [Copied as it passes]. No other save may be under way,
  /// except one expected for this step. finish() returns its errors.
  void begin(const SaveRequest& request, TrainingState state, std::vector<SavedGroup> groups);
  /// From begin() until copy_rest(), unless it failed: some state is still to be copied.
  bool copying() const noexcept { return save_state_ == SaveState::Copying; }
  /// Copies a sub-group whose state is final for this checkpoint; call it while adds() is true.
  void add(const SubGroup& group) noexcept;
  /// Nanoseconds that add() has taken since this was last asked.
  std::uint64_t take_copy_ns() noexcept { return std::exchange(copy_ns_, 0); }
  /// Reads, while copying, what has not been added; the update is complete. Errors: of the tiers:
  /// Io, Corrupt, Timeout; the save has failed then.
  Result<void> copy_rest();
  /// Starts to make the copied state durable on a thread of its own, unless the save has failed.
  /// `trainer`: replaces the request's.
  void commit(std::optional<SavedTrainer> trainer);
  /// Gives a save up that has not been committed. `cause` is what finish() says.
  void abandon(Error cause);
  /// Waits so long until the checkpoint is durable. Nothing: none was committed, or given up, since
  /// it last said what came of it. Errors: what the save failed by: NoSpace, Io, Timeout (it may
  /// still become durable), Busy (so may the one before), Invalid (tag, names); or the tiers'
  /// error.
  Result<std::optional<SavedCheckpoint>> finish(double seconds);
  /// Records the outcome of a save that missed its deadline, if it has ended. False: the disk still
  /// holds it. No save may be under way.
  bool end_former_save();
  /// CheckpointPlace::commit_seconds.
  double commit_seconds() const noexcept { return commit_seconds_; }
  /// Waits for a save that was committed, gives up one that was not, and gives the reserved room
  /// back. Errors: Busy, Io, Timeout.
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
  // checkpoints_of_ranks.cpp: with several ranks, collective.
  Result<void> open_of_ranks(Result<void> own);
  Result<void> begin_of_ranks(Result<void> own, const std::string& tag, std::uint64_t step);
  Result<SavedCheckpoint> commit_of_ranks();
  Result<SavedCheckpoint> publish_of_ranks();
  Result<void> add_records(const std::string& mine);
  Result<std::vector<SavedPart>> parts_of_ranks() const;

  const CheckpointSources from_;
  const SavedUnits trained_;
  const SavedUnits frozen_;
  std::shared_ptr<const CheckpointLayout> trained_layout_;
  std::shared_ptr<const CheckpointLayout> frozen_layout_;  // null: nothing is frozen
  std::unique_ptr<pinned::Pool> buffers_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::string directory_;
  double commit_seconds_ = 0.0;
  // Of the save under way:
  SaveState save_state_ = SaveState::None;
  std::optional<std::uint64_t> expected_;     // a step
  std::optional<Error> not_begun_;            // why it has not begun
  std::optional<StateSnapshot> copy_;         // copy of trained parameters' state
  std::optional<StateSnapshot> frozen_copy_;  // nothing: there is none, or it is linked
  CheckpointManifest manifest_;
  std::vector<SideFile> side_files_;
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
  std::uint64_t copy_ns_ = 0;
  // With several ranks:
  double write_rate_ = 0.0;                          // measured by rank 0
  std::vector<SavedPart> parts_;                     // the parts of all ranks' files, on rank 0
  bool joined_ = false;                              // all have begun, and none has committed
  std::optional<Error> own_failure_;                 // error of this rank's part
  std::optional<Result<SavedCheckpoint>> of_ranks_;  // outcome of all ranks' save
  bool late_ = false;  // finish() has waited commit_seconds for what the saver still commits
  // Of the last one that was durable:
  std::string frozen_tag_;  // whose file of frozen parameters is linked
  std::optional<SavedDataFile> frozen_record_;
};

}  // namespace artesian::zero3
