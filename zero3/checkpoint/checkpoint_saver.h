// CheckpointSaver: saves one checkpoint after the other without ever endangering the training that
// it is of. The blocks go through tiering/snapshot_file.h while the training's passes run; what
// blocks (making files, syncs, renames, pruning) runs on threads of its own, and nobody waits for
// these without a deadline. A save that fails leaves the former checkpoints as they are, and the
// saver ready for the next one, as soon as the disk has let go of the last.
//
// Order: begin, add_file and link_file, the writes; then commit or abandon; then finish. A commit
// goes on by itself: finish says what came of it.
//
// Thread: one, but for what SnapshotFile allows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/detached_call.h"
#include "tiering/snapshot_file.h"
#include "zero3/checkpoint/checkpoint_folder.h"
#include "zero3/plan/checkpoint_layout.h"

namespace artesian::zero3 {

struct SaverOptions {
  std::string directory{};
  std::uint64_t run_id = 0;
  std::uint32_t keep = 2;  // checkpoints of this run's line; 0: all
  /// The longest that a call, or a wait for a write, lasts without an answer from the disk.
  double stall_seconds = 10.0;
  /// Bytes of a data file whose room is to be ours from the start, and again after each save;
  /// 0: it is taken when it is needed.
  std::uint64_t reserve_bytes = 0;
  /// Length of a probe write at the start that measures the folder's speed; 0: none.
  double probe_seconds = 0.0;
  tiering::MakeSnapshotEngine make_engine = nullptr;  // null: the best there is
  /// Of several ranks that save together: rank 0 alone has the folder, and publishes; each makes
  /// its own data file.
  std::uint32_t rank = 0;
};

/// A checkpoint that rank 0 has begun, for the others to join.
struct CheckpointToJoin {
  std::string folder{};  // below the saver's directory
  std::uint64_t id = 0;
};

struct SavedCheckpoint {
  std::string tag{};
  CheckpointLink link{};
  std::uint64_t step = 0;
  std::uint64_t bytes_written = 0;  // bytes of blocks written so far
  std::vector<SavedDataFile> files{};
};

class CheckpointSaver {
 public:
  /// Errors: those of CheckpointFolder::open and reserve; Timeout.
  static Result<std::unique_ptr<CheckpointSaver>> open(FileSystem& files,
                                                       SaverOptions options) noexcept;
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  ~CheckpointSaver();  // waits for transfers in flight, at most stall_seconds

  /// Returns what the folder held when it was opened.
  const FolderContent& found() const noexcept { return found_; }
  /// Bytes a second that the folder took then; 0: not probed.
  double write_rate() const noexcept { return write_rate_; }
  /// The next checkpoint descends from this one. Not while a save is under way.
  void go_on_from(const CheckpointLink& parent) noexcept;

  /// Begins to save the state of `step`; on an error no save has begun. Errors: Busy: the disk
  /// still holds a former save; those of CheckpointFolder::begin; Timeout.
  Result<void> begin(const std::string& tag, std::uint64_t step,
                     Replaces replaces = Replaces::OwnLineage,
                     Latest latest = Latest::Becomes) noexcept;
  bool begun() const noexcept { return save_ != nullptr; }
  /// What the others join, once begun.
  CheckpointToJoin to_join() const {
    ARTESIAN_CHECK(save_ != nullptr);
    return {save_->draft.name, save_->draft.link.id};
  }
  /// Of another rank than 0: adds a file to what rank 0 has begun. Errors: Io, Timeout.
  Result<void> join(const CheckpointToJoin& begun, const std::string& tag,
                    std::uint64_t step) noexcept;
  /// A data file of this layout, which is kept until the save has ended. The pointer holds until
  /// commit or abandon. Errors: NoSpace, Io, Timeout: call abandon.
  Result<tiering::SnapshotFile*> add_file(const std::string& name, std::uint32_t rank,
                                          std::shared_ptr<const CheckpointLayout> layout) noexcept;
  /// The file of an earlier checkpoint, `tag`, again, as its manifest has it, with its checksums.
  /// False: the file system cannot, and it must be written. Errors: Io, Timeout: call abandon.
  Result<bool> link_file(const std::string& tag, const SavedDataFile& file) noexcept;

  /// Waits for the writes, then starts to make the checkpoint durable. Of the manifest, all but
  /// `link`, `run_id`, `files` and `side_files` is the caller's; its parts' `file` counts files in
  /// the order in which they were added or linked.
  void commit(CheckpointManifest manifest, std::vector<SideFile> side_files) noexcept;
  /// Of another rank than 0, in place of commit: waits until its file is durable, for so long, and
  /// returns its record for rank 0. The save has ended. Errors: NoSpace, Io, Timeout.
  Result<SavedDataFile> make_durable(Deadline deadline) noexcept;
  /// For ranks other than 0, in place of abandon: rank 0 removes the files.
  void leave() noexcept;
  /// Adds the durable file of another rank, after those of lower ranks.
  void add_durable(SavedDataFile file);
  /// Starts to remove the save's files. `cause`: the error that finish() returns.
  void abandon(Error cause) noexcept;
  /// Waits for the commit. Nothing: none was started since the last call. Errors: what the save
  /// failed with; Timeout: it is still under way, ask again.
  Result<std::optional<SavedCheckpoint>> finish(Deadline deadline) noexcept;
  /// A commit was started or has failed, and finish() has not returned its outcome yet.
  bool committing() const noexcept { return commit_.has_value() || lost_.has_value(); }

  /// Gives the reserved room back. Errors: Busy, Io, Timeout.
  Result<void> close() noexcept;

 private:
  struct DataFile {
    SavedDataFile record;
    std::shared_ptr<const CheckpointLayout> layout;  // null: linked
    std::unique_ptr<tiering::SnapshotFile> snapshot;
  };
  /// One save. By shared_ptr: of the thread that works on it, which may outlive the saver.
  struct Save {
    std::shared_ptr<CheckpointFolder> folder;
    CheckpointDraft draft;
    std::uint64_t step = 0;
    std::uint32_t keep = 0;
    bool reserves = false;
    std::vector<DataFile> files;
    CheckpointManifest manifest;
    std::vector<SideFile> side_files;
    std::optional<Error> failed;
  };

  CheckpointSaver(FileSystem& files, SaverOptions options) noexcept
      : files_(files), options_(std::move(options)) {}
  Result<void> run(const std::string& what, std::function<Result<void>()> call) noexcept;
  void start_commit() noexcept;
  static Result<SavedCheckpoint> commit_save(Save& save) noexcept;
  static Result<void> write_all(Save& save) noexcept;
  static void look_after(Save& save) noexcept;

  FileSystem& files_;
  const SaverOptions options_;
  std::shared_ptr<CheckpointFolder> folder_;  // shared_ptr: as Save
  FolderContent found_;
  double write_rate_ = 0.0;
  std::shared_ptr<Save> save_;                           // begun, not committed
  std::optional<DetachedCall<void>> call_;               // the last one; it may not have ended
  std::optional<DetachedCall<SavedCheckpoint>> commit_;  // not finished
  std::optional<Error> lost_;                            // a commit that could not be started
};

}  // namespace artesian::zero3
