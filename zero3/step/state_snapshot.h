// StateSnapshot: copies sub-groups that a pass reads into a checkpoint's file. It copies through
// buffers of its own, so that a target that is slow, full or gone holds nothing of the training's:
// then the snapshot has failed (tiering/snapshot_file.h), and the pass goes on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pinned/pool.h"
#include "tiering/snapshot_file.h"
#include "zero3/plan/saved_units.h"
#include "zero3/step/sub_group_stream.h"

namespace artesian::zero3 {

class StateSnapshot {
 public:
  /// The layout is that of the units. All must outlive it.
  StateSnapshot(const SavedUnits& units, const CheckpointLayout& layout,
                tiering::SnapshotFile& file, pinned::Pool& buffers) noexcept
      : units_(units), layout_(layout), file_(file), buffers_(buffers) {}

  /// Copies all arrays of a sub-group whose state has been read, and starts to write them.
  void add(const SubGroup& group) noexcept;

 private:
  void add_array(std::size_t image, SavedArray array, std::uint64_t sub_group,
                 const std::byte* data) noexcept;
  BufferLease buffer_for(std::uint64_t bytes) noexcept;

  const SavedUnits& units_;
  const CheckpointLayout& layout_;
  tiering::SnapshotFile& file_;
  pinned::Pool& buffers_;
};

}  // namespace artesian::zero3
