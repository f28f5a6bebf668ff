// InputKeeper: stores the stage inputs that activation checkpointing keeps in a tier. It stores a
// stage's input, so that LibTorch can reuse its memory, and restores the same tensor for backward:
// the same bytes, shape, strides and dtype. The Depot moves the bytes.
//
// On a separate device nothing waits for the copies: a tensor that is being copied to the host is
// held until the copy ends, and the tensor that backward needs next is copied while the previous
// stage computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "zero3/step/state.h"

namespace artesian::zero3 {

class InputKeeper {
 public:
  /// Identifies an input in a pass: by stage, and by micro-batch in the group.
  struct InputId {
    std::size_t stage = 0;
    std::size_t micro_batch = 0;
    bool operator==(const InputId&) const = default;
  };

  InputKeeper(ModelState& state, c10::Device device);

  /// True if any input is kept in a tier.
  bool keeps_some() const noexcept { return inputs_.some(); }
  /// Stores the input, unless it has no place in a tier, is too large for its place, or has gaps in
  /// memory. Returns whether it was stored. Errors: those of Depot::put.
  Result<bool> put(const InputId& id, const at::Tensor& input);
  /// Begins backward: stored inputs are then taken from the last stage to the first, each stage's
  /// in the order of the micro-batches; some may be skipped. Errors: those of Depot::expect.
  Result<void> expect();
  /// Takes the input that was stored under this id. Errors: those of Depot::take.
  Result<at::Tensor> take(const InputId& id);
  /// Called around the computation that follows a take, on a separate device: makes room for the
  /// next input before, and takes it after. Errors: those of Depot::take.
  Result<void> prepare_next();
  Result<void> load_next();
  /// Ends taking: no input is needed any more. Errors: those of Depot::forget.
  Result<void> forget();

 private:
  struct Away {
    InputId id;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    at::ScalarType dtype = at::kFloat;
    bool requires_grad = false;
    std::uint64_t bytes = 0;
  };
  struct Leaving {  // An input that is being copied to the host, which must be held until then.
    at::Tensor tensor;
    tiering::DeviceFence read;
  };
  struct Coming {
    at::Tensor tensor;
    tiering::DeviceFence free;
    std::optional<tiering::DeviceFence> loaded;  // set once its copies are enqueued
  };
  at::Tensor make(const Away& away) const;
  Result<void> release_leaving(std::size_t count_max);
  Result<void> make_room();
  Result<void> drop_coming();
  Result<void> load(const Away& away, Coming& coming);
  Result<tiering::DeviceFence> computed();

  ModelState& state_;
  const KeptInputs& inputs_;
  const c10::Device device_;
  std::vector<Away> away_;  // in the order of puts; after expect(), in the order of takes
  std::size_t next_ = 0;    // index of the next input to take
  std::deque<Leaving> leaving_;
  std::optional<Coming> coming_;  // the restored away_[next_]
  bool told_ = false;             // whether a log line has said that inputs stay with LibTorch
};

}  // namespace artesian::zero3
