// InputKeeper: the tensors' side of what checkpointing keeps in a tier. It puts a stage's input
// away, whose memory LibTorch then has back, and makes the same tensor anew when backward wants it:
// the same bytes, shape, strides and dtype. Where the bytes go, and how, is the Depot's.
//
// On a separate device nothing waits for the copies: a tensor that is on its way to the host is
// held until it was read, and the one that backward wants next comes while the stage before
// computes.
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
  /// Says which input of a pass: of this stage, of this micro-batch of the group.
  struct InputId {
    std::size_t stage = 0;
    std::size_t micro_batch = 0;
    bool operator==(const InputId&) const = default;
  };

  InputKeeper(ModelState& state, c10::Device device);

  /// True if any input goes to a tier.
  bool keeps_some() const noexcept { return inputs_.some(); }
  /// Puts the input away, unless it must stay: it has no place in a tier, is too large for its
  /// place, or has gaps in memory. Returns whether it did. Errors: those of Depot::put.
  Result<bool> put(const InputId& id, const at::Tensor& input);
  /// Backward begins: what was put away is taken stage by stage from the last, each stage's in the
  /// order of the micro-batches; some may be left out. Errors: those of Depot::expect.
  Result<void> expect();
  /// Takes the input that was put away under this id. Errors: those of Depot::take.
  Result<at::Tensor> take(const InputId& id);
  /// Around the computation that follows a take, on a separate device: room for the next one
  /// before, the next one itself after. Errors: those of Depot::take.
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
  struct Leaving {  // An input on its way to the host, which must be held until then.
    at::Tensor tensor;
    tiering::DeviceFence read;
  };
  struct Coming {
    at::Tensor tensor;
    tiering::DeviceFence free;
    std::optional<tiering::DeviceFence> loaded;  // once its copies are enqueued
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
  std::vector<Away> away_;  // in the order of puts; after expect(), of takes
  std::size_t next_ = 0;    // index of the next input to take
  std::deque<Leaving> leaving_;
  std::optional<Coming> coming_;  // away_[next_]
  bool told_ = false;             // a line has said that inputs stay with LibTorch
};

}  // namespace artesian::zero3
