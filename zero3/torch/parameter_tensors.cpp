#include "zero3/torch/parameter_tensors.h"

#include <ATen/ops/from_blob.h>

namespace artesian::zero3 {

at::ScalarType scalar_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::Float32: return at::kFloat;
    case DType::Float16: return at::kHalf;
    case DType::BFloat16: return at::kBFloat16;
  }
  return at::kFloat;
}

Result<std::unique_ptr<ParameterTensors>> ParameterTensors::create(
    const std::vector<ParameterSpec>& parameters, const Placement& placement, c10::Device device) {
  const Layout& layout = placement.layout;
  std::unique_ptr<ParameterTensors> result(new ParameterTensors(layout, device));
  const auto dtype_of = [&](std::size_t parameter) {
    return placement.units[layout.places[parameter].unit].computed;
  };
  std::vector<std::string> names;
  std::vector<std::uint64_t> bytes;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    names.push_back(parameters[index].name);
    bytes.push_back(parameters[index].numel() * dtype_size(dtype_of(index)));
  }
  ARTESIAN_TRY(guard, ParameterGuard::create(names, bytes));
  result->guard_ = std::move(guard);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    // With the device named, LibTorch does not ask the driver where the address belongs.
    auto tensor =
        at::for_blob(result->guard_->address(index), parameters[index].shape)
            .options(at::TensorOptions().dtype(scalar_type(dtype_of(index))).device(device))
            .target_device(device)
            .make_tensor();
    tensor.set_requires_grad(parameters[index].trainable);
    result->tensors_.push_back(std::move(tensor));
  }
  return result;
}

void ParameterTensors::point(std::uint32_t parameter, std::byte* memory) {
  tensors_[parameter].storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(memory, device_));
}

void ParameterTensors::bind(std::uint32_t unit, std::byte* slot) {
  for (const auto parameter : layout_.units[unit].parameters) {
    const std::uint64_t first = layout_.places[parameter].first;
    point(parameter, slot + first * tensors_[parameter].element_size());
  }
}

void ParameterTensors::unbind(std::uint32_t unit) {
  for (const auto parameter : layout_.units[unit].parameters) {
    point(parameter, guard_->address(parameter));
  }
}

void ParameterTensors::bump_versions() {
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.requires_grad()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace artesian::zero3
