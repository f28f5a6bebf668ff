// The one interface to files: all of Artesian's disk access goes through a FileSystem (calls that
// name files) and, for the transfers, an aio::Engine (calls on open files). Tests put faults and
// simulated disks behind the same two interfaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian {

class Folder;

enum class Direct : std::uint8_t { Required, IfAligned, Never };
enum class Create : std::uint8_t { Never, Exclusive };

struct OpenOptions {
  Create create = Create::Never;  // Exclusive: the file must not exist; mode 0600, O_NOFOLLOW
  // IfAligned: if direct I/O is refused, buffered with one warning
  Direct direct = Direct::IfAligned;
  bool read_only = false;
};

/// The file that a name or descriptor refers to. `device` and `inode` together identify it.
struct FileStatus {
  enum class Kind : std::uint8_t { Regular, Directory, Link, Other };
  Kind kind = Kind::Other;
  bool ours = false;  // owned by the effective user
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t links = 1;  // number of hard links
  std::uint64_t size = 0;   // bytes

  bool same_file(const FileStatus& other) const noexcept {
    return device == other.device && inode == other.inode;
  }
};

/// An open file. Closes on destruction. Its descriptor may be used by any thread.
///
/// Note [Poison]: after a failed write or sync it is unknown which bytes of the file are on the
/// disk, and a second sync does not tell: the kernel marks the lost pages clean, so that the next
/// fsync succeeds. So the first failure is permanent: every later transfer and sync of this open
/// file, its own or an aio::Engine's, fails with that first cause. Only reopening the file clears
/// it.
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File();
  /// The write or sync that failed first, or null. See Note [Poison]. Any thread.
  const Error* poison() const noexcept { return poison_.load(std::memory_order_acquire); }
  /// Records `cause` unless a cause is recorded already; returns the recorded cause. Any thread.
  const Error& poison_with(const Error& cause) noexcept;
  virtual int descriptor() const noexcept = 0;
  /// A second descriptor of a direct file, which uses the page cache, for transfers that are not
  /// aligned. A buffered file returns `descriptor()`. Any thread. Errors: Io.
  virtual Result<int> buffered_descriptor() noexcept { return descriptor(); }
  virtual const std::string& path() const noexcept = 0;
  /// True if transfers bypass the page cache.
  virtual bool direct() const noexcept = 0;
  /// Alignment of offset, length and memory that direct transfers need, from statx reports it; 1 if
  /// buffered.
  virtual std::uint64_t alignment() const noexcept = 0;
  virtual Result<std::uint64_t> size() noexcept = 0;
  /// Calls fstat, unless overridden. Errors: Io.
  virtual Result<FileStatus> status() noexcept;
  /// Reserves [0, bytes) on disk. Errors: NoSpace (states needed and free bytes), Io.
  virtual Result<void> allocate(std::uint64_t bytes) noexcept = 0;
  virtual Result<void> sync() noexcept = 0;
  /// Exclusive advisory lock (flock), without waiting, until the file is closed; a forked child
  /// does not share it (base/fork_guard.h). Errors: Busy.
  virtual Result<void> lock() noexcept = 0;
  /// Synchronous small transfers for headers: either all bytes or an error. Errors: Io, NoSpace.
  virtual Result<void> read_at(void* target, std::uint64_t length,
                               std::uint64_t offset) noexcept = 0;
  virtual Result<void> write_at(const void* source, std::uint64_t length,
                                std::uint64_t offset) noexcept = 0;

 private:
  std::atomic<const Error*> poison_ = nullptr;  // owned
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path,
                                             const OpenOptions& options) noexcept = 0;
  virtual Result<void> make_directory(const std::string& path) noexcept = 0;  // mode 0700
  virtual Result<void> remove(const std::string& path) noexcept = 0;
  virtual Result<void> remove_directory(const std::string& path) noexcept = 0;  // must be empty
  virtual Result<void> rename(const std::string& from, const std::string& to) noexcept = 0;
  virtual Result<void> sync_directory(const std::string& path) noexcept = 0;
  virtual Result<std::vector<std::string>> list(const std::string& path) noexcept = 0;  // names
  virtual Result<std::uint64_t> free_bytes(const std::string& path) noexcept = 0;
  virtual bool exists(const std::string& path) noexcept = 0;
  /// Returns the status of the name itself; a link is not followed. Calls lstat, unless overridden.
  /// Errors: Io (with ENOENT if the name does not exist).
  virtual Result<FileStatus> status(const std::string& path) noexcept;
  /// Opens a folder by its descriptor (base/durable_folder.h) in the kernel's file system, unless
  /// overridden. Errors: Io.
  virtual Result<std::unique_ptr<Folder>> open_folder(const std::string& path) noexcept;
};

/// The kernel's file system. One object for the process, never destroyed.
FileSystem& system_files() noexcept;

}  // namespace artesian
