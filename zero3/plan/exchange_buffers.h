// ExchangeBuffers: the memory through which gradients are sent to the ranks that own their shares
// (Note [Shares] in layout.h): the host's, or that of each rank's device, or both, if the host
// holds gradients that pass from device to device. A unit's gradient is sent one slice of every
// share at a time, so the memory does not grow with the unit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

struct ExchangeBuffers {
  std::uint64_t ranks = 0;         // 0: one rank, so that nothing is exchanged
  std::uint64_t slice = 0;         // elements of each share that are sent at a time
  std::uint64_t element_size = 0;  // bytes of `sent_dtype`
  DType sent_dtype = DType::Float32;
  std::uint64_t header = 0;  // bytes before each slice: its owner and content
  // Slices go from device to device, and headers once a unit through host memory.
  bool on_device = false;
  std::uint64_t whole = 0;  // bytes of the largest gradient that is computed in tiles
  std::uint64_t held = 0;   // bytes of gradients until they are sent
  bool held_there = false;  // in device memory
  DType held_dtype = DType::Float32;
  bool once = false;  // each rank's sums of all micro-batches are sent, once a step
  // By unit, if gradients are held: where its gradients are; stages may share a place, and are then
  // held one after the other.
  std::vector<std::uint64_t> held_at{};

  std::uint64_t slice_bytes() const noexcept {
    const bool through_host = !on_device || !held_at.empty();
    return header + (through_host ? slice * element_size : 0);
  }
  /// Bytes of host memory for one direction: sent or received.
  std::uint64_t way_bytes() const noexcept { return ranks * slice_bytes(); }
  /// Bytes that one rank sends, and receives, of a unit's gradient at a time.
  std::uint64_t bytes_of(const Unit& unit) const noexcept;
  std::uint64_t bytes() const noexcept { return 2 * way_bytes() + whole + (held_there ? 0 : held); }
  /// Bytes of device memory, for one direction and in all.
  std::uint64_t device_way_bytes() const noexcept {
    return on_device ? ranks * slice * element_size : 0;
  }
  std::uint64_t device_bytes() const noexcept {
    return 2 * device_way_bytes() + (held_there ? held : 0);
  }
};

/// What determines their size, besides the model.
struct ExchangeOfRanks {
  std::uint64_t ranks = 2;  // number of ranks; several
  bool hooked = false;      // the caller runs the model: gradients arrive in each rank's own order
  bool cut = false;         // parameters are cut: that order is the same, and units are sent early
  bool in_tiles = false;    // the host computes, and computes some gradients in tiles
  bool once = false;        // ExchangeBuffers::once
  DType param_dtype = DType::Float32;
  std::optional<DType> sent_dtype{};  // Config::communication_dtype
  DType grad_dtype = DType::Float32;  // that of accumulated gradients
  bool on_device = false;             // as ExchangeBuffers::on_device
  bool hold_there = false;            // the device holds gradients, unless they are sent once
};
/// The buffers of a run with several ranks.
ExchangeBuffers exchange_buffers(const Layout& layout, const std::vector<ParameterSpec>& parameters,
                                 const ExchangeOfRanks& of);

}  // namespace artesian::zero3
