// ExchangeBuffers: the host memory through which gradients go to the ranks whose shares they are
// of (Note [Shares] in layout.h). A unit's gradient goes a slice of every share at a time, so what
// this takes does not grow with the unit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

struct ExchangeBuffers {
  std::uint64_t ranks = 0;         // 0: there is one rank, and nothing is exchanged
  std::uint64_t slice = 0;         // elements of each share that go at a time
  std::uint64_t element_size = 0;  // bytes: gradients go in the dtype of the parameters
  std::uint64_t header = 0;        // bytes before each slice: its owner and content
  std::uint64_t whole = 0;         // bytes: of the largest gradient that is made in tiles
  std::uint64_t held = 0;          // bytes: of all gradients of a micro-batch, until it is whole

  std::uint64_t slice_bytes() const noexcept { return header + slice * element_size; }
  /// Bytes of one direction: sent or received.
  std::uint64_t way_bytes() const noexcept { return ranks * slice_bytes(); }
  /// What one rank sends of a unit's gradient of a micro-batch, and gets.
  std::uint64_t bytes_of(const Unit& unit) const noexcept;
  std::uint64_t bytes() const noexcept { return 2 * way_bytes() + whole + held; }
};

/// What decides how large they are, beside the model.
struct ExchangeOfRanks {
  std::uint64_t ranks = 2;  // of which there are several
  bool hooked = false;      // somebody else runs the model: gradients come in each rank's own order
  bool in_tiles = false;    // the host computes, and makes some parameters' gradients so
};
/// The buffers of a run with several ranks.
ExchangeBuffers exchange_buffers(const Layout& layout, const std::vector<ParameterSpec>& parameters,
                                 DType param_dtype, const ExchangeOfRanks& of);

}  // namespace artesian::zero3
