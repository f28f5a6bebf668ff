// GradientExchange: sends this rank's gradients to the ranks that own the shares, and delivers the
// other ranks' gradients for its own share. Nothing is reduced in transit: the owner of an element
// gets every rank's gradient, in the order of the ranks, and adds them as a single rank with all
// micro-batches would. So N ranks give the bits of one.
//
// Messages list the parameters that they contain: a parameter that a rank's micro-batch does not
// use has no gradient there, and nothing is added for it. Every rank learns this about all ranks.
//
// Where devices reach each other, gradients pass from one to the other, in slices packed in the
// queue Bus, or by the host, where it holds them. The lists of parameters pass through host memory
// first: there ranks meet.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "comm/group.h"
#include "tiering/device_reader.h"
#include "zero3/plan/placement.h"
#include "zero3/step/bus.h"

namespace artesian::zero3 {

/// One parameter's gradient of one micro-batch: [numel] of the parameter, contiguous.
struct ParameterGradient {
  std::uint32_t parameter = 0;
  const void* data = nullptr;
};

/// The gradient rows of one look-up of a parameter, as kept by StepCore::add_rows().
struct RowsOfLookup {
  std::span<const std::int64_t> rows;
  const float* gradient = nullptr;  // [rows, width], host memory
};

/// The memory and dtype of gradients.
struct GradientSource {
  DType dtype = DType::Float32;  // fp32, or already rounded to the parameters' dtype
  bool on_device = false;        // on a separate device, complete once `written` has passed
  tiering::DeviceFence written{};
  tiering::Queue queue = tiering::Queue::Compute;  // in which the device adds them
};

/// Gradients of parameters of one unit.
struct GradientsOfUnit {
  std::span<const ParameterGradient> gradients;
  GradientSource source{};
};

class GradientExchange {
 public:
  /// `buffer`: memory of plan.exchange. `reader`: that of a separate device, or null. All must
  /// outlive it.
  GradientExchange(const Placement& plan, comm::Group& group, std::span<std::byte> buffer,
                   Executor& executor, tiering::DeviceReader* reader);
  /// Makes gradients pass from device to device, through `buffer` there. Both must outlive this.
  void take_bus(Bus& bus, std::span<std::byte> buffer) noexcept;

  /// One rank's gradient for elements [first, first + count) of this rank's share.
  struct Arrived {
    std::uint32_t rank = 0;
    const std::vector<bool>& present;  // by index in Unit::parameters
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    const std::byte* data = nullptr;  // [count]
    GradientSource source{};          // in plan.exchange.sent_dtype
  };
  using Sink = std::function<Result<void>(const Arrived&)>;
  /// Calls `sink` slice by slice, and within a slice rank by rank. Every rank calls this with the
  /// same unit, whatever gradients it has. Errors: the group's, the sink's, the device's.
  Result<void> run(std::uint32_t unit, const GradientsOfUnit& own, const Sink& sink);

  /// Rows of a parameter in this rank's share, or the parts of them in it. For each row: the
  /// gradients of all ranks' look-ups, by look-up, then rank, then position.
  struct Rows {
    std::uint64_t width = 0;
    bool some = false;  // some rank has a gradient for some share
    std::vector<std::int64_t> rows;
    std::vector<const float*> gradients;         // from the row's first element in the share
    std::vector<std::vector<std::byte>> memory;  // owns the gradients' memory
    /// The rows of one rank's look-up.
    struct Run {
      std::uint32_t rank = 0;
      std::size_t first = 0;  // index of the first in `rows`
      std::size_t count = 0;
    };
    std::vector<Run> runs;
  };
  /// Exchanges rows. `lookups`: those of this rank's micro-batches, in order. Errors: the group's.
  Result<Rows> rows(std::uint32_t parameter, std::span<const RowsOfLookup> lookups,
                    std::uint64_t width);

  /// Memory for a parameter's gradient that arrives in tiles, until it is sent.
  std::byte* whole() const noexcept { return buffer_.data() + 2 * plan_.exchange.way_bytes(); }
  /// Memory for all gradients of a micro-batch.
  std::span<std::byte> held() const noexcept {
    if (plan_.exchange.held_there) return on_device_.last(plan_.exchange.held);
    const std::uint64_t begin = 2 * plan_.exchange.way_bytes() + plan_.exchange.whole;
    return buffer_.subspan(begin, plan_.exchange.held);
  }

  comm::Group& group() noexcept { return group_; }

 private:
  struct RowCount {
    std::uint64_t rows = 0;
    std::uint64_t elements = 0;
  };
  struct OutgoingRows;
  OutgoingRows outgoing_rows(std::uint32_t parameter, std::span<const RowsOfLookup> lookups,
                             std::uint64_t width) const;
  Result<std::vector<std::vector<RowCount>>> exchange_counts(const std::vector<RowCount>& mine,
                                                             const comm::What& what);
  void list_rows(std::uint32_t parameter, std::uint64_t width,
                 const std::vector<std::vector<RowCount>>& told,
                 const std::vector<RowCount>& incoming, Rows& rows) const;
  std::span<std::byte> outgoing(std::uint32_t rank) const noexcept;
  std::span<std::byte> incoming(std::uint32_t rank) const noexcept;
  struct Copy;
  std::vector<Copy> copies_of(const Unit& unit, const GradientsOfUnit& own, std::uint64_t first,
                              std::uint64_t count, std::byte* to, std::uint64_t slice_bytes) const;
  std::vector<bool> present_in(std::uint32_t unit, const GradientsOfUnit& own) const;
  Result<void> run_on_device(std::uint32_t unit, const GradientsOfUnit& own, const Sink& sink);
  Result<std::vector<std::vector<bool>>> meet(std::uint32_t unit, const std::vector<bool>& mine);
  Result<void> pack(const Unit& unit, const GradientsOfUnit& own, std::uint64_t first,
                    std::uint64_t count) const;
  Result<void> fill_there(const Unit& unit, const GradientsOfUnit& own, std::uint64_t first,
                          std::uint64_t count) const;
  std::byte* there(std::uint32_t rank) const noexcept;
  Result<void> fill(const Unit& unit, const GradientsOfUnit& own, std::uint64_t first,
                    std::uint64_t count) const;
  void write_header(std::uint32_t unit, const std::vector<bool>& present,
                    std::uint64_t first) const;
  Result<std::vector<bool>> read_header(std::uint32_t unit, std::uint32_t rank,
                                        std::uint64_t first) const;

  const Placement& plan_;
  comm::Group& group_;
  const std::span<std::byte> buffer_;
  Executor& executor_;
  tiering::DeviceReader* const reader_;
  Bus* bus_ = nullptr;
  std::span<std::byte> on_device_;
};

/// The elements of row `row` of a parameter that are in a rank's share.
struct RowInShare {
  std::uint64_t row_first = 0;    // index in the row
  std::uint64_t share_first = 0;  // index in the share
  std::uint64_t count = 0;        // 0 if there are none
};
RowInShare row_in_share(const Layout& layout, std::uint32_t parameter, std::uint64_t width,
                        std::int64_t row, std::uint64_t rank) noexcept;

}  // namespace artesian::zero3
