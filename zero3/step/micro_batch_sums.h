// MicroBatchSums: the gradients of one micro-batch of this rank so far, in the parameters' dtype.
// They are kept until they are sent to the ranks that own the shares: with the micro-batch
// complete, so that each rank may run a different graph, in its own order; or, if parameters are
// cut, with the unit complete (StepCore::send_gradients). With `artesian.reduction` fast they are
// the sums of all micro-batches of the step, in the dtype of accumulated gradients. Memory of a
// separate device is added to in its queue Compute.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/executor.h"
#include "tiering/device/device.h"
#include "zero3/plan/placement.h"
#include "zero3/step/gradient_exchange.h"

namespace artesian::zero3 {

class MicroBatchSums {
 public:
  /// `memory`: plan.exchange.held bytes, of the device if plan.exchange.held_there. All must
  /// outlive it.
  MicroBatchSums(const Placement& plan, std::span<std::byte> memory, Executor& executor,
                 tiering::Device& device);

  bool has(std::uint32_t parameter) const noexcept { return here_[parameter]; }
  bool has_rows(std::uint32_t parameter) const { return rows_.contains(parameter); }
  /// Adds elements [first, first + count) of a parameter; the first addition overwrites. Shape:
  /// data: [count], fp32 or already rounded.
  void add(std::uint32_t parameter, std::uint64_t first, const std::byte* data, DType dtype,
           std::uint64_t count);
  /// True if the unit's gradients are held in device memory: then add_there() adds them, else
  /// add().
  bool is_there(std::uint32_t unit);
  /// Adds all elements of a parameter, at `data` in device memory. Errors: Io (the device).
  Result<void> add_there(std::uint32_t parameter, const void* data, DType dtype);
  /// Records that all elements of the parameter have been added once more.
  void added(std::uint32_t parameter) { here_[parameter] = true; }
  /// The gradients of a unit that have arrived.
  std::vector<ParameterGradient> of_unit(std::uint32_t unit) const;

  /// Keeps one look-up's rows of a parameter.
  void add_rows(std::uint32_t parameter, std::vector<std::int64_t> rows,
                std::vector<float> gradient);
  /// The look-ups' rows of a parameter, in order.
  std::vector<RowsOfLookup> rows_of(std::uint32_t parameter) const;

  /// The most bytes that were needed beside the memory.
  std::uint64_t bytes_beside_max() const noexcept { return bytes_beside_max_; }
  /// Resets to the initial state, or does so for a unit.
  void clear();
  void clear(std::uint32_t unit);

 private:
  struct Kept {
    std::vector<std::int64_t> rows;
    std::vector<float> gradient;  // [rows, width]
  };
  std::byte* data(std::uint32_t parameter) const;
  std::uint64_t image_bytes(std::uint32_t unit) const noexcept;
  void make_room(std::uint32_t unit);

  const Placement& plan_;
  const std::span<std::byte> memory_;
  Executor& executor_;
  tiering::Device& device_;
  std::vector<std::byte*> images_;  // by unit: its image; null if it has none now
  // Images, in host memory, of units whose place another unit has: those that have not arrived in
  // the order of the stages.
  std::map<std::uint32_t, std::unique_ptr<std::byte[]>> beside_;
  std::uint64_t bytes_beside_ = 0;
  std::uint64_t bytes_beside_max_ = 0;
  std::vector<bool> here_;  // by parameter: whether its gradient has arrived
  std::map<std::uint32_t, std::vector<Kept>> rows_;
};

}  // namespace artesian::zero3
