#include "zero3/torch/parameter_watch.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/checksum.h"
#include "zero3/torch/storage_refusal.h"

namespace artesian::zero3 {
namespace {

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

Error refused(const std::string& name, const char* what) {
  return make_error(ErrorCode::Invalid, fmt::format("parameter \"{}\"{}", name, what));
}

}  // namespace

ParameterWatch::ParameterWatch(const StepCore& core, ParameterTensors& tensors)
    : core_(core),
      tensors_(tensors),
      versions_(core.layout().places.size(), 0),
      sums_(core.layout().places.size(), 0),
      readable_(core.layout().units.size(), false),
      lent_(core.layout().places.size(), false),
      unseen_(core.layout().places.size(), false),
      refused_gradients_(core.layout().places.size()) {
  for (std::uint32_t parameter = 0; parameter < lent_.size(); ++parameter) {
    at::Tensor tensor = tensors_.at(parameter);
    tensor.mutable_grad() = at::Tensor();
  }
}

const std::string& ParameterWatch::name(std::uint32_t parameter) const {
  return core_.shape().parameters[parameter].name;
}

std::uint64_t ParameterWatch::sum_of(std::uint32_t parameter) const {
  const at::Tensor& tensor = tensors_.at(parameter);
  if (!tensor.is_cpu()) return 0;
  return kernels::checksum64(tensor.const_data_ptr(), tensor.nbytes(), parameter);
}

bool ParameterWatch::is_as_remembered(std::uint32_t parameter, LookFor look) const {
  if (!tensors_.has_own_memory(parameter)) return false;
  if (version_of(tensors_.at(parameter)) != versions_[parameter]) return false;
  return look == LookFor::VersionsAndMemory || sum_of(parameter) == sums_[parameter];
}

std::vector<std::uint32_t> ParameterWatch::changed(LookFor look) const {
  std::vector<std::uint32_t> found;
  if (!core_.resident()) return found;
  const auto count = static_cast<std::int64_t>(versions_.size());
  std::vector<char> same(versions_.size(), 1);
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto parameter = static_cast<std::uint32_t>(begin); parameter < end; ++parameter) {
      same[parameter] = is_as_remembered(parameter, look) ? 1 : 0;
    }
  });
  for (std::uint32_t parameter = 0; parameter < same.size(); ++parameter) {
    if (same[parameter] == 0) found.push_back(parameter);
  }
  return found;
}

void ParameterWatch::remember_one(std::uint32_t parameter) {
  versions_[parameter] = version_of(tensors_.at(parameter));
  sums_[parameter] = sum_of(parameter);
}

void ParameterWatch::lend(std::uint32_t parameter, bool lent) {
  lent_[parameter] = lent;
  if (lent || !unseen_[parameter]) return;
  unseen_[parameter] = false;
  remember_one(parameter);
}

void ParameterWatch::versions_bumped() {
  if (!core_.resident()) return;  // others are remembered again at each use
  for (std::uint32_t parameter = 0; parameter < versions_.size(); ++parameter) {
    if (core_.shape().parameters[parameter].trainable) ++versions_[parameter];
  }
}

void ParameterWatch::remember(std::uint32_t unit, bool readable) {
  // Other units are gathered and released.
  ARTESIAN_CHECK(!readable || core_.layout().units[unit].persistent, unit);
  readable_[unit] = readable;
  for (const std::uint32_t parameter : core_.layout().units[unit].parameters) {
    versions_[parameter] = version_of(tensors_.at(parameter));
    unseen_[parameter] = readable && lent_[parameter];
    if (readable && !lent_[parameter] && tensors_.has_own_memory(parameter)) {
      sums_[parameter] = sum_of(parameter);
    }
  }
}

Result<void> ParameterWatch::check_unchanged(std::uint32_t unit) const {
  for (const std::uint32_t parameter : core_.layout().units[unit].parameters) {
    if (lent_[parameter]) continue;
    const bool same = version_of(tensors_.at(parameter)) == versions_[parameter] &&
                      (!readable_[unit] || sum_of(parameter) == sums_[parameter]);
    if (same) continue;
    return refused(name(parameter),
                   " was changed in place; its values are the engine's, which has not seen that: "
                   "change it inside of zero.GatheredParameters(parameter, modifier_rank=0), or "
                   "before the engine is made");
  }
  return {};
}

Result<void> ParameterWatch::check() const {
  const auto& parameters = core_.shape().parameters;
  for (std::uint32_t parameter = 0; parameter < parameters.size(); ++parameter) {
    if (!lent_[parameter] && !tensors_.has_own_memory(parameter)) {
      return refused(name(parameter),
                     " was given other memory, by `data`, to(), half() or the like; its values are "
                     "the engine's: change them inside of zero.GatheredParameters(parameter, "
                     "modifier_rank=0), or before the engine is made");
    }
    if (!parameters[parameter].trainable && tensors_.at(parameter).requires_grad()) {
      return refused(name(parameter),
                     " was frozen when the engine was made, and has no optimizer state; make "
                     "another engine, or start with it trainable and freeze it later");
    }
  }
  if (core_.resident()) return {};  // changed() covers these
  for (std::uint32_t unit = 0; unit < readable_.size(); ++unit) {
    if (core_.layout().units[unit].persistent) ARTESIAN_TRY_VOID(check_unchanged(unit));
  }
  return {};
}

bool ParameterWatch::lends() const {
  return std::find(lent_.begin(), lent_.end(), true) != lent_.end();
}

void ParameterWatch::place_gradients(const std::vector<bool>& added) {
  ARTESIAN_CHECK(added.size() == refused_gradients_.size(), added.size());
  if (!released_tensors_throw()) return;
  placed_ = true;
  for (std::uint32_t parameter = 0; parameter < added.size(); ++parameter) {
    if (!added[parameter]) continue;
    at::Tensor tensor = tensors_.at(parameter);
    at::Tensor& gradient = refused_gradients_[parameter];
    if (!gradient.defined()) {
      gradient = at::for_blob(nullptr, tensor.sizes())
                     .options(tensor.options())
                     .target_device(tensor.device())  // otherwise the driver is asked
                     .make_tensor();
      refuse(*gradient.storage().unsafeGetStorageImpl(),
             fmt::format("the gradient of parameter \"{}\" is the engine's: clip by "
                         "gradient_clipping in the config, and ask get_global_grad_norm() for the "
                         "norm after step()",
                         name(parameter)));
    }
    tensor.mutable_grad() = gradient;
  }
}

void ParameterWatch::take_gradients_away() {
  if (!std::exchange(placed_, false)) return;
  for (std::uint32_t parameter = 0; parameter < refused_gradients_.size(); ++parameter) {
    at::Tensor tensor = tensors_.at(parameter);
    const at::Tensor& gradient = refused_gradients_[parameter];
    if (gradient.defined() && tensor.grad().is_same(gradient)) tensor.mutable_grad() = at::Tensor();
  }
}

Result<bool> ParameterWatch::gradients_dropped(const std::vector<bool>& added) const {
  ARTESIAN_CHECK(added.size() == refused_gradients_.size(), added.size());
  if (!placed_) return false;
  bool some_left = false;
  const std::string* dropped = nullptr;
  for (std::uint32_t parameter = 0; parameter < added.size(); ++parameter) {
    const at::Tensor& gradient = tensors_.at(parameter).grad();
    const bool placed = added[parameter] && refused_gradients_[parameter].defined();
    if (gradient.defined() && !(placed && gradient.is_same(refused_gradients_[parameter]))) {
      return refused(name(parameter),
                     ": its gradient was set by the caller; gradients are the engine's, which "
                     "takes them in backward: change them by a hook of the parameter's");
    }
    some_left = some_left || gradient.defined();
    if (placed && !gradient.defined() && dropped == nullptr) dropped = &name(parameter);
  }
  if (dropped == nullptr || !some_left) return dropped != nullptr;
  return refused(*dropped,
                 ": its gradient was dropped and others were not; the engine has them all: call "
                 "zero_grad(), or requires_grad_(False) before the backward");
}

}  // namespace artesian::zero3
