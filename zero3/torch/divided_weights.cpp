#include "zero3/torch/divided_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/storage_refusal.h"

namespace artesian::zero3 {
namespace {

/// What two ranges of a parameter's elements have in common.
Unit::Range common(const Unit::Range& one, const Unit::Range& other) noexcept {
  const Unit::Range both{std::max(one.begin, other.begin), std::min(one.end, other.end)};
  return both.begin < both.end ? both : Unit::Range{};
}

/// Elements of a tensor that begins at index `first` of its parameter.
std::span<std::byte> bytes_at(const at::Tensor& tensor, std::uint64_t first,
                              const Unit::Range& range) {
  if (range.count() == 0) return {};
  const std::uint64_t size = tensor.element_size();
  auto* const data = static_cast<std::byte*>(tensor.data_ptr());
  return {data + (range.begin - first) * size, static_cast<std::size_t>(range.count() * size)};
}

}  // namespace

void free_memory(const at::Tensor& tensor, const std::string& message) {
  ARTESIAN_CHECK(released_tensors_throw());
  refuse(*tensor.storage().unsafeGetStorageImpl(), message);
}

DividedWeights::DividedWeights(TensorWeights whole, std::vector<at::Tensor> shares,
                               const Layout& layout, comm::Group& group)
    : whole_(std::move(whole)), shares_(std::move(shares)), layout_(layout), group_(group) {
  ARTESIAN_CHECK(shares_.size() == layout.places.size(), shares_.size(), layout.places.size());
}

Unit::Range DividedWeights::share_of(std::uint64_t numel, std::uint32_t rank) const noexcept {
  const std::uint64_t share = (numel + group_.ranks() - 1) / group_.ranks();
  return {std::min(rank * share, numel), std::min((rank + 1) * share, numel)};
}

/// The elements of a parameter that a rank's home takes.
Unit::Range DividedWeights::needed_by(std::uint32_t parameter, std::uint32_t rank) const noexcept {
  const ParameterPlace& place = layout_.places[parameter];
  const Unit& unit = layout_.units[place.unit];
  if (!unit.is_cut()) return {0, place.numel};
  const Unit::Range range = unit.in_share(place.first, place.numel, rank);
  if (range.count() == 0) return {};
  return {range.begin - place.first, range.end - place.first};
}

Result<void> DividedWeights::begin(std::uint32_t unit) noexcept {
  arrived_.clear();
  return from_torch([&]() -> Result<void> {
    make_room(unit);
    for (const std::uint32_t parameter : layout_.units[unit].parameters) {
      if (shares_[parameter].defined()) ARTESIAN_TRY_VOID(bring(parameter));
    }
    return {};
  });
}

std::uint64_t DividedWeights::bytes_of(std::uint32_t parameter) const {
  return round_up(needed_by(parameter, group_.rank()).count() * shares_[parameter].element_size(),
                  64);
}

void DividedWeights::make_room(std::uint32_t unit) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t parameter : layout_.units[unit].parameters) {
    if (shares_[parameter].defined()) bytes += bytes_of(parameter);
  }
  used_ = 0;
  if (room_.defined() && static_cast<std::uint64_t>(room_.numel()) >= bytes) return;
  room_.reset();
  room_ = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

Result<void> DividedWeights::bring(std::uint32_t parameter) {
  const std::uint64_t bytes = bytes_of(parameter);
  const at::Tensor share = std::exchange(shares_[parameter], {});
  const std::uint64_t numel = layout_.places[parameter].numel;
  const Unit::Range own = share_of(numel, group_.rank());
  const Unit::Range needed = needed_by(parameter, group_.rank());
  ARTESIAN_CHECK(share.numel() == static_cast<std::int64_t>(own.count()), parameter, own.count());
  const at::Tensor values =
      at::from_blob(room_.mutable_data_ptr<std::uint8_t>() + used_,
                    {static_cast<std::int64_t>(needed.count())}, share.options());
  used_ += bytes;
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
  for (std::uint32_t rank = 0; rank < group_.ranks(); ++rank) {
    sent.push_back(bytes_at(share, own.begin, common(own, needed_by(parameter, rank))));
    received.push_back(bytes_at(values, needed.begin, common(needed, share_of(numel, rank))));
  }
  const auto ours = std::exchange(received[group_.rank()], {});
  const auto from = std::exchange(sent[group_.rank()], {});
  ARTESIAN_CHECK(ours.size() == from.size(), parameter, ours.size(), from.size());
  if (!ours.empty()) std::memcpy(ours.data(), from.data(), ours.size());
  const Unit& unit = layout_.units[layout_.places[parameter].unit];
  ARTESIAN_TRY_VOID(group_.all_to_all(sent, received, {"first values of", unit.name}));
  free_memory(share, "the engine has taken this parameter's values over");
  arrived_[parameter] = {needed.begin, values};
  return {};
}

Result<void> DividedWeights::read(std::uint32_t parameter, std::uint64_t first,
                                  std::span<float> target) noexcept {
  const auto found = arrived_.find(parameter);
  if (found == arrived_.end()) return whole_.read(parameter, first, target);
  return from_torch([&]() -> Result<void> {
    const at::NoGradGuard no_grad;
    const Arrived& arrived = found->second;
    const auto count = static_cast<std::int64_t>(target.size());
    const std::uint64_t begin = first - arrived.first;
    ARTESIAN_CHECK(first >= arrived.first, first, arrived.first);
    const at::Tensor values = arrived.values.narrow(0, static_cast<std::int64_t>(begin), count);
    at::from_blob(target.data(), {count}, at::kFloat).copy_(values);
    return {};
  });
}

}  // namespace artesian::zero3
