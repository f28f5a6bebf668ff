// StepEvent: one operation of a training step, with the bytes that it moves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3/plan/moves.h"
#include "zero3/plan/step_accesses.h"

namespace artesian::zero3 {

struct StepEvent {
  enum class Kind : std::uint8_t {
    Fetch,      // starts the transfers of `unit`
    Await,      // waits for a fetch, and makes its bytes usable
    Compute,    // `stage`, in `direction`
    Input,      // inputs of `stage`: written after forward, read before backward
    Gradients,  // `numel` elements of `unit` are added to its accumulator
    Rows,       // adds the gradients of looked-up rows, after the last micro-batch
    Zero,       // `unit` got no gradient: sets it to zeros
    Norm,       // computes the norm of `unit`'s accumulated gradient
    Update,     // updates all sub-groups of `unit` with the previous step's gradients, and fills
                // its slot; or, if `under_backward`, with this step's gradients
    Restore,    // rolls back the update of `unit` under backward
  };
  Kind kind = Kind::Compute;
  std::uint32_t unit = 0;
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  bool ahead = false;           // a Fetch for which nothing waits: a prefetch
  bool under_backward = false;  // an Update that may begin here and ends by the end of the step
  // for Compute and Gradients: the number of micro-batches, one after the other
  std::uint64_t micro_batches = 1;
  std::uint64_t numel = 0;  // for gradients: elements per micro-batch
  std::uint64_t added = 0;  // and those that are added to accumulators, one by one,
  std::uint64_t set = 0;    // of which so many are set
  MovedByKind moved = {};
};

}  // namespace artesian::zero3
