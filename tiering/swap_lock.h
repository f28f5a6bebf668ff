// SwapLock: the exclusive claim of one rank on one nvme directory. A file that is flock'ed while
// the run lives and says, as text, who holds it; the kernel frees it when the holder dies, however
// it dies.
//
// Removing a lock file is a race: another process may have opened it before, and would then hold a
// lock that nobody else can see. So a lock counts only if, once locked, its name still leads to it
// (else: again); and only the holder removes the name.
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
  /// Takes the lock that a dead run left, without waiting; nothing if it is held, absent or
  /// foreign.
  static std::optional<SwapLock> take_over(const std::string& directory, std::uint32_t rank,
                                           FileSystem& files) noexcept;

  /// Removes the file and frees the lock. A lock that is dropped without release is freed, and its
  /// file left. Errors: Io.
  Result<void> release() noexcept;

 private:
  SwapLock(std::string path, std::unique_ptr<File> file, FileSystem& files) noexcept;

  std::string path_;
  std::unique_ptr<File> file_;
  FileSystem* files_;
};

}  // namespace artesian::tiering
