// MicroBatchSums: what one micro-batch of this rank has made of gradients so far, in the dtype of
// the parameters. It is kept until the micro-batch is whole, and then goes to the ranks whose
// shares it is of: so each rank may run another graph, in an order of its own.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/executor.h"
#include "zero3/plan/placement.h"
#include "zero3/step/gradient_exchange.h"

namespace artesian::zero3 {

class MicroBatchSums {
 public:
  /// `memory`: plan.exchange.held bytes. All must outlive it.
  MicroBatchSums(const Placement& plan, std::span<std::byte> memory, Executor& executor);

  bool has(std::uint32_t parameter) const noexcept { return here_[parameter]; }
  bool has_rows(std::uint32_t parameter) const { return rows_.contains(parameter); }
  /// Adds elements [first, first + count) of a parameter; the first addition of all sets them.
  /// Shape: data: [count], fp32 or rounded already.
  void add(std::uint32_t parameter, std::uint64_t first, const std::byte* data, DType dtype,
           std::uint64_t count);
  /// All of the parameter's elements have been added, once more.
  void added(std::uint32_t parameter) { here_[parameter] = true; }
  /// The gradients of a unit that have arrived.
  std::vector<ParameterGradient> of_unit(std::uint32_t unit) const;

  /// Keeps one look-up's rows of a parameter.
  void add_rows(std::uint32_t parameter, std::vector<std::int64_t> rows,
                std::vector<float> gradient);
  /// In their order.
  std::vector<RowsOfLookup> rows_of(std::uint32_t parameter) const;

  /// Everything is as at first.
  void clear();

 private:
  struct Kept {
    std::vector<std::int64_t> rows;
    std::vector<float> gradient;  // [rows, width]
  };
  std::byte* data(std::uint32_t parameter) const;

  const Placement& plan_;
  const std::span<std::byte> memory_;
  Executor& executor_;
  std::vector<std::uint64_t> images_;  // by unit: where its image begins in `memory_`
  std::vector<bool> here_;             // by parameter: its gradient has arrived
  std::map<std::uint32_t, std::vector<Kept>> rows_;
};

}  // namespace artesian::zero3
