// Folder: a folder by its descriptor. Whoever moves, replaces or links a folder while it is written
// to changes nothing for us: every name is looked up in the folder that was opened, and is one
// component, never a path, so that nothing can lead out of it, and no symbolic link is followed.
//
// Nothing here is durable before it is synced: a file by File::sync, names (created, renamed,
// removed) by sync() of the folder that has them. Files are made with mode 0600, folders with 0700.
//
// Thread: any, for distinct names. Every call may block on the disk for as long as that likes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian {

/// Says what a rename does where the target has the name: fails (Io with EEXIST), replaces it (a
/// file, or an empty folder), or swaps the two.
enum class Existing : std::uint8_t { Refuse, Replace, Exchange };

class Folder {
 public:
  Folder() = default;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  virtual ~Folder() = default;
  /// As it was opened: for messages alone.
  virtual const std::string& path() const noexcept = 0;
  /// Errors, here and below: Io, NoSpace; Invalid where `name` is not a component.
  virtual Result<std::unique_ptr<File>> open(const std::string& name,
                                             const OpenOptions& options) noexcept = 0;
  virtual Result<std::unique_ptr<Folder>> open_folder(const std::string& name) noexcept = 0;
  virtual Result<void> make_folder(const std::string& name) noexcept = 0;
  /// Moves `from` to `to` in `target`, which may be this folder. Errors besides: Unsupported, where
  /// the file system has no such rename; nothing has changed then.
  virtual Result<void> rename(const std::string& from, Folder& target, const std::string& to,
                              Existing existing) noexcept = 0;
  /// Gives a file a second name, `to` in `target`. Errors besides: Unsupported.
  virtual Result<void> link(const std::string& from, Folder& target,
                            const std::string& to) noexcept = 0;
  virtual Result<void> remove(const std::string& name) noexcept = 0;
  virtual Result<void> remove_folder(const std::string& name) noexcept = 0;  // must be empty
  virtual Result<void> sync() noexcept = 0;
  virtual Result<std::vector<std::string>> list() noexcept = 0;  // names, sorted
  /// Returns the status of the name itself; a link is not followed. Errors: Io, with ENOENT if the
  /// name does not exist.
  virtual Result<FileStatus> status(const std::string& name) noexcept = 0;
  virtual Result<std::uint64_t> free_bytes() noexcept = 0;
};

/// True if a text may name something in a folder: 1 to 255 bytes, not "." or "..", no '/', no NUL.
bool is_component(std::string_view name) noexcept;

/// True if the call failed because there is no such name.
bool is_absent(const Error& error) noexcept;

/// Opens a folder of the kernel's. A link at the end of `path`, or on the way, is followed: it is
/// the user's. Errors: Io.
Result<std::unique_ptr<Folder>> open_system_folder(const std::string& path) noexcept;

/// Renames to a name that nothing has, also where the file system has no rename that refuses to
/// replace: there the name is looked at first, so that nobody else may make it meanwhile. Errors:
/// Io (with EEXIST where there is such a name); Unsupported: not between these two folders.
Result<void> rename_to_new(Folder& folder, const std::string& from, Folder& target,
                           const std::string& to) noexcept;

/// Writes a new file whole and makes its bytes durable. Errors: Io, NoSpace.
Result<void> write_durable_file(Folder& folder, const std::string& name,
                                std::string_view text) noexcept;

/// Replaces a small file so that either the old or the new one exists, whole: writes a temporary
/// name, syncs, renames, syncs. Errors: Io, NoSpace; `temporary` is then removed if possible.
Result<void> replace_durable_file(Folder& folder, const std::string& name,
                                  const std::string& temporary, std::string_view text) noexcept;

/// Reads a whole file. Errors: Io; Corrupt if it is longer than `size_max` or not a plain file.
Result<std::string> read_whole_file(Folder& folder, const std::string& name,
                                    std::uint64_t size_max) noexcept;

/// Removes a folder with all its content, `first` (if it exists) before the rest. What cannot be
/// removed remains, with the folders above it. Errors: the first one.
Result<void> remove_folder_with_files(Folder& parent, const std::string& name,
                                      const std::string& first) noexcept;

/// The exclusive claim of one process on a folder: a file in it that is flock'ed while the process
/// lives and says, as text, who holds it. The file stays: removing it would be a race.
class FolderLock {
 public:
  /// `record`: who we are, as holder_record() has it (lock_record.h). Waits a quarter of a second
  /// for a holder that is dying: the kernel frees its lock once its last transfer is done. Errors:
  /// Busy, with the holder's record; Io, NoSpace; Invalid: the name is taken by something else.
  static Result<FolderLock> acquire(Folder& folder, const std::string& name,
                                    const std::string& record) noexcept;

 private:
  explicit FolderLock(std::unique_ptr<File> file) noexcept : file_(std::move(file)) {}

  std::unique_ptr<File> file_;
};

}  // namespace artesian
