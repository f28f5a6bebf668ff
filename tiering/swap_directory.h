// The directory of a swap file: made if its parent exists, cleared of what dead runs left, and
// removed again by whoever leaves last, if a run made it.
//
// Only names of ours (swap_names.h) that lead to a regular file of the same user are ever removed,
// and only under the lock of the rank that they belong to.
#pragma once

#include <cstdint>
#include <string>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian::tiering {

/// Makes the directory (0700) unless it exists. Errors: Invalid (what is wrong with the path and
/// what to do), NoSpace, Io.
Result<void> prepare_swap_directory(const std::string& directory, FileSystem& files) noexcept;

/// An error of creating a file in the directory, in terms of what the user can do about it.
Error swap_directory_error(const std::string& directory, Error error);

/// Removes the swap files and locks of runs that are dead. The caller holds the lock of `rank`.
void remove_stale_swap_files(const std::string& directory, std::uint32_t rank,
                             FileSystem& files) noexcept;

/// Bytes of the swap files that a run of rank 0 would so remove now, if it got the lock. Changes
/// nothing: a lock that a dead run left is taken for a moment, and left there.
std::uint64_t stale_swap_bytes(const std::string& directory, FileSystem& files) noexcept;

/// Removes the directory if a run made it and it is empty. The caller's files are removed before.
void leave_swap_directory(const std::string& directory, FileSystem& files) noexcept;

}  // namespace artesian::tiering
