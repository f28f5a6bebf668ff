// SwapLock: the exclusive claim of one rank on one nvme directory. The claim is a file that is
// locked (flock) while the run lives, and whose text names the holder; the kernel frees the lock
// when the holder dies.
//
// Removing a lock file is a race: another process may have opened it before, and would then hold a
// lock that nobody else can see. So after locking, the name must still lead to the locked file;
// otherwise it is opened again. Only the holder removes the name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian::tiering {

class SwapLock {
 public:
  /// Errors: Busy (holder's pid and host), Invalid (the name is taken by something that is not our
  /// lock file), NoSpace, Io.
  static Result<SwapLock> acquire(const std::string& directory, std::uint32_t rank,
                                  std::uint64_t run_id, FileSystem& files) noexcept;
  /// Takes the lock that a dead run left, without waiting; returns nothing if the lock is held,
  /// absent or foreign.
  static std::optional<SwapLock> take_over(const std::string& directory, std::uint32_t rank,
                                           FileSystem& files) noexcept;

  /// Removes the file and frees the lock. A lock that is destroyed without release() is freed, but
  /// its file remains. Errors: Io.
  Result<void> release() noexcept;

 private:
  SwapLock(std::string path, std::unique_ptr<File> file, FileSystem& files) noexcept;

  std::string path_;
  std::unique_ptr<File> file_;
  FileSystem* files_;
};

}  // namespace artesian::tiering
