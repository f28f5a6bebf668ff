// CheckpointFolder: the folder that a run's checkpoints are in: who may write there, what is in it,
// and how one comes to be there whole or not at all. It knows manifests, not what is in data files.
//
// Note [How a checkpoint comes to be]: it is written into ".tmp-TAG-ID", data first, each file
// synced, then the manifest, then the folder's names; only then it gets its name by a rename, and
// the folder above is synced; only then "latest" is replaced, by a file that was synced before, and
// the folder synced again; only then older ones go. So a cut at any moment leaves `latest` at a
// checkpoint that is whole.
//
// Note [A tag that is there]: the two folders exchange their names, so that the tag always names a
// whole checkpoint. Where the file system cannot (NFS, FUSE, overlays), the old one is moved to
// ".old-TAG-ID" first, and for a moment no folder has the tag. Before recovery removes anything, it
// gives the tag to the new checkpoint if that is whole, else back to the old one.
//
// Note [What goes]: a checkpoint of this run's line that is to go is renamed to ".gone-TAG-ID", and
// that made durable, before a byte of it is touched. Its data file then becomes the next one's: the
// room stays ours, and writing over it is quicker than into a new file. But only if this very
// process wrote it: writes of a dead one may still land in it. So recovery removes spares, and
// never uses them.
//
// Note [A whole one that is older]: a queue repeats its command line, and nobody is there to look.
// A checkpoint of which a file is damaged or missing, or a damaged `latest`, therefore ends no run
// that another checkpoint is whole for: the newest whole one is gone on from, with a warning, and
// what is damaged is moved to "TAG.damaged", so that its tag can be saved again. Only what cannot
// be read at all (EIO, a mount that is gone) is an error.
//
// Thread: one at a time. Every call may block on the disk for as long as that likes.
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
  std::vector<FoundCheckpoint> found{};                  // whole, as far as their manifests say
  std::vector<std::pair<std::string, Error>> damaged{};  // with the reason for each tag
  std::string latest{};                 // a tag; empty: there is no such file, or it is damaged
  std::optional<Error> latest_fault{};  // what that file has in place of a tag
};

/// The checkpoints that one who names no tag goes on from, the best first: the one in `latest` and
/// those that it descends from; where `latest`, or what it names, is damaged or gone, the newest
/// that is whole and those before it. Note [A whole one that is older].
struct CheckpointChoice {
  std::vector<std::string> tags{};     // empty: there is no checkpoint
  std::string warning{};               // why it is not the one in `latest`; empty: it is
  std::vector<std::string> damaged{};  // tags: passed over
};
/// Chooses the checkpoints to resume from. Errors: the fault of `latest` or of the checkpoint if no
/// other one can be used: Corrupt, Io, Invalid.
Result<CheckpointChoice> choose_checkpoints(const FolderContent& content,
                                            const std::string& directory);

/// Renames a damaged checkpoint: Note [A whole one that is older]. Nothing else may use the folder
/// meanwhile. Errors: Io.
Result<void> set_aside(Folder& folder, const std::string& tag) noexcept;

/// The error with this file's name, unless it has one.
Error of_file(Error error, const Folder& folder, std::string_view name);
Error corrupt_file(const Folder& folder, std::string_view name, std::string why);

/// A small file, whole, with this digest. Errors: Io; Corrupt, naming the file.
Result<std::string> read_with_digest(Folder& folder, const std::string& name,
                                     std::uint64_t size_max, std::string_view digest);

/// The tag in `latest`; empty: there is no such file. Errors: Io; Corrupt: it is no tag.
Result<std::string> read_latest(Folder& folder);

/// Looks at a folder without changing it. Errors: Io.
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

/// A checkpoint that is being written.
/// Whether `latest` names a checkpoint once that is durable.
enum class Latest : std::uint8_t { Becomes, Stays };

struct CheckpointDraft {
  std::string tag{};
  CheckpointLink link{};
  std::string name{};  // name of its folder
  std::unique_ptr<Folder> folder{};
  Latest latest = Latest::Becomes;
};

/// Whose checkpoint gives way to a new one of its tag.
enum class Replaces : std::uint8_t { OwnLineage, AnyLineage };

class CheckpointFolder {
 public:
  /// Makes the folder where the one above it exists, takes its lock and recovers what a dead
  /// process left; refuses one in which a save could not end. Errors: Busy (who holds it), Io,
  /// NoSpace, Invalid, Unsupported.
  static Result<std::unique_ptr<CheckpointFolder>> open(FileSystem& files,
                                                        const std::string& directory,
                                                        std::uint64_t run_id) noexcept;

  const std::string& path() const noexcept { return folder_->path(); }
  /// The content found at the start, kept up to date.
  const FolderContent& content() const noexcept { return content_; }

  /// The next checkpoint is this one's child. Before, it is the first of a new lineage.
  void go_on_from(const CheckpointLink& parent) noexcept { last_ = parent; }

  /// Reserves space for one data file, unless that is done. Errors: NoSpace, Io.
  Result<void> reserve(std::uint64_t bytes) noexcept;
  /// Writes to that room, in order, 1 GiB or all of it, for about so long. Returns the bytes a
  /// second that became durable; 0: no room was taken. May block for ever. Errors: Io, NoSpace.
  Result<double> probe(double seconds) noexcept;
  /// Gives it back. Errors: Io.
  Result<void> give_back_spare() noexcept;
  std::uint64_t spare_bytes() const noexcept { return spare_.empty() ? 0 : spare_bytes_; }

  /// Begins a checkpoint. Errors: Invalid: no tag, or one that a checkpoint which may not be
  /// replaced, or something else, has; Io, NoSpace.
  Result<CheckpointDraft> begin(const std::string& tag, Replaces replaces,
                                Latest latest = Latest::Becomes) noexcept;
  /// Makes a file of this size in the draft, in reserved space. Errors: NoSpace, Io.
  Result<std::unique_ptr<File>> make_data_file(CheckpointDraft& draft, const std::string& name,
                                               std::uint64_t bytes) noexcept;
  /// A file of the checkpoint `tag` under the same name, unless the file system has no second names
  /// for files: false. Errors: Io, NoSpace.
  Result<bool> link_file(CheckpointDraft& draft, const std::string& tag,
                         const std::string& name) noexcept;
  /// Writes and syncs these. Errors: Invalid (a name), NoSpace, Io.
  Result<std::vector<SavedSideFile>> write_side_files(CheckpointDraft& draft,
                                                      const std::vector<SideFile>& files) noexcept;
  /// All that is left to do once its data, sums and side files are durable: Note [How a checkpoint
  /// comes to be]. Its link goes into the manifest. Errors: Io, NoSpace, Unsupported: the tag's
  /// folder cannot be renamed here; use another tag.
  Result<void> publish(CheckpointDraft& draft, CheckpointManifest& manifest) noexcept;
  /// Removes those that are one too many; faults are logged, and met again next time.
  void prune(std::uint32_t keep) noexcept;
  /// Removes the draft's files. Errors: Io.
  Result<void> discard(CheckpointDraft& draft) noexcept;

 private:
  CheckpointFolder(std::unique_ptr<Folder> folder, FolderLock lock, std::uint64_t run_id) noexcept
      : folder_(std::move(folder)), lock_(std::move(lock)), run_id_(run_id) {}
  /// The next one's link, but for what begin() draws: the id, and a new lineage.
  CheckpointLink next_link() const noexcept;
  Result<void> recover() noexcept;
  /// Does in small what a save and a prune do to files and names, so that a file system that lacks
  /// a call is known before the first step. Errors: as those of the call that failed.
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
