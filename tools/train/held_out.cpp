#include "tools/train/held_out.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tools/train/training.h"
#include "zero3/torch/token_batch.h"

namespace artesian::tools {

Result<double> HeldOut::loss(zero3::Engine& engine, const std::function<bool()>& stops) {
  double sum = 0.0;
  for (std::uint64_t first = 0; first < data_.samples(); first += samples_) {
    if (stops()) return make_error(ErrorCode::Cancelled, "stopped by a signal");
    const std::uint64_t count = std::min(samples_, data_.samples() - first);
    zero3::TokenBatch batch(count, length_);
    ARTESIAN_TRY_VOID(fill(data_, first, count, batch));
    ARTESIAN_TRY(mean, engine.evaluate(batch.batch()));
    sum += mean.item<double>() * static_cast<double>(count);
  }
  return sum / static_cast<double>(data_.samples());
}

}  // namespace artesian::tools
