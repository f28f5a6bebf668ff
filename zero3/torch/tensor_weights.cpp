#include "zero3/torch/tensor_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include "zero3/torch/from_torch.h"

namespace artesian::zero3 {

Result<TensorWeights> TensorWeights::create(const std::vector<ParameterSpec>& parameters,
                                            std::vector<at::Tensor> tensors) {
  if (tensors.size() != parameters.size()) {
    return make_error(
        ErrorCode::Invalid,
        fmt::format("initial weights: got {} tensors, allowed {}, one for each parameter",
                    tensors.size(), parameters.size()));
  }
  return from_torch([&]() -> Result<TensorWeights> {
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      at::Tensor& tensor = tensors[index];
      const ParameterSpec& spec = parameters[index];
      const std::string where = "initial weights: " + spec.name + ": ";
      if (!tensor.defined() || !tensor.is_floating_point()) {
        return make_error(ErrorCode::Invalid, where + "allowed a floating-point tensor");
      }
      if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
        return make_error(ErrorCode::Invalid, where + "got the shape " + c10::str(tensor.sizes()) +
                                                  ", allowed " +
                                                  c10::str(at::IntArrayRef(spec.shape)));
      }
      tensor = tensor.detach().contiguous();
    }
    return TensorWeights(std::move(tensors));
  });
}

Result<void> TensorWeights::read(std::uint32_t parameter, std::uint64_t first,
                                 std::span<float> target) noexcept {
  ARTESIAN_CHECK(parameter < tensors_.size(), parameter, tensors_.size());
  const auto numel = static_cast<std::uint64_t>(tensors_[parameter].numel());
  ARTESIAN_CHECK(first + target.size() <= numel, first, target.size(), numel);
  return from_torch([&]() -> Result<void> {
    const at::NoGradGuard no_grad;
    const auto count = static_cast<std::int64_t>(target.size());
    const at::Tensor values =
        tensors_[parameter].view(-1).narrow(0, static_cast<std::int64_t>(first), count);
    at::from_blob(target.data(), {count}, at::kFloat).copy_(values);
    return {};
  });
}

}  // namespace artesian::zero3
