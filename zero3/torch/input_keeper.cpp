#include "zero3/torch/input_keeper.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t leaving_max = 2;  // inputs in device memory that are being copied

std::span<std::byte> bytes_of(const at::Tensor& tensor, std::uint64_t bytes) {
  ARTESIAN_CHECK(tensor.nbytes() == bytes, tensor.nbytes(), bytes);
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<std::size_t>(bytes)};
}

}  // namespace

InputKeeper::InputKeeper(ModelState& state, c10::Device device)
    : state_(state), inputs_(state.placement().inputs), device_(device) {}

/// Returns a fence after all computation enqueued so far.
Result<tiering::DeviceFence> InputKeeper::computed() {
  return state_.device().record(tiering::Queue::Compute);
}

Result<bool> InputKeeper::put(const InputId& id, const at::Tensor& input) {
  if (id.micro_batch >= inputs_.at_once ||
      inputs_.home(id.stage, id.micro_batch) == tiering::Tier::Device) {
    return false;
  }
  const auto bytes = static_cast<std::uint64_t>(input.nbytes());
  if (bytes == 0 || !input.is_non_overlapping_and_dense()) return false;
  if (bytes > inputs_.place_bytes(id.stage)) {
    if (!std::exchange(told_, true)) {
      log(LogLevel::Warning,
          "activation_checkpointing.cpu_checkpointing: stage " + inputs_.names[id.stage] +
              " got an input of " + format_size(bytes) + ", planned " +
              format_size(inputs_.bytes[id.stage]) + ": such inputs stay where they are computed");
    }
    return false;
  }
  ARTESIAN_TRY(written, computed());
  ARTESIAN_TRY(read, state_.depot().put(state_.input(id.stage, id.micro_batch),
                                        {static_cast<const std::byte*>(input.const_data_ptr()),
                                         static_cast<std::size_t>(bytes)},
                                        written));
  away_.push_back({.id = id,
                   .sizes = input.sizes().vec(),
                   .strides = input.strides().vec(),
                   .dtype = input.scalar_type(),
                   .requires_grad = input.requires_grad(),
                   .bytes = bytes});
  leaving_.push_back({input, read});
  ARTESIAN_TRY_VOID(release_leaving(leaving_max));
  return true;
}

/// Releases all inputs that have been copied, and further ones if there are more than `count_max`.
Result<void> InputKeeper::release_leaving(std::size_t count_max) {
  while (!leaving_.empty()) {
    const tiering::DeviceFence read = leaving_.front().read;
    if (!state_.device().ready(read)) {
      if (leaving_.size() <= count_max) return {};
      ARTESIAN_TRY_VOID(state_.device().finish(read));
    }
    leaving_.pop_front();
  }
  return {};
}

Result<void> InputKeeper::expect() {
  ARTESIAN_TRY_VOID(release_leaving(0));
  std::stable_sort(away_.begin(), away_.end(), [](const Away& a, const Away& b) {
    return a.id.stage != b.id.stage ? a.id.stage > b.id.stage : a.id.micro_batch < b.id.micro_batch;
  });
  next_ = 0;
  std::vector<tiering::Depot::Stored> order;
  for (const Away& away : away_) {
    ARTESIAN_CHECK(away.bytes <= inputs_.place_bytes(away.id.stage), away.bytes);
    order.push_back({state_.input(away.id.stage, away.id.micro_batch), away.bytes});
  }
  return state_.depot().expect(order);
}

at::Tensor InputKeeper::make(const Away& away) const {
  return at::empty_strided(away.sizes, away.strides,
                           at::TensorOptions().dtype(away.dtype).device(device_));
}

Result<void> InputKeeper::load(const Away& away, Coming& coming) {
  ARTESIAN_TRY(loaded, state_.depot().take(state_.input(away.id.stage, away.id.micro_batch),
                                           bytes_of(coming.tensor, away.bytes), coming.free));
  coming.loaded = loaded;
  return {};
}

/// Drops an input that is being restored; its memory is free once the copy to it has ended.
Result<void> InputKeeper::drop_coming() {
  if (!coming_.has_value()) return {};
  if (coming_->loaded.has_value()) ARTESIAN_TRY_VOID(state_.device().finish(*coming_->loaded));
  coming_.reset();
  return {};
}

Result<at::Tensor> InputKeeper::take(const InputId& id) {
  for (;; ++next_) {
    ARTESIAN_CHECK(next_ < away_.size(), id.stage, id.micro_batch);
    if (away_[next_].id == id) break;
    ARTESIAN_TRY_VOID(drop_coming());
  }
  const Away& away = away_[next_];
  if (!coming_.has_value()) ARTESIAN_TRY_VOID(make_room());
  if (!coming_->loaded.has_value()) ARTESIAN_TRY_VOID(load(away, *coming_));
  ARTESIAN_TRY_VOID(state_.device().wait(tiering::Queue::Compute, *coming_->loaded));
  at::Tensor tensor = std::move(coming_->tensor);
  coming_.reset();
  ++next_;
  return tensor.requires_grad_(away.requires_grad);
}

Result<void> InputKeeper::prepare_next() {
  const bool more = next_ < away_.size() && !coming_.has_value();
  return state_.separate_device() && more ? make_room() : Result<void>();
}

Result<void> InputKeeper::make_room() {
  ARTESIAN_CHECK(next_ < away_.size() && !coming_.has_value(), next_, away_.size());
  Coming coming{.tensor = make(away_[next_]), .free = {}, .loaded = {}};
  ARTESIAN_TRY(free, computed());
  coming.free = free;
  coming_ = std::move(coming);
  return {};
}

Result<void> InputKeeper::load_next() {
  if (!coming_.has_value() || coming_->loaded.has_value()) return {};
  return load(away_[next_], *coming_);
}

Result<void> InputKeeper::forget() {
  ARTESIAN_TRY_VOID(release_leaving(0));
  ARTESIAN_TRY_VOID(drop_coming());
  away_.clear();
  next_ = 0;
  return state_.depot().forget();
}

}  // namespace artesian::zero3
