// The swap file: one preallocated file per rank and path, divided into extents, rather than one
// file per tensor.
//
// Promises: the path is locked exclusively (two runs on one path: the second gets Busy with the
// holder's pid and host); space is reserved before the first step, so that a full disk is an error
// at that time and not later; files have mode 0600, created directories 0700; files left by dead
// runs are removed, foreign files never; close() leaves nothing behind and also removes the lock
// and a directory that a run created. Block 0 is the superblock region: run id, format version,
// generation, several copies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/result.h"
#include "tiering/disk/extent.h"

namespace artesian::tiering {

struct SwapFileOptions {
  std::string directory;  // created (0700) if its parent exists
  std::uint32_t rank = 0;
  std::uint64_t run_id = 0;  // random per run; in every superblock copy and checksum seed
  std::uint64_t bytes = 0;   // payload bytes for all extents, each rounded up to 4096
  Direct direct = Direct::IfAligned;
};

class SwapFile {
 public:
  /// Errors: Invalid (the directory: what is wrong and what to do), Busy (holder's pid and host),
  /// NoSpace (needed and free bytes), Io.
  static Result<std::unique_ptr<SwapFile>> create(const SwapFileOptions& options,
                                                  FileSystem& files) noexcept;
  /// Checks that close() was called.
  ~SwapFile();

  /// Makes room for a payload of at least `bytes`. Errors: as create.
  Result<void> grow(std::uint64_t bytes) noexcept;
  /// As grow(), for optional space: takes at most half of the free bytes, else NoSpace.
  Result<void> grow_into_half(std::uint64_t bytes) noexcept;
  /// An extent of at least `bytes`, 4096-aligned. Errors: Exhausted.
  Result<Extent> allocate(std::uint64_t bytes) noexcept;
  File& file() noexcept;
  std::uint64_t bytes_used() const noexcept;
  /// Unlinks file and lock. Nothing may be in flight.
  Result<void> close() noexcept;

 private:
  class Impl;
  explicit SwapFile(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace artesian::tiering
