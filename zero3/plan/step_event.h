// StepEvent: one thing that a training step does, with the bytes that it moves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3/plan/moves.h"
#include "zero3/plan/step_accesses.h"

namespace artesian::zero3 {

struct StepEvent {
  enum class Kind : std::uint8_t {
    Fetch,      // the transfers of `unit` start
    Await,      // waits for a fetch, and makes its bytes ready
    Compute,    // `stage`, in `direction`
    Input,      // inputs of `stage`: written after forward, read for backward
    Gradients,  // `numel` elements of `unit` join its accumulator
    Rows,       // gradients of looked-up rows, after the last micro-batch
    Zero,       // `unit` got no gradient: one of zeros
    Norm,       // norm of `unit`'s accumulated gradient
    Update,     // the optimizer, all sub-groups of `unit`: of the step before, its slot is filled;
                // or, `under_backward`, of this step
    Restore,    // an update of `unit` under backward is rolled back
  };
  Kind kind = Kind::Compute;
  std::uint32_t unit = 0;
  std::size_t stage = 0;
  Direction direction = Direction::Forward;
  bool ahead = false;               // a Fetch that was not waited for
  bool under_backward = false;      // an Update that may begin here and ends with the step
  std::uint64_t micro_batches = 1;  // for Compute and Gradients: how many, one after the other
  std::uint64_t numel = 0;          // for gradients: elements of one micro-batch
  std::uint64_t added = 0;          // and those that are added to accumulators, one by one,
  std::uint64_t set = 0;            // of which so many are set
  MovedByKind moved = {};
};

}  // namespace artesian::zero3
