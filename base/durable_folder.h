// Folder: a folder addressed by its open descriptor. Moving, replacing or linking the folder while
// it is written to has no effect: every name is looked up in the folder that was opened. A name is
// one component, never a path, so that no name leads out of the folder; symbolic links are not
// followed.
//
// Nothing here is durable before it is synced: a file by File::sync, names (created, renamed,
// removed) by sync() of their folder. Files are made with mode 0600, folders with 0700.
//
// Thread: any, for distinct names. Every call may block on the disk without limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian {

/// Selects what a rename does if the target name exists: fail (Io with EEXIST), replace it (a file,
/// or an empty folder), or swap the two.
enum class Existing : std::uint8_t { Refuse, Replace, Exchange };

class Folder {
 public:
  Folder() = default;
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  virtual ~Folder() = default;
  /// The path as it was opened: only for messages.
  virtual const std::string& path() const noexcept = 0;
  /// Errors, here and below: Io, NoSpace; Invalid where `name` is not a component.
  virtual Result<std::unique_ptr<File>> open(const std::string& name,
                                             const OpenOptions& options) noexcept = 0;
  virtual Result<std::unique_ptr<Folder>> open_folder(const std::string& name) noexcept = 0;
  virtual Result<void> make_folder(const std::string& name) noexcept = 0;
  /// Moves `from` to `to` in `target`, which may be this folder. Further errors: Unsupported: the
  /// file system lacks this kind of rename, and nothing was changed.
  virtual Result<void> rename(const std::string& from, Folder& target, const std::string& to,
                              Existing existing) noexcept = 0;
  /// Gives a file a second name, `to` in `target`. Further errors: Unsupported.
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

/// True if a text is a valid name in a folder: 1 to 255 bytes, not "." or "..", no '/', no NUL.
bool is_component(std::string_view name) noexcept;

/// True if the call failed because the name does not exist.
bool is_absent(const Error& error) noexcept;

/// Opens a folder in the kernel's file system. Symbolic links in `path` are followed, as the user
/// made them. Errors: Io.
Result<std::unique_ptr<Folder>> open_system_folder(const std::string& path) noexcept;

/// Renames to a name that does not exist, without ever replacing a file. If the file system lacks
/// such a rename, the name's absence is checked first, so nobody else may create it meanwhile.
/// Errors: Io (with EEXIST if the name exists); Unsupported: not possible between these two
/// folders.
Result<void> rename_to_new(Folder& folder, const std::string& from, Folder& target,
                           const std::string& to) noexcept;

/// Writes a new file completely and makes its bytes durable. Errors: Io, NoSpace.
Result<void> write_durable_file(Folder& folder, const std::string& name,
                                std::string_view text) noexcept;

/// Replaces a small file so that either the old or the new file exists, complete: writes a
/// temporary name, syncs, renames, syncs. Errors: Io, NoSpace; `temporary` is then removed if
/// possible.
Result<void> replace_durable_file(Folder& folder, const std::string& name,
                                  const std::string& temporary, std::string_view text) noexcept;

/// Reads a whole file. Errors: Io; Corrupt if it is longer than `size_max` or not a plain file.
Result<std::string> read_whole_file(Folder& folder, const std::string& name,
                                    std::uint64_t size_max) noexcept;

/// Removes a folder with all its content, `first` (if it exists) before the rest. Files that cannot
/// be removed remain, with the folders above them. Errors: the first failure.
Result<void> remove_folder_with_files(Folder& parent, const std::string& name,
                                      const std::string& first) noexcept;

/// The exclusive claim of one process on a folder: a file in it that the process locks (flock)
/// while it lives, and whose text names the holder. The file is never removed: removing it would be
/// a race.
class FolderLock {
 public:
  /// `record`: names this process, as made by holder_record() (lock_record.h). Waits up to a
  /// quarter of a second for a dying holder: the kernel frees its lock only after its last
  /// transfer. Errors: Busy, with the holder's record; Io, NoSpace; Invalid: the name exists and is
  /// not a lock file.
  static Result<FolderLock> acquire(Folder& folder, const std::string& name,
                                    const std::string& record) noexcept;

 private:
  explicit FolderLock(std::unique_ptr<File> file) noexcept : file_(std::move(file)) {}

  std::unique_ptr<File> file_;
};

}  // namespace artesian
