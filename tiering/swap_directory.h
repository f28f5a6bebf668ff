// The directory of a swap file: created if its parent exists, cleared of files left by dead runs,
// and removed by the last run that leaves it, if a run created it.
//
// Only files with our names (swap_names.h) that are regular files of the same user are ever
// removed, and only under the lock of their rank.
#pragma once

#include <cstdint>
#include <string>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian::tiering {

/// Makes the directory (0700) unless it exists. Errors: Invalid (what is wrong with the path and
/// what to do), NoSpace, Io.
Result<void> prepare_swap_directory(const std::string& directory, FileSystem& files) noexcept;

/// Converts an error of creating a file in the directory into one that tells the user what to do.
Error swap_directory_error(const std::string& directory, Error error);

/// Removes the swap files and locks of runs that are dead. The caller holds the lock of `rank`.
void remove_stale_swap_files(const std::string& directory, std::uint32_t rank,
                             FileSystem& files) noexcept;

/// Bytes of the swap files that a run of rank 0 would remove in this way now, if it got the lock.
/// Changes nothing: the lock of a dead run is taken for a moment only, and left there.
std::uint64_t stale_swap_bytes(const std::string& directory, FileSystem& files) noexcept;

/// Removes the directory if a run made it and it is empty. The caller must have removed its files.
void leave_swap_directory(const std::string& directory, FileSystem& files) noexcept;

}  // namespace artesian::tiering
