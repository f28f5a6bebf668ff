#include "zero3/torch/hooked_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"
#include "base/log.h"
#include "zero3/step/agreement.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/divided_weights.h"
#include "zero3/torch/first_calls.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/make_core.h"
#include "zero3/torch/saved_facts.h"
#include "zero3/torch/tensor_weights.h"

namespace artesian::zero3 {

namespace {

constexpr const char* of_cpu = "cpu";  // name of the CPU's generator in a checkpoint

std::string of_rank(std::uint32_t rank) {
  return fmt::format("rank{}/{}", rank, of_cpu);
}

constexpr std::size_t broadcast_bytes = std::size_t{64} << 20;  // bytes sent at a time

/// Fills a contiguous tensor from pieces, rounded to its dtype.
std::function<Result<void>(std::span<const float>)> into(const at::Tensor& values) {
  return [flat = values.view(-1),
          first = std::int64_t{0}](std::span<const float> piece) mutable -> Result<void> {
    const at::NoGradGuard no_grad;
    const auto count = static_cast<std::int64_t>(piece.size());
    ARTESIAN_CHECK(first + count <= flat.numel(), first, count, flat.numel());
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): it is read alone
    auto* const data = const_cast<float*>(piece.data());
    flat.narrow(0, first, count).copy_(at::from_blob(data, {count}, at::kFloat));
    first += count;
    return {};
  };
}

}  // namespace

Result<std::unique_ptr<HookedEngine>> HookedEngine::create(ModelShape shape, const Config& config,
                                                           const HookedEngineOptions& options,
                                                           std::span<const at::Tensor> tensors,
                                                           std::span<const NamedTensor> others) {
  std::unique_ptr<HookedEngine> engine(new HookedEngine());
  ARTESIAN_TRY_VOID(from_torch(
      [&] { return engine->build(std::move(shape), config, options, tensors, others); }));
  return engine;
}

Result<void> HookedEngine::build(ModelShape shape, const Config& config,
                                 const HookedEngineOptions& given,
                                 std::span<const at::Tensor> tensors,
                                 std::span<const NamedTensor> others) {
  make_first_calls();
  ARTESIAN_CHECK(tensors.size() == shape.parameters.size(), tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    shape.parameters[index].trainable = tensors[index].requires_grad();
  }
  ARTESIAN_TRY_VOID(check_shape(shape.parameters, shape.stages));
  ARTESIAN_TRY(device, open_accelerator(given.device));
  device_ = std::move(device);
  ARTESIAN_TRY_VOID(check_adoptable(shape.parameters, tensors, others, device_.torch));
  group_ = given.group;
  if (group_ != nullptr) ARTESIAN_TRY_VOID(join_devices(device_, *group_));
  StepCoreOptions options{.group = group_.get(),
                          .resident = config.zero.stage < 3,
                          .groups = given.groups,
                          .unreached = given.unreached,
                          .hooked = true};
  ARTESIAN_TRY(core, make_core(std::move(shape), config, device_, std::move(options), *executor_,
                               given.engines));
  core_ = std::move(core);
  const auto& parameters = core_->shape().parameters;
  std::vector<at::Tensor> shares = given.shares;
  shares.resize(tensors.size());
  ARTESIAN_TRY_VOID(take_first_values(tensors, others, shares));
  ARTESIAN_TRY_VOID(initialize(tensors, shares));
  ARTESIAN_TRY(adopted, ParameterTensors::adopt(parameters, core_->placement(), tensors, others,
                                                device_.torch));
  tensors_ = std::move(adopted);
  // Nothing is updated before the ranks meet in step().
  uses_ = std::make_unique<UnitUses>(*core_, *tensors_,
                                     group_ == nullptr ? given.constants : nullptr, &device_);
  if (given.divides_own_losses) uses_->divide_own_losses();
  return {};
}

/// Every rank begins with rank 0's values, as with DistributedDataParallel.
Result<void> HookedEngine::take_first_values(std::span<const at::Tensor> tensors,
                                             std::span<const NamedTensor> others,
                                             const std::vector<at::Tensor>& shares) {
  if (group_ == nullptr) return {};
  Agreement::Facts divided;
  for (std::size_t parameter = 0; parameter < shares.size(); ++parameter) {
    divided.emplace_back(
        fmt::format("parameter \"{}\", which zero.Init has divided among the ranks on some of them "
                    "only",
                    core_->shape().parameters[parameter].name),
        shares[parameter].defined() ? "its share" : "all of it");
  }
  ARTESIAN_TRY_VOID(Agreement(group_.get()).compare(divided));
  for (std::size_t parameter = 0; parameter < tensors.size(); ++parameter) {
    if (!shares[parameter].defined()) ARTESIAN_TRY_VOID(broadcast(tensors[parameter], 0));
  }
  for (const NamedTensor& each : others) ARTESIAN_TRY_VOID(broadcast(each.tensor, 0));
  return {};
}

/// Fills the homes from the tensors, or from what each rank has of them.
Result<void> HookedEngine::initialize(std::span<const at::Tensor> tensors,
                                      const std::vector<at::Tensor>& shares) {
  ARTESIAN_TRY(whole,
               TensorWeights::create(core_->shape().parameters, {tensors.begin(), tensors.end()}));
  const bool some = std::any_of(shares.begin(), shares.end(),
                                [](const at::Tensor& share) { return share.defined(); });
  if (!some) return core_->initialize(whole, {});
  ARTESIAN_CHECK(group_ != nullptr);
  DividedWeights weights(std::move(whole), shares, core_->layout(), *group_);
  return core_->initialize(weights, {});
}

Result<void> HookedEngine::broadcast(const at::Tensor& tensor, std::uint32_t root) {
  if (group_ == nullptr) return {};
  return from_torch([&]() -> Result<void> {
    const at::NoGradGuard no_grad;
    const at::Tensor contiguous = tensor.detach().cpu().contiguous();
    auto* const data = static_cast<std::byte*>(contiguous.data_ptr());
    const auto bytes = static_cast<std::size_t>(contiguous.nbytes());
    for (std::size_t done = 0; done < bytes; done += broadcast_bytes) {
      ARTESIAN_TRY_VOID(group_->broadcast({data + done, std::min(broadcast_bytes, bytes - done)},
                                          root, {"values of a tensor"}));
    }
    if (!tensor.is_contiguous() || !tensor.is_cpu()) tensor.detach().copy_(contiguous);
    return {};
  });
}

HookedEngine::~HookedEngine() {
  if (core_ == nullptr) return;
  // A forked child has none of the threads, and the files belong to its parent.
  if (getpid() != process_) {
    keep_for_ever(std::move(uses_));
    keep_for_ever(std::move(tensors_));
    keep_for_ever(std::move(core_));
    keep_for_ever(std::move(device_.owned));
    keep_for_ever(std::move(executor_));
    keep_for_ever(std::make_unique<std::shared_ptr<comm::Group>>(std::move(group_)));
    return;
  }
  const auto outcome = close();
  if (!outcome.has_value()) log(LogLevel::Error, outcome.error().to_string());
  if (!core_->stalled()) return;
  keep_for_ever(std::move(core_));
  keep_for_ever(std::move(device_.owned));
  keep_for_ever(std::move(executor_));
}

Result<UnitUses*> HookedEngine::uses() {
  if (getpid() != process_) {
    return make_error(ErrorCode::Invalid,
                      "the engine belongs to the process that this one was forked from; workers "
                      "must not use it: call it where it was made");
  }
  if (uses_ != nullptr) return uses_.get();
  return make_error(ErrorCode::Invalid, "the engine is closed; create another one");
}

/// Returns the uses of an open engine without an open pass, for work on a parameter.
Result<UnitUses*> HookedEngine::uses_for(std::uint32_t parameter, const char* call) {
  const auto& specs = core_->shape().parameters;
  if (parameter >= specs.size()) {
    return make_error(ErrorCode::Invalid, fmt::format("{}: got {}, allowed 0 to {} exclusive", call,
                                                      parameter, specs.size()));
  }
  ARTESIAN_TRY(open, uses());
  ARTESIAN_TRY_VOID(open->settle());
  return open;
}

Result<at::Tensor> HookedEngine::read_state(std::uint32_t parameter, StateKind kind,
                                            const at::Tensor& target) {
  ARTESIAN_TRY_VOID(uses_for(parameter, "read_state"));
  const at::IntArrayRef shape(core_->shape().parameters[parameter].shape);
  if (target.defined() && (target.sizes() != shape || !target.is_contiguous())) {
    return make_error(ErrorCode::Invalid, "read_state: got a tensor of shape " +
                                              c10::str(target.sizes()) +
                                              ", allowed a contiguous one of " + c10::str(shape));
  }
  return from_torch([&]() -> Result<at::Tensor> {
    at::Tensor values = target.defined() ? target : at::empty(shape, at::kFloat);
    ARTESIAN_TRY_VOID(core_->read_state(parameter, kind, into(values)));
    return values;
  });
}

Result<void> HookedEngine::help_read_state(std::uint32_t parameter, StateKind kind) {
  ARTESIAN_TRY_VOID(uses_for(parameter, "read_state"));
  return core_->read_state(parameter, kind,
                           [](std::span<const float>) -> Result<void> { return {}; });
}

Result<at::Tensor> HookedEngine::read_gradient(std::uint32_t parameter) {
  ARTESIAN_TRY_VOID(uses_for(parameter, "read_gradient"));
  return from_torch([&]() -> Result<at::Tensor> {
    at::Tensor values = at::empty(core_->shape().parameters[parameter].shape, at::kFloat);
    ARTESIAN_TRY(some, core_->read_gradient(parameter, into(values)));
    return some ? values.div_(core_->loss_scale()) : at::Tensor();
  });
}

/// Refuses a tensor that is not in the form of a parameter's values: fp32, its shape.
Result<void> HookedEngine::check_values(std::uint32_t parameter, const at::Tensor& values,
                                        const char* call) const {
  const ParameterSpec& spec = core_->shape().parameters[parameter];
  const bool fits = values.defined() && values.is_cpu() && values.is_contiguous() &&
                    values.scalar_type() == at::kFloat &&
                    values.sizes() == at::IntArrayRef(spec.shape);
  if (fits) return {};
  return make_error(ErrorCode::Invalid,
                    fmt::format("{}: parameter \"{}\": allowed a contiguous tensor of fp32 on the "
                                "CPU in its shape",
                                call, spec.name));
}

Result<bool> HookedEngine::write_gradient(std::uint32_t parameter, const at::Tensor& values) {
  ARTESIAN_TRY_VOID(uses_for(parameter, "write_gradient"));
  ARTESIAN_TRY_VOID(check_values(parameter, values, "write_gradient"));
  return from_torch([&]() -> Result<bool> {
    const std::uint32_t unit = core_->layout().places[parameter].unit;
    const at::Tensor scaled =
        values.mul(core_->loss_scale()).to(scalar_type(core_->gradients().added_dtype(unit)));
    const at::Tensor there = scaled.to(device_.torch);
    return core_->write_gradient({parameter, there.const_data_ptr()});
  });
}

Result<void> HookedEngine::write_state(std::uint32_t parameter, StateKind kind,
                                       const at::Tensor& values) {
  ARTESIAN_TRY(open, uses_for(parameter, "write_state"));
  ARTESIAN_TRY_VOID(check_values(parameter, values, "write_state"));
  ARTESIAN_TRY_VOID(open->leave_step());
  const float* source = values.const_data_ptr<float>();
  ARTESIAN_TRY_VOID(
      core_->write_state(parameter, kind, [source](std::uint64_t first, std::span<float> target) {
        std::copy_n(source + first, target.size(), target.data());
      }));
  if (kind == StateKind::Master) open->weights_replaced(core_->layout().places[parameter].unit);
  return {};
}

Result<std::vector<std::uint32_t>> HookedEngine::changed(LookFor look) {
  ARTESIAN_TRY(open, uses());
  return from_torch([&]() -> Result<std::vector<std::uint32_t>> { return open->changed(look); });
}

Result<void> HookedEngine::accept(std::span<const std::uint32_t> parameters) {
  ARTESIAN_TRY(open, uses());
  return from_torch([&]() -> Result<void> {
    for (const std::uint32_t parameter : parameters) {
      ARTESIAN_TRY_VOID(tensors_->take_memory_back(parameter));
    }
    open->remember(parameters);
    return {};
  });
}

Result<std::string> HookedEngine::digest() {
  ARTESIAN_TRY(open, uses());
  ARTESIAN_TRY_VOID(open->settle());
  return core_->digest();
}

Result<SavedCheckpoint> HookedEngine::save_checkpoint(SaveRequest request,
                                                      std::span<const NamedTensor> buffers) {
  ARTESIAN_TRY(open, uses());
  ARTESIAN_TRY_VOID(open->leave_step());
  for (const NamedTensor& each : buffers) {
    ARTESIAN_TRY(buffer, buffer_to_save(each.name, each.tensor));
    request.buffers.push_back(buffer);
  }
  ARTESIAN_TRY_VOID(add_facts(request, device_.torch, core_->compute_dtype()));
  ARTESIAN_TRY_VOID(add_generators_of_ranks(request));
  return core_->save_checkpoint(request);
}

Result<LoadedCheckpoint> HookedEngine::load_checkpoint(const LoadRequest& request) {
  ARTESIAN_TRY(open, uses());
  ARTESIAN_TRY_VOID(open->leave_step());
  auto loaded = core_->load_checkpoint(request);
  const bool refused = !loaded.has_value() && core_->state_of_step() == StepState::Ready;
  if (!refused) open->weights_replaced();
  if (!loaded.has_value() || !request.optimizer_states) return loaded;
  take_generator_of_rank(loaded->manifest.state.random);
  ARTESIAN_TRY_VOID(go_on_from(*loaded, device_.torch, core_->compute_dtype()));
  return loaded;
}

/// Adds each rank's generator, under a name that contains the rank.
Result<void> HookedEngine::add_generators_of_ranks(SaveRequest& request) {
  if (group_ == nullptr) return {};
  const std::string mine = request.random[of_cpu];
  ARTESIAN_TRY(states, group_->exchange(std::as_bytes(std::span(mine)), {"random generators"}));
  for (std::uint32_t rank = 1; rank < group_->ranks(); ++rank) {
    const auto* const state = reinterpret_cast<const char*>(states.data()) + rank * mine.size();
    request.random[of_rank(rank)] = {state, mine.size()};
  }
  return {};
}

/// A rank that is not in the checkpoint takes rank 0's generator.
void HookedEngine::take_generator_of_rank(std::map<std::string, std::string>& random) const {
  if (group_ == nullptr || group_->rank() == 0) return;
  const auto own = random.find(of_rank(group_->rank()));
  if (own != random.end()) {
    random[of_cpu] = own->second;
    return;
  }
  log(LogLevel::Warning,
      fmt::format("checkpoint: it has no random generator of rank {}, which goes on with rank 0's",
                  group_->rank()));
}

Result<void> HookedEngine::close() {
  if (getpid() != process_) return {};
  if (uses_ != nullptr) uses_->let_go();
  uses_.reset();     // uses that still exist have no effect any more,
  tensors_.reset();  // parameters must throw before their memory is released
  return core_->close();
}

}  // namespace artesian::zero3
