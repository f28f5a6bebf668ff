// CheckpointSaver: saves checkpoints one after the other without endangering the training. Blocks
// are written through tiering/snapshot_file.h while the training's passes run. Calls that may block
// (creating files, syncs, renames, pruning) run on separate threads, and every wait for them has a
// deadline. A save that fails leaves the earlier checkpoints unchanged, and the saver is ready for
// the next one as soon as the disk has finished with the failed one.
//
// Order: begin, add_file and link_file, the writes; then commit or abandon; then finish. A commit
// runs in the background: finish returns its outcome.
//
// Thread: one, except for what SnapshotFile allows.
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
  std::uint32_t keep = 2;  // checkpoints of this run's line to keep; 0: all
  /// The longest time that a call, or a wait for a write, lasts without an answer from the disk.
  double stall_seconds = 10.0;
  /// Size of a data file whose space is reserved at the start, and again after each save; 0: space
  /// is taken when needed.
  std::uint64_t reserve_bytes = 0;
  /// Length of a probe write at the start that measures the folder's speed; 0: none.
  double probe_seconds = 0.0;
  tiering::MakeSnapshotEngine make_engine = nullptr;  // null: the best engine available
  /// Rank of this process, if several ranks save together: only rank 0 opens the folder and
  /// publishes; each rank writes its own data file.
  std::uint32_t rank = 0;
};

/// A checkpoint that rank 0 has begun and the other ranks join.
struct CheckpointToJoin {
  std::string folder{};  // name below the saver's directory
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
  /// Opens the folder. Errors: those of CheckpointFolder::open and reserve; Timeout.
  static Result<std::unique_ptr<CheckpointSaver>> open(FileSystem& files,
                                                       SaverOptions options) noexcept;
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  ~CheckpointSaver();  // waits for transfers in flight, at most stall_seconds

  /// Returns what the folder contained when it was opened.
  const FolderContent& found() const noexcept { return found_; }
  /// Probed write rate of the folder in bytes per second; 0: not probed.
  double write_rate() const noexcept { return write_rate_; }
  /// Makes the next checkpoint a descendant of this one. Not while a save is under way.
  void go_on_from(const CheckpointLink& parent) noexcept;

  /// Begins to save the state of `step`; after an error no save has begun. Errors: Busy: an earlier
  /// save still waits for the disk; those of CheckpointFolder::begin; Timeout.
  Result<void> begin(const std::string& tag, std::uint64_t step,
                     Replaces replaces = Replaces::OwnLineage,
                     Latest latest = Latest::Becomes) noexcept;
  bool begun() const noexcept { return save_ != nullptr; }
  /// What other ranks pass to join(), once the save has begun.
  CheckpointToJoin to_join() const {
    ARTESIAN_CHECK(save_ != nullptr);
    return {save_->draft.name, save_->draft.link.id};
  }
  /// On ranks other than 0: adds a file to the checkpoint that rank 0 has begun. Errors: Io,
  /// Timeout.
  Result<void> join(const CheckpointToJoin& begun, const std::string& tag,
                    std::uint64_t step) noexcept;
  /// Adds a data file with this layout, which is kept until the save has ended. The pointer is
  /// valid until commit or abandon. Errors: NoSpace, Io, Timeout: call abandon.
  Result<tiering::SnapshotFile*> add_file(const std::string& name, std::uint32_t rank,
                                          std::shared_ptr<const CheckpointLayout> layout) noexcept;
  /// Adds a file of the earlier checkpoint `tag`, as recorded in its manifest, by hard link, with
  /// its checksums. False: the file system has no hard links, so the file must be written. Errors:
  /// Io, Timeout: call abandon.
  Result<bool> link_file(const std::string& tag, const SavedDataFile& file) noexcept;

  /// Waits for the writes, then starts to make the checkpoint durable. The caller fills the
  /// manifest except for `link`, `run_id`, `files` and `side_files`; `file` in its parts is the
  /// index of the file in the order of add_file and link_file calls.
  void commit(CheckpointManifest manifest, std::vector<SideFile> side_files) noexcept;
  /// On ranks other than 0, instead of commit: waits until the deadline for this rank's file to be
  /// durable, and returns its record for rank 0. The save has then ended. Errors: NoSpace, Io,
  /// Timeout.
  Result<SavedDataFile> make_durable(Deadline deadline) noexcept;
  /// On ranks other than 0, instead of abandon: rank 0 removes the files.
  void leave() noexcept;
  /// Adds another rank's durable file, after those of lower ranks.
  void add_durable(SavedDataFile file);
  /// Starts to remove the save's files. `cause`: the error that finish() returns.
  void abandon(Error cause) noexcept;
  /// Waits for the commit. Returns nothing if none was started since the last call. Errors: the
  /// error of the save; Timeout: it is still under way, call again.
  Result<std::optional<SavedCheckpoint>> finish(Deadline deadline) noexcept;
  /// True if a commit was started or has failed, and finish() has not returned its outcome yet.
  bool committing() const noexcept { return commit_.has_value() || lost_.has_value(); }

  /// Frees the reserved space. Errors: Busy, Io, Timeout.
  Result<void> close() noexcept;

 private:
  struct DataFile {
    SavedDataFile record;
    std::shared_ptr<const CheckpointLayout> layout;  // null if the file was linked
    std::unique_ptr<tiering::SnapshotFile> snapshot;
  };
  /// One save. Shared with the thread that works on it, which may outlive the saver.
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
  std::shared_ptr<CheckpointFolder> folder_;  // shared for the same reason as Save
  FolderContent found_;
  double write_rate_ = 0.0;
  std::shared_ptr<Save> save_;              // begun, but not committed
  std::optional<DetachedCall<void>> call_;  // the last call, which may still be running
  std::optional<DetachedCall<SavedCheckpoint>>
      commit_;                 // a commit whose outcome finish() has not returned
  std::optional<Error> lost_;  // error of a commit that could not be started
};

}  // namespace artesian::zero3
