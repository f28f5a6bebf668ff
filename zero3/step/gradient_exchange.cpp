#include "zero3/step/gradient_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cast.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t task_elements = 16384;  // elements copied by one task of the thread pool

/// Precedes a slice; followed by one bit for each parameter of the unit.
struct Header {
  std::uint32_t unit = 0;
  std::uint32_t parameters = 0;
  std::uint64_t first = 0;
};
static_assert(sizeof(Header) == 16);

template <typename Value>
std::span<const std::byte> bytes_of(const std::vector<Value>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

RowInShare row_in_share(const Layout& layout, std::uint32_t parameter, std::uint64_t width,
                        std::int64_t row, std::uint64_t rank) noexcept {
  const ParameterPlace& place = layout.places[parameter];
  ARTESIAN_CHECK(row >= 0 && static_cast<std::uint64_t>(row) < place.numel / width, row, width);
  const Unit& unit = layout.units[place.unit];
  const std::uint64_t first = place.first + static_cast<std::uint64_t>(row) * width;
  const Unit::Range part = unit.in_share(first, width, rank);
  if (part.count() == 0) return {};
  return {part.begin - first, part.begin - unit.share_begin(rank), part.count()};
}

GradientExchange::GradientExchange(const Placement& plan, comm::Group& group,
                                   std::span<std::byte> buffer, Executor& executor,
                                   tiering::DeviceReader* reader)
    : plan_(plan), group_(group), buffer_(buffer), executor_(executor), reader_(reader) {
  ARTESIAN_CHECK(plan.exchange.ranks == group.ranks(), plan.exchange.ranks, group.ranks());
  ARTESIAN_CHECK(buffer.size() >= plan.exchange.bytes(), buffer.size(), plan.exchange.bytes());
}

void GradientExchange::take_bus(Bus& bus, std::span<std::byte> buffer) noexcept {
  ARTESIAN_CHECK(plan_.exchange.on_device && buffer.size() >= plan_.exchange.device_bytes(),
                 buffer.size());
  bus_ = &bus;
  on_device_ = buffer;
}

std::span<std::byte> GradientExchange::outgoing(std::uint32_t rank) const noexcept {
  const std::uint64_t bytes = plan_.exchange.slice_bytes();
  return buffer_.subspan(rank * bytes, bytes);
}

std::span<std::byte> GradientExchange::incoming(std::uint32_t rank) const noexcept {
  const std::uint64_t bytes = plan_.exchange.slice_bytes();
  return buffer_.subspan(plan_.exchange.way_bytes() + rank * bytes, bytes);
}

void GradientExchange::write_header(std::uint32_t unit, const std::vector<bool>& present,
                                    std::uint64_t first) const {
  const Header header{unit, static_cast<std::uint32_t>(present.size()), first};
  ARTESIAN_CHECK(sizeof header + (present.size() + 7) / 8 <= plan_.exchange.header, unit);
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    std::byte* const target = outgoing(rank).data();
    std::memset(target, 0, plan_.exchange.header);
    std::memcpy(target, &header, sizeof header);
    for (std::size_t index = 0; index < present.size(); ++index) {
      if (present[index]) target[sizeof header + index / 8] |= std::byte(1 << index % 8);
    }
  }
}

/// Returns which parameters a rank's slice contains. Errors: Invalid: the slice belongs to
/// something else.
Result<std::vector<bool>> GradientExchange::read_header(std::uint32_t unit, std::uint32_t rank,
                                                        std::uint64_t first) const {
  const std::byte* const source = incoming(rank).data();
  Header header;
  std::memcpy(&header, source, sizeof header);
  const auto& units = plan_.layout.units;
  if (header.unit != unit || header.first != first) {
    const char* const other =
        header.unit < units.size() ? units[header.unit].name.c_str() : "no unit of this model";
    return make_error(
        ErrorCode::Invalid,
        fmt::format("rank {} sends gradients of {} from element {} on, and rank {} "
                    "those of {} from {} on; all ranks must run the same model",
                    rank, other, header.first, group_.rank(), units[unit].name, first));
  }
  std::vector<bool> present(header.parameters);
  ARTESIAN_CHECK(present.size() == units[unit].parameters.size(), present.size(), unit);
  for (std::size_t index = 0; index < present.size(); ++index) {
    const auto bits = static_cast<unsigned>(source[sizeof header + index / 8]);
    present[index] = (bits >> index % 8 & 1u) != 0;
  }
  return present;
}

/// A copy of elements into the send buffer.
struct GradientExchange::Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t count = 0;
};

/// Device memory with elements for a rank.
std::byte* GradientExchange::there(std::uint32_t rank) const noexcept {
  return on_device_.data() + rank * plan_.exchange.slice * plan_.exchange.element_size;
}

/// Returns the copies for elements [first, first + count) of every share. `to`: where those for the
/// first rank go; `slice_bytes`: from there to those for the next.
std::vector<GradientExchange::Copy> GradientExchange::copies_of(const Unit& unit,
                                                                const GradientsOfUnit& own,
                                                                std::uint64_t first,
                                                                std::uint64_t count, std::byte* to,
                                                                std::uint64_t slice_bytes) const {
  const std::uint64_t size = plan_.exchange.element_size;
  const std::uint64_t source_size = dtype_size(own.source.dtype);
  std::vector<Copy> copies;
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    const std::uint64_t image_first = rank * unit.share + first;
    std::byte* const target = to + rank * slice_bytes;
    for (const ParameterGradient& gradient : own.gradients) {
      const ParameterPlace& place = plan_.layout.places[gradient.parameter];
      const std::uint64_t begin = std::max(place.first, image_first);
      const std::uint64_t end = std::min(place.first + place.numel, image_first + count);
      if (begin >= end) continue;
      const auto* const source = static_cast<const std::byte*>(gradient.data);
      copies.push_back({source + (begin - place.first) * source_size,
                        target + (begin - image_first) * size, end - begin});
    }
  }
  return copies;
}

/// Copies elements [first, first + count) of every share into the send buffers.
Result<void> GradientExchange::fill(const Unit& unit, const GradientsOfUnit& own,
                                    std::uint64_t first, std::uint64_t count) const {
  const std::uint64_t size = plan_.exchange.element_size;
  const std::uint64_t source_size = dtype_size(own.source.dtype);
  const std::vector<Copy> whole =
      copies_of(unit, own, first, count, outgoing(0).data() + plan_.exchange.header,
                plan_.exchange.slice_bytes());
  const auto copy_to = [&](std::byte* to, const std::byte* from, std::uint64_t elements) {
    const DType sent = plan_.exchange.sent_dtype;
    if (own.source.dtype == sent) {
      std::memcpy(to, from, elements * size);
    } else if (sent == DType::Float32) {
      kernels::expand(from, own.source.dtype, reinterpret_cast<float*>(to), elements);
    } else {  // infinities and NaNs are kept, and found by the norm
      static_cast<void>(kernels::narrow(reinterpret_cast<const float*>(from), to, sent, elements));
    }
  };
  if (own.source.on_device) {
    ARTESIAN_CHECK(reader_ != nullptr, unit.name);
    std::vector<tiering::DeviceReader::Part> parts;
    parts.reserve(whole.size());
    for (const Copy& copy : whole) parts.push_back({copy.from, copy.count * source_size});
    return reader_->read(parts, own.source.written,
                         [&](std::size_t part, std::uint64_t offset,
                             std::span<const std::byte> piece) -> Result<void> {
                           copy_to(whole[part].to + offset / source_size * size, piece.data(),
                                   piece.size() / source_size);
                           return {};
                         });
  }
  std::vector<Copy> copies;  // copies, one task each
  for (const Copy& copy : whole) {
    for (std::uint64_t begin = 0; begin < copy.count; begin += task_elements) {
      copies.push_back({copy.from + begin * source_size, copy.to + begin * size,
                        std::min(task_elements, copy.count - begin)});
    }
  }
  executor_.parallel_for(copies.size(), 1, [&](std::uint64_t from, std::uint64_t to) {
    for (; from < to; ++from) {
      const Copy& copy = copies[static_cast<std::size_t>(from)];
      copy_to(copy.to, copy.from, copy.count);
    }
  });
  return {};
}

/// Returns, by index in Unit::parameters, whether this rank has a gradient.
std::vector<bool> GradientExchange::present_in(std::uint32_t unit,
                                               const GradientsOfUnit& own) const {
  const Unit& described = plan_.layout.units[unit];
  std::vector<bool> mine(described.parameters.size());
  for (const ParameterGradient& gradient : own.gradients) {
    ARTESIAN_CHECK(plan_.layout.places[gradient.parameter].unit == unit, unit, gradient.parameter);
    const auto found =
        std::find(described.parameters.begin(), described.parameters.end(), gradient.parameter);
    mine[static_cast<std::size_t>(found - described.parameters.begin())] = true;
  }
  return mine;
}

/// Tells all ranks which gradients this one has of the unit; returns what each rank has.
Result<std::vector<std::vector<bool>>> GradientExchange::meet(std::uint32_t unit,
                                                              const std::vector<bool>& mine) {
  write_header(unit, mine, 0);
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    sent.push_back(outgoing(rank).first(plan_.exchange.header));
    received.push_back(rank == group_.rank() ? std::span<std::byte>()
                                             : incoming(rank).first(plan_.exchange.header));
  }
  ARTESIAN_TRY_VOID(
      group_.all_to_all(sent, received, {"gradients of", plan_.layout.units[unit].name}));
  std::vector<std::vector<bool>> present(group_.ranks(), mine);
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    if (rank == group_.rank()) continue;
    ARTESIAN_TRY(told, read_header(unit, rank, 0));
    present[rank] = std::move(told);
  }
  return present;
}

/// Copies elements [first, first + count) of every share to where they are sent from, in the queue
/// Bus.
Result<void> GradientExchange::pack(const Unit& unit, const GradientsOfUnit& own,
                                    std::uint64_t first, std::uint64_t count) const {
  std::vector<kernels::GradientPiece> pieces;
  const std::uint64_t slice_bytes = plan_.exchange.slice * plan_.exchange.element_size;
  for (const Copy& copy : copies_of(unit, own, first, count, there(0), slice_bytes)) {
    pieces.push_back(
        {.acc = copy.to, .grad = copy.from, .count = copy.count, .how = kernels::Accumulate::Set});
  }
  if (pieces.empty()) return {};
  return bus_->device().accumulate_gradients(tiering::Queue::Bus, pieces,
                                             {.acc = plan_.exchange.sent_dtype,
                                              .grad = own.source.dtype,
                                              .rounded = plan_.exchange.sent_dtype});
}

/// The same of gradients in host memory. The host's buffer is free again once Bus has passed.
Result<void> GradientExchange::fill_there(const Unit& unit, const GradientsOfUnit& own,
                                          std::uint64_t first, std::uint64_t count) const {
  tiering::Device& device = bus_->device();
  ARTESIAN_TRY_VOID(fill(unit, own, first, count));
  ARTESIAN_TRY(added, device.record(tiering::Queue::Bus));  // this rank's part of the last slice
  ARTESIAN_TRY_VOID(device.wait(tiering::Queue::ToDevice, added));
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    ARTESIAN_TRY_VOID(device.copy_to_device(there(rank),
                                            outgoing(rank).data() + plan_.exchange.header,
                                            count * plan_.exchange.element_size));
  }
  ARTESIAN_TRY(copied, device.record(tiering::Queue::ToDevice));
  return device.wait(tiering::Queue::Bus, copied);
}

/// The gradients may be released when this returns, as Bus waits for what it has enqueued.
Result<void> GradientExchange::run_on_device(std::uint32_t unit, const GradientsOfUnit& own,
                                             const Sink& sink) {
  const Unit& described = plan_.layout.units[unit];
  ARTESIAN_TRY(present, meet(unit, present_in(unit, own)));
  ARTESIAN_TRY_VOID(bus_->device().wait(tiering::Queue::Bus, own.source.written));
  const std::uint64_t way = plan_.exchange.device_way_bytes();
  for (std::uint64_t first = 0; first < described.share; first += plan_.exchange.slice) {
    const std::uint64_t count = std::min(plan_.exchange.slice, described.share - first);
    const auto bytes = static_cast<std::size_t>(count * plan_.exchange.element_size);
    if (own.source.on_device) {
      ARTESIAN_TRY_VOID(pack(described, own, first, count));
    } else if (!own.gradients.empty()) {
      ARTESIAN_TRY_VOID(fill_there(described, own, first, count));
    }
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
      const bool ours = rank == group_.rank();
      sent.emplace_back(there(rank), bytes);
      received.emplace_back(there(rank) + way, ours ? 0 : bytes);
    }
    ARTESIAN_TRY_VOID(bus_->all_to_all(sent, received, {"gradients of", described.name}));
    for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
      const std::byte* const data =
          rank == group_.rank() ? sent[rank].data() : received[rank].data();
      const GradientSource source{
          .dtype = plan_.exchange.sent_dtype, .on_device = true, .queue = tiering::Queue::Bus};
      ARTESIAN_TRY_VOID(sink({rank, present[rank], first, count, data, source}));
    }
  }
  return {};
}

Result<void> GradientExchange::run(std::uint32_t unit, const GradientsOfUnit& own,
                                   const Sink& sink) {
  if (bus_ != nullptr) return run_on_device(unit, own, sink);
  const Unit& described = plan_.layout.units[unit];
  ARTESIAN_CHECK(own.source.dtype == DType::Float32 || own.source.dtype == plan_.param_dtype, unit);
  const std::vector<bool> mine = present_in(unit, own);
  for (std::uint64_t first = 0; first < described.share; first += plan_.exchange.slice) {
    const std::uint64_t count = std::min(plan_.exchange.slice, described.share - first);
    const std::uint64_t bytes = plan_.exchange.header + count * plan_.exchange.element_size;
    write_header(unit, mine, first);
    ARTESIAN_TRY_VOID(fill(described, own, first, count));
    std::vector<std::span<const std::byte>> sent;
    std::vector<std::span<std::byte>> received;
    for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
      sent.push_back(outgoing(rank).first(bytes));
      received.push_back(rank == group_.rank() ? std::span<std::byte>()
                                               : incoming(rank).first(bytes));
    }
    ARTESIAN_TRY_VOID(group_.all_to_all(sent, received, {"gradients of", described.name}));
    for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
      const bool ours = rank == group_.rank();
      std::vector<bool> present = mine;
      if (!ours) {
        ARTESIAN_TRY(told, read_header(unit, rank, first));
        present = std::move(told);
      }
      const std::byte* const data =
          (ours ? outgoing(rank) : incoming(rank)).data() + plan_.exchange.header;
      const GradientSource source{.dtype = plan_.exchange.sent_dtype};
      ARTESIAN_TRY_VOID(sink({rank, present, first, count, data, source}));
    }
  }
  return {};
}

/// Rows of a parameter to send to each rank: ids of all look-ups, then elements; and their counts.
struct GradientExchange::OutgoingRows {
  std::vector<std::vector<std::byte>> bytes;  // by rank
  std::vector<RowCount> counts;               // by look-up, then rank
};

GradientExchange::OutgoingRows GradientExchange::outgoing_rows(
    std::uint32_t parameter, std::span<const RowsOfLookup> lookups, std::uint64_t width) const {
  const std::uint32_t ranks = group_.ranks();
  OutgoingRows out;
  out.counts.resize(lookups.size() * ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> ids;
    std::vector<float> elements;
    for (std::size_t lookup = 0; lookup < lookups.size(); ++lookup) {
      RowCount& count = out.counts[lookup * ranks + rank];
      for (std::size_t at = 0; at < lookups[lookup].rows.size(); ++at) {
        const std::int64_t row = lookups[lookup].rows[at];
        const RowInShare part = row_in_share(plan_.layout, parameter, width, row, rank);
        if (part.count == 0) continue;
        const float* const begin = lookups[lookup].gradient + at * width + part.row_first;
        ids.push_back(row);
        elements.insert(elements.end(), begin, begin + part.count);
        count = {count.rows + 1, count.elements + part.count};
      }
    }
    const auto head = bytes_of(ids);
    const auto body = bytes_of(elements);
    auto& bytes = out.bytes.emplace_back(head.begin(), head.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
  }
  return out;
}

/// The number of rows that every rank sends, by look-up and receiving rank.
Result<std::vector<std::vector<GradientExchange::RowCount>>> GradientExchange::exchange_counts(
    const std::vector<RowCount>& mine, const comm::What& what) {
  const std::vector<std::uint64_t> count{mine.size()};
  ARTESIAN_TRY(counts, group_.exchange(bytes_of(count), what));
  std::vector<std::vector<RowCount>> told(group_.ranks());
  std::vector<std::span<const std::byte>> sent(group_.ranks(), bytes_of(mine));
  std::vector<std::span<std::byte>> received(group_.ranks());
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    std::uint64_t number = 0;
    std::memcpy(&number, counts.data() + rank * sizeof number, sizeof number);
    told[rank].resize(static_cast<std::size_t>(number));
    received[rank] = std::as_writable_bytes(std::span(told[rank]));
  }
  received[group_.rank()] = {};
  ARTESIAN_TRY_VOID(group_.all_to_all(sent, received, what));
  told[group_.rank()] = mine;
  return told;
}

Result<GradientExchange::Rows> GradientExchange::rows(std::uint32_t parameter,
                                                      std::span<const RowsOfLookup> lookups,
                                                      std::uint64_t width) {
  const std::uint32_t ranks = group_.ranks();
  const comm::What what{"rows of", plan_.layout.units[plan_.layout.places[parameter].unit].name};
  OutgoingRows out = outgoing_rows(parameter, lookups, width);
  ARTESIAN_TRY(told, exchange_counts(out.counts, what));
  Rows rows;
  rows.width = width;
  rows.memory.resize(ranks);
  std::vector<RowCount> incoming(ranks);
  std::vector<std::span<const std::byte>> sent(out.bytes.begin(), out.bytes.end());
  std::vector<std::span<std::byte>> received(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t at = 0; at < told[rank].size(); ++at) {
      rows.some = rows.some || told[rank][at].rows != 0;
      if (at % ranks != group_.rank()) continue;
      incoming[rank].rows += told[rank][at].rows;
      incoming[rank].elements += told[rank][at].elements;
    }
    if (rank == group_.rank()) continue;
    rows.memory[rank].resize(incoming[rank].rows * sizeof(std::int64_t) +
                             incoming[rank].elements * sizeof(float));
    received[rank] = rows.memory[rank];
  }
  ARTESIAN_TRY_VOID(group_.all_to_all(sent, received, what));
  rows.memory[group_.rank()] = std::move(out.bytes[group_.rank()]);
  list_rows(parameter, width, told, incoming, rows);
  return rows;
}

/// Lists rows in order: by look-up, then rank, then position.
void GradientExchange::list_rows(std::uint32_t parameter, std::uint64_t width,
                                 const std::vector<std::vector<RowCount>>& told,
                                 const std::vector<RowCount>& incoming, Rows& rows) const {
  const std::uint32_t ranks = group_.ranks();
  std::size_t most = 0;
  for (const auto& counts : told) most = std::max(most, counts.size());
  std::vector<RowCount> done(ranks);
  for (std::size_t lookup = 0; lookup < most / ranks; ++lookup) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::size_t at = lookup * ranks + group_.rank();
      if (at >= told[rank].size()) continue;
      const std::byte* const memory = rows.memory[rank].data();
      const auto* const elements =
          reinterpret_cast<const float*>(memory + incoming[rank].rows * sizeof(std::int64_t));
      rows.runs.push_back({rank, rows.rows.size(), static_cast<std::size_t>(told[rank][at].rows)});
      for (std::uint64_t some = 0; some < told[rank][at].rows; ++some) {
        std::int64_t row = 0;
        std::memcpy(&row, memory + done[rank].rows++ * sizeof row, sizeof row);
        rows.rows.push_back(row);
        rows.gradients.push_back(elements + done[rank].elements);
        done[rank].elements +=
            row_in_share(plan_.layout, parameter, width, row, group_.rank()).count;
      }
    }
  }
}

}  // namespace artesian::zero3
