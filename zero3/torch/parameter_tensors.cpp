#include "zero3/torch/parameter_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "zero3/torch/storage_refusal.h"

namespace artesian::zero3 {
namespace {

/// The storages of adopted parameters of all engines of the process.
class AdoptedStorages {
 public:
  static AdoptedStorages& instance() {
    static AdoptedStorages storages;
    return storages;
  }
  bool holds(c10::StorageImpl* storage) {
    const std::lock_guard lock(mutex_);
    return storages_.contains(storage);
  }
  void add(c10::StorageImpl* storage) {
    const std::lock_guard lock(mutex_);
    storages_.insert(storage);
  }
  void remove(c10::StorageImpl* storage) {
    const std::lock_guard lock(mutex_);
    storages_.erase(storage);
  }

 private:
  /// Forked children do not inherit the pools, and would crash on reading them.
  AdoptedStorages() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().refuse_in_child(); });
  }
  void refuse_in_child() {
    for (c10::StorageImpl* storage : storages_) {
      if (!released_tensors_throw()) continue;
      refuse(*storage,
             "this parameter's memory belongs to the process that this one was forked "
             "from; workers must not use the model");
    }
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<c10::StorageImpl*> storages_;
};

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// The memory of a tensor's elements, as numbers: [begin, end) of one storage.
struct Extent {
  const c10::StorageImpl* storage;
  std::uint64_t begin;
  std::uint64_t end;
  const std::string* name;
  bool parameter;
};

Extent extent_of(const at::Tensor& tensor, const std::string& name, bool parameter) {
  std::uint64_t last = 0;  // index of the last element, from the tensor's first
  for (std::int64_t axis = 0; axis < tensor.dim(); ++axis) {
    last += static_cast<std::uint64_t>((tensor.size(axis) - 1) * tensor.stride(axis));
  }
  const std::uint64_t size = tensor.element_size();
  const std::uint64_t begin = static_cast<std::uint64_t>(tensor.storage_offset()) * size;
  return {storage_of(tensor), begin, begin + (last + 1) * size, &name, parameter};
}

Error cannot_adopt(const std::string& name, const std::string& what) {
  return make_error(ErrorCode::Invalid, "parameter \"" + name + "\": " + what);
}

/// LibTorch allows moving a CPU tensor only to its own device types.
bool may_move(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device || (tensor.is_cpu() && device.type() != c10::kPrivateUse1);
}

Result<void> check_one(const ParameterSpec& spec, const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.has_storage() || !may_move(tensor, device)) {
    const std::string where = tensor.defined() ? tensor.device().str() : "nowhere";
    return cannot_adopt(spec.name, "got a tensor on " + where + ", allowed " + device.str());
  }
  if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
    return cannot_adopt(spec.name, "got the shape " + c10::str(tensor.sizes()) + ", allowed " +
                                       c10::str(at::IntArrayRef(spec.shape)));
  }
  if (!tensor.is_floating_point()) {
    return cannot_adopt(spec.name, std::string("got ") + c10::toString(tensor.scalar_type()) +
                                       ", allowed a floating-point type");
  }
  if (!tensor.is_leaf()) return cannot_adopt(spec.name, "got a computed tensor, allowed a leaf");
  if (AdoptedStorages::instance().holds(storage_of(tensor))) {
    return cannot_adopt(spec.name, "another engine has it; destroy that one first");
  }
  return {};
}

}  // namespace

Result<void> check_adoptable(const std::vector<ParameterSpec>& parameters,
                             std::span<const at::Tensor> tensors,
                             std::span<const NamedTensor> others, c10::Device device) {
  ARTESIAN_CHECK(parameters.size() == tensors.size(), parameters.size(), tensors.size());
  std::vector<Extent> extents;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    ARTESIAN_TRY_VOID(check_one(parameters[index], tensors[index], device));
    extents.push_back(extent_of(tensors[index], parameters[index].name, /*parameter=*/true));
  }
  for (const NamedTensor& other : others) {
    const at::Tensor& tensor = other.tensor;
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) continue;
    extents.push_back(extent_of(tensor, other.name, /*parameter=*/false));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  // The one that reaches farthest, among this storage's parameters.
  const Extent* farthest = nullptr;
  for (const Extent& extent : extents) {
    if (farthest != nullptr && farthest->storage != extent.storage) farthest = nullptr;
    const bool counts = farthest != nullptr && (farthest->parameter || extent.parameter);
    if (counts && extent.begin < farthest->end) {
      const Extent& own = farthest->parameter ? *farthest : extent;
      const Extent& other = farthest->parameter ? extent : *farthest;
      return cannot_adopt(*own.name, "shares its memory with \"" + *other.name +
                                         "\", which is another tensor and would keep the old "
                                         "values; tie them by using one Parameter, or copy one");
    }
    const bool better = farthest == nullptr || extent.end > farthest->end ||
                        (extent.parameter && !farthest->parameter);
    if (better) farthest = &extent;
  }
  return {};
}

at::ScalarType scalar_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::Float32: return at::kFloat;
    case DType::Float16: return at::kHalf;
    case DType::BFloat16: return at::kBFloat16;
  }
  return at::kFloat;
}

Result<void> ParameterTensors::make_guard(const std::vector<ParameterSpec>& parameters,
                                          const Placement& placement) {
  ARTESIAN_CHECK(parameters.size() == layout_.places.size(), parameters.size());
  std::vector<std::string> names;
  std::vector<std::uint64_t> bytes;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const DType dtype = placement.units[layout_.places[index].unit].computed;
    names.push_back(parameters[index].name);
    bytes.push_back(parameters[index].numel() * dtype_size(dtype));
  }
  ARTESIAN_TRY(guard, ParameterGuard::create(names, bytes));
  guard_ = std::move(guard);
  return {};
}

at::Tensor ParameterTensors::leaf_at(std::byte* memory, const ParameterSpec& spec,
                                     DType dtype) const {
  ARTESIAN_CHECK(memory != nullptr);
  // With an explicit device, LibTorch does not ask the driver where the address is.
  return at::for_blob(memory, spec.shape)
      .options(at::TensorOptions().dtype(scalar_type(dtype)).device(device_))
      .target_device(device_)
      .make_tensor();
}

Result<std::unique_ptr<ParameterTensors>> ParameterTensors::create(
    const std::vector<ParameterSpec>& parameters, const Placement& placement, c10::Device device) {
  std::unique_ptr<ParameterTensors> result(new ParameterTensors(placement.layout, device));
  ARTESIAN_TRY_VOID(result->make_guard(parameters, placement));
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const DType dtype = placement.units[placement.layout.places[index].unit].computed;
    auto tensor = result->leaf_at(result->guard_->address(index), parameters[index], dtype);
    tensor.set_requires_grad(parameters[index].trainable);
    result->trained_.push_back(parameters[index].trainable);
    result->storages_.push_back(tensor.storage());
    result->tensors_.push_back(std::move(tensor));
  }
  return result;
}

Result<std::unique_ptr<ParameterTensors>> ParameterTensors::adopt(
    const std::vector<ParameterSpec>& parameters, const Placement& placement,
    std::span<const at::Tensor> tensors, std::span<const NamedTensor> others, c10::Device device) {
  ARTESIAN_TRY_VOID(check_adoptable(parameters, tensors, others, device));
  std::unique_ptr<ParameterTensors> result(new ParameterTensors(placement.layout, device));
  if (!released_tensors_throw()) ARTESIAN_TRY_VOID(result->make_guard(parameters, placement));
  std::set<const c10::StorageImpl*> still_used;
  for (const NamedTensor& other : others) {
    if (other.tensor.defined() && other.tensor.has_storage()) {
      still_used.insert(storage_of(other.tensor));
    }
  }
  result->adopted_ = true;
  static std::byte nowhere{};
  for (std::uint32_t index = 0; index < parameters.size(); ++index) {
    const ParameterSpec& spec = parameters[index];
    const DType dtype = placement.units[placement.layout.places[index].unit].computed;
    const c10::Storage old = tensors[index].storage();
    const auto& guard = result->guard_;
    at::Tensor tensor = tensors[index];
    tensor.set_data(result->leaf_at(guard ? guard->address(index) : &nowhere, spec, dtype));
    result->tensors_.push_back(tensor);
    result->storages_.push_back(tensor.storage());
    result->names_.push_back(spec.name);
    result->trained_.push_back(spec.trainable);
    AdoptedStorages::instance().add(storage_of(tensor));
    result->release(index);
    const bool forgotten = !still_used.contains(old.unsafeGetStorageImpl());
    if (forgotten && released_tensors_throw()) {
      refuse(*old.unsafeGetStorageImpl(),
             "this is a view of what the memory of parameter \"" + spec.name +
                 "\" was before the engine took it over; take the view from the parameter anew");
    }
  }
  return result;
}

ParameterTensors::~ParameterTensors() {
  if (!adopted_) return;
  for (std::uint32_t parameter = 0; parameter < tensors_.size(); ++parameter) {
    c10::StorageImpl& storage = *storages_[parameter].unsafeGetStorageImpl();
    AdoptedStorages::instance().remove(&storage);
    allow(storage, at::DataPtr(nullptr, device_));  // the guard's addresses are reused
    if (!released_tensors_throw()) continue;
    refuse(storage, "parameter \"" + names_[parameter] + "\" has no memory: its engine is gone");
  }
}

void ParameterTensors::point(std::uint32_t parameter, std::byte* memory) {
  ARTESIAN_CHECK(parameter < storages_.size(), parameter, storages_.size());
  allow(*storages_[parameter].unsafeGetStorageImpl(), at::DataPtr(memory, device_));
}

void ParameterTensors::release(std::uint32_t parameter) {
  if (guard_ != nullptr) {
    point(parameter, guard_->address(parameter));
    return;
  }
  point(parameter, nullptr);
  refuse(*storages_[parameter].unsafeGetStorageImpl(),
         "parameter \"" + names_[parameter] +
             "\" is released: it is there while a module that owns it runs, and in a module that "
             "has got it from that; read it in one, or inside of zero.GatheredParameters");
}

void ParameterTensors::bind(std::uint32_t unit, std::byte* slot) {
  ARTESIAN_CHECK(unit < layout_.units.size() && slot != nullptr, unit, slot);
  for (const auto parameter : layout_.units[unit].parameters) {
    const std::uint64_t first = layout_.places[parameter].first;
    point(parameter, slot + first * tensors_[parameter].element_size());
  }
}

void ParameterTensors::unbind(std::uint32_t unit) {
  for (const auto parameter : layout_.units[unit].parameters) release(parameter);
}

Result<void> ParameterTensors::take_memory_back(std::uint32_t parameter) {
  at::Tensor& tensor = tensors_[parameter];
  if (has_own_memory(parameter)) return {};
  at::Tensor own = at::empty({0}, tensor.options().requires_grad(false));
  own.set_(storages_[parameter], 0, tensor.sizes());
  tensor.set_data(own);
  return {};
}

void ParameterTensors::bump_versions() {
  for (std::uint32_t parameter = 0; parameter < tensors_.size(); ++parameter) {
    if (trained_[parameter]) tensors_[parameter].unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace artesian::zero3
