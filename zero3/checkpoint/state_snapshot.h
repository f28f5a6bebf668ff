// StateSnapshot: copies sub-groups of a pass into a checkpoint's file, and records which were
// copied. It uses buffers of its own, so that a target that is slow, full or gone blocks no
// resource of the training: the snapshot fails (tiering/snapshot_file.h), and the pass continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/executor.h"
#include "pinned/pool.h"
#include "tiering/snapshot_file.h"
#include "zero3/plan/saved_units.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {

class StateSnapshot {
 public:
  /// `layout` is that of `units`; all must outlive this object. The thread pool copies.
  StateSnapshot(const SavedUnits& units, const CheckpointLayout& layout,
                tiering::SnapshotFile& file, pinned::Pool& buffers, Executor& team) noexcept
      : units_(units), layout_(layout), file_(file), buffers_(buffers), team_(team) {}

  /// Copies all arrays of a sub-group from memory, and starts to write them. It may be another
  /// rank's, if the file has all ranks' parts.
  void add(const SubGroup& group) noexcept;
  /// Copies the bytes of each of the layout's buffers, in its order.
  void add_buffers(const std::vector<std::span<const std::byte>>& buffers) noexcept;
  /// True if this sub-group of the first part has been added, if only in part because the snapshot
  /// has failed.
  bool has(std::uint32_t unit, std::uint64_t index) const noexcept;
  /// Forgets everything added, as it is not the state to be saved.
  void forget() noexcept;
  bool failed() const noexcept { return file_.fault() != nullptr; }
  /// Bytes added, and bytes of the whole snapshot.
  std::uint64_t copied_bytes() const noexcept { return file_.bytes_given(); }
  std::uint64_t all_bytes() const noexcept { return file_.bytes_of_blocks(); }

 private:
  /// A block and the array part that it holds.
  struct Piece {
    std::uint64_t block = 0;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;
    BufferLease buffer{};
    // index of its first slice in the sequence of all pieces' slices
    std::uint64_t first_slice = 0;
  };
  std::uint64_t lease_pieces(const SubGroup& group, std::vector<Piece>& pieces) noexcept;
  void copy(std::vector<Piece>& pieces, std::uint64_t slices) noexcept;
  BufferLease buffer_for(std::uint64_t bytes) noexcept;

  const SavedUnits& units_;
  const CheckpointLayout& layout_;
  tiering::SnapshotFile& file_;
  pinned::Pool& buffers_;
  Executor& team_;
};

}  // namespace artesian::zero3
