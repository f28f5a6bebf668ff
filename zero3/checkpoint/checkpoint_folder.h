// CheckpointFolder: the folder with a run's checkpoints: who may write there, what it contains, and
// how checkpoints are created atomically. It reads manifests but not data files.
//
// Note [How a checkpoint comes to be]: it is written to ".tmp-TAG-ID": first the data, with each
// file synced, then the manifest, then the folder is synced. Next the folder is renamed to its tag,
// and the folder above is synced. Next "latest" is replaced by a file that was synced before, and
// the folder is synced again. Only then are older checkpoints removed. So after a power cut at any
// moment `latest` names a complete checkpoint.
//
// Note [A tag that is there]: if the tag exists, the two folders exchange names, so that the tag
// always names a complete checkpoint. On file systems without that call (NFS, FUSE, overlays), the
// old folder is first moved to ".old-TAG-ID", and for a moment no folder has the tag. Before
// recovery removes anything, it gives the tag to the new checkpoint if that is complete, else back
// to the old one.
//
// Note [What goes]: before a checkpoint of this run's line is removed, it is durably renamed to
// ".gone-TAG-ID". Its data file is then reused for the next checkpoint: the space stays reserved,
// and overwriting is faster than writing a new file. A file is reused only if this process wrote
// it, as writes of a dead process may still reach it. So recovery removes spare files and never
// uses them.
//
// Note [A whole one that is older]: a batch queue repeats its command line without a person
// watching. So a checkpoint with a damaged or missing file, or a damaged `latest`, does not end a
// run for which another complete checkpoint exists. The run resumes from the newest complete one,
// with a warning, and the damaged one is moved to "TAG.damaged", so that its tag can be saved
// again. Only a folder that cannot be read at all (EIO, a mount that is gone) is an error.
//
// Thread: one at a time. Every call may block on the disk without limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/durable_folder.h"
#include "base/file_system.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/plan/checkpoint_lineage.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {

/// The content of a folder.
struct FolderContent {
  std::vector<FoundCheckpoint> found{};  // complete, as far as their manifests tell
  std::vector<std::pair<std::string, Error>>
      damaged{};         // tags of damaged checkpoints, with the reason
  std::string latest{};  // the tag in `latest`; empty: there is no such file, or it is damaged
  std::optional<Error> latest_fault{};  // the fault, if that file contains no valid tag
};

/// The checkpoints from which a run without a given tag may resume, best first: the one in `latest`
/// and its ancestors. If `latest` or its checkpoint is damaged or missing: the newest complete
/// checkpoint and its ancestors. Note [A whole one that is older].
struct CheckpointChoice {
  std::vector<std::string> tags{};     // empty: there is no checkpoint
  std::string warning{};               // why the first one is not that of `latest`; empty if it is
  std::vector<std::string> damaged{};  // tags that were passed over
};
/// Chooses the checkpoints to resume from. Errors: the fault of `latest` or of the checkpoint if no
/// other one can be used: Corrupt, Io, Invalid.
Result<CheckpointChoice> choose_checkpoints(const FolderContent& content,
                                            const std::string& directory);

/// Renames a damaged checkpoint: Note [A whole one that is older]. Nothing else may use the folder
/// meanwhile. Errors: Io.
Result<void> set_aside(Folder& folder, const std::string& tag) noexcept;

/// Adds this file's name to the error, unless it has one.
Error of_file(Error error, const Folder& folder, std::string_view name);
Error corrupt_file(const Folder& folder, std::string_view name, std::string why);

/// Reads a small file and checks its digest. Errors: Io; Corrupt, naming the file.
Result<std::string> read_with_digest(Folder& folder, const std::string& name,
                                     std::uint64_t size_max, std::string_view digest);

/// Returns the tag in `latest`; empty: there is no such file. Errors: Io; Corrupt: it contains no
/// tag.
Result<std::string> read_latest(Folder& folder);

/// Lists a folder's checkpoints without changing anything. Errors: Io.
Result<FolderContent> read_checkpoints(Folder& folder);

/// Reads and checks the manifest of the checkpoint in `folder`. Errors: Io (ENOENT if neither a
/// manifest nor data exists: a foreign folder), Corrupt, Unsupported.
Result<CheckpointManifest> read_manifest_of(Folder& folder);

/// Checks that all files of a checkpoint exist with their lengths, and the small ones with their
/// digests: that writing was completed. Errors: Corrupt, Io, naming the file.
Result<void> check_files(Folder& folder, const CheckpointManifest& manifest);

/// A file of the caller's, or of the model's: "client-NAME", "model/NAME".
struct SideFile {
  std::string name{};
  std::string bytes{};
};

/// Whether `latest` names a checkpoint once it is durable.
enum class Latest : std::uint8_t { Becomes, Stays };

struct CheckpointDraft {
  std::string tag{};
  CheckpointLink link{};
  std::string name{};  // name of its folder
  std::unique_ptr<Folder> folder{};
  Latest latest = Latest::Becomes;
};

/// Which checkpoints a new one with the same tag may replace.
enum class Replaces : std::uint8_t { OwnLineage, AnyLineage };

class CheckpointFolder {
 public:
  /// Creates the folder if its parent exists, takes its lock and recovers what a dead process left.
  /// Refuses a folder in which a save could not complete. Errors: Busy (who holds it), Io, NoSpace,
  /// Invalid, Unsupported.
  static Result<std::unique_ptr<CheckpointFolder>> open(FileSystem& files,
                                                        const std::string& directory,
                                                        std::uint64_t run_id) noexcept;

  const std::string& path() const noexcept { return folder_->path(); }
  /// The content found at the start, kept up to date.
  const FolderContent& content() const noexcept { return content_; }

  /// Makes the next checkpoint a child of this one. Without this call it is the first of a new
  /// lineage.
  void go_on_from(const CheckpointLink& parent) noexcept { last_ = parent; }

  /// Reserves space for one data file, unless that is done. Errors: NoSpace, Io.
  Result<void> reserve(std::uint64_t bytes) noexcept;
  /// Writes sequentially to the reserved space, at most 1 GiB, for about this long. Returns the
  /// bytes per second that became durable; 0: no space was reserved. May block for ever. Errors:
  /// Io, NoSpace.
  Result<double> probe(double seconds) noexcept;
  /// Frees the reserved space. Errors: Io.
  Result<void> give_back_spare() noexcept;
  std::uint64_t spare_bytes() const noexcept { return spare_.empty() ? 0 : spare_bytes_; }

  /// Begins a checkpoint. Errors: Invalid: the tag is empty, or its name belongs to a checkpoint
  /// that may not be replaced or to something else; Io, NoSpace.
  Result<CheckpointDraft> begin(const std::string& tag, Replaces replaces,
                                Latest latest = Latest::Becomes) noexcept;
  /// Makes a file of this size in the draft, in reserved space. Errors: NoSpace, Io.
  Result<std::unique_ptr<File>> make_data_file(CheckpointDraft& draft, const std::string& name,
                                               std::uint64_t bytes) noexcept;
  /// Adds a file of the checkpoint `tag` as a hard link with the same name. Returns false if the
  /// file system has no hard links. Errors: Io, NoSpace.
  Result<bool> link_file(CheckpointDraft& draft, const std::string& tag,
                         const std::string& name) noexcept;
  /// Writes and syncs the side files. Errors: Invalid (a name), NoSpace, Io.
  Result<std::vector<SavedSideFile>> write_side_files(CheckpointDraft& draft,
                                                      const std::vector<SideFile>& files) noexcept;
  /// Completes a checkpoint whose data, sums and side files are durable: Note [How a checkpoint
  /// comes to be]. Puts its link into the manifest. Errors: Io, NoSpace, Unsupported: the tag's
  /// folder cannot be renamed on this file system; use another tag.
  Result<void> publish(CheckpointDraft& draft, CheckpointManifest& manifest) noexcept;
  /// Removes checkpoints beyond the newest `keep`. Faults are logged, and the next call tries
  /// again.
  void prune(std::uint32_t keep) noexcept;
  /// Removes the draft's files. Errors: Io.
  Result<void> discard(CheckpointDraft& draft) noexcept;

 private:
  CheckpointFolder(std::unique_ptr<Folder> folder, FolderLock lock, std::uint64_t run_id) noexcept
      : folder_(std::move(folder)), lock_(std::move(lock)), run_id_(run_id) {}
  /// The next checkpoint's link, except for the parts drawn by begin(): the id, and the lineage if
  /// it is new.
  CheckpointLink next_link() const noexcept;
  Result<void> recover() noexcept;
  /// Tries out the file operations of a save and a prune on small files, so that a file system that
  /// lacks a call is found before the first step. Errors: those of the failed call.
  Result<void> rehearse() noexcept;
  Result<void> restore(const std::vector<DotName>& names) noexcept;
  Result<void> remove_left(const std::vector<DotName>& names) noexcept;
  Result<std::optional<std::string>> place(const CheckpointDraft& draft) noexcept;
  Result<void> remove_replaced(const std::string& name, const std::string& tag) noexcept;
  Result<void> remove_gone(const std::string& name, bool ours) noexcept;
  Result<void> prune_one(const FoundCheckpoint& checkpoint) noexcept;
  std::uint64_t draw_id() noexcept;

  std::unique_ptr<Folder> folder_;
  FolderLock lock_;
  const std::uint64_t run_id_;
  FolderContent content_;
  std::optional<CheckpointLink> last_;
  std::set<std::uint64_t> ours_;  // ids of checkpoints that this process wrote
  std::set<std::string> held_;    // tags that were not pruned, each reported once
  std::string spare_;             // name of the file; empty: none
  std::uint64_t spare_bytes_ = 0;
  std::uint64_t drawn_ = 0;
};

}  // namespace artesian::zero3
