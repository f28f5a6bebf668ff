#include "tools/plan/probe.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "kernels/adam.h"
#include "kernels/checksum.h"
#include "models/activation_bytes.h"
#include "models/flops.h"
#include "models/registry.h"
#include "tools/shell/median.h"
#include "zero3/step/group_blocks.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/parameter_tensors.h"

namespace artesian::tools {
namespace {

constexpr double flops_max = 4e11;  // per run of a stage: seconds on a small machine
// After a warm-up run; short runs are repeated more often, as other programs disturb some.
constexpr int runs_min = 3;
constexpr int runs_max = 9;
constexpr double enough_s = 1.0;
constexpr std::size_t blocks_max = 4;

/// Medians, in seconds.
struct StageTime {
  double forward = 0.0;
  double backward = 0.0;
};

/// Drops gradients that arrive in parts, as rounding them is not part of the stage's time.
class NoSink final : public zero3::GradientSink {
 public:
  void add(std::size_t, std::int64_t, const at::Tensor&) override {}
};

class StageProbe {
 public:
  /// `stored`: dtype of tiled parameters.
  StageProbe(const models::ModelConfig& config, DType dtype, DType stored, std::uint64_t length)
      : module_(models::make_module(config)),
        hidden_(config.hidden),
        length_(static_cast<std::int64_t>(length)),
        stored_(zero3::scalar_type(stored)),
        options_(at::TensorOptions().dtype(zero3::scalar_type(dtype))) {}

  /// Runs forward through `copies` of the stage, one after the other, and backward, like a training
  /// run: so weights and kept activations are read from memory rather than from the caches.
  StageTime run(std::size_t stage, std::uint64_t samples, std::size_t copies) {
    const auto count = static_cast<std::int64_t>(samples);
    std::vector<std::vector<at::Tensor>> weights(copies);
    for (auto& each : weights) {
      for (const auto parameter : module_->stages()[stage].parameters) {
        const zero3::ParameterSpec& spec = module_->parameters()[parameter];
        const auto options = spec.tiled ? options_.dtype(stored_) : options_;
        each.push_back(at::full(spec.shape, 0.01, options).requires_grad_(true));
      }
    }
    const at::Tensor ids = at::zeros({count, length_}, at::kLong);
    const at::Tensor input = at::rand({count, length_, hidden_}, options_);
    std::vector<double> forward;
    std::vector<double> backward;
    double taken = 0.0;
    for (int round = 0; round <= runs_max; ++round) {
      if (round > runs_min && taken >= enough_s) break;
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> outputs;
      const std::uint64_t begin = monotonic_ns();
      for (const auto& of_copy : weights) {
        inputs.push_back((outputs.empty() ? input : outputs.back()).detach().requires_grad_(true));
        outputs.push_back(module_->forward(stage, inputs.back(), of_copy, {ids, ids, &sink_}));
      }
      const std::uint64_t turn = monotonic_ns();
      at::Tensor gradient = at::ones_like(outputs.back());
      for (std::size_t copy = copies; copy-- > 0;) {
        std::vector<at::Tensor> wanted = weights[copy];
        wanted.push_back(inputs[copy]);
        gradient = torch::autograd::grad({outputs[copy]}, wanted, {gradient}, c10::nullopt, false,
                                         /*allow_unused=*/true)
                       .back();
        outputs.pop_back();
      }
      if (round == 0) continue;
      taken += seconds_since(begin);
      forward.push_back(static_cast<double>(turn - begin) * 1e-9 / static_cast<double>(copies));
      backward.push_back(seconds_since(turn) / static_cast<double>(copies));
    }
    return {median(std::move(forward)), median(std::move(backward))};
  }

  std::size_t stages() const { return module_->stages().size(); }

 private:
  std::unique_ptr<zero3::Module> module_;
  const std::int64_t hidden_;
  const std::int64_t length_;
  const at::ScalarType stored_;
  NoSink sink_;
  const at::TensorOptions options_;
};

/// Floating-point operations per second of a matrix product with the model's width.
double probe_product(const models::ModelConfig& config, DType dtype) {
  const auto width = std::min<std::int64_t>(config.hidden, 2048);
  const auto options = at::TensorOptions().dtype(zero3::scalar_type(dtype));
  const at::Tensor one = at::rand({256, width}, options);
  const at::Tensor other = at::rand({width, width}, options);
  double best = 1e30;
  for (int round = 0; round <= 3; ++round) {
    const std::uint64_t begin = monotonic_ns();
    const at::Tensor product = at::matmul(one, other);
    if (round != 0) best = std::min(best, seconds_since(begin));
  }
  return 2.0 * 256 * static_cast<double>(width * width) / std::max(best, 1e-9);
}

/// How often weights, gradients and activations of the largest stage fit into a quarter of the free
/// memory, as LibTorch needs further buffers.
std::size_t stages_that_fit(const models::ModelConfig& config, DType dtype, std::uint64_t tokens) {
  const auto forward = models::forward_flops_per_token(config, 0);
  const double weights = std::max(forward.block, forward.head) / 2;
  const double needed =
      3 * weights * static_cast<double>(dtype_size(dtype)) +
      2 * static_cast<double>(models::activation_bytes(config, {.tokens = tokens})) /
          static_cast<double>(models::layer_count(config));
  return static_cast<std::size_t>(static_cast<double>(available_memory()) / 4 / needed);
}

}  // namespace

Result<ProbedCompute> probe_compute(const models::ModelConfig& config, DType dtype, DType stored,
                                    std::uint64_t samples, std::uint64_t length) {
  return zero3::from_torch([&]() -> Result<ProbedCompute> {
    const auto flops = models::forward_flops_per_token(config, length);
    const double of_sample = 3 * std::max(flops.block, flops.head) * static_cast<double>(length);
    ProbedCompute probed;
    const std::size_t fit = stages_that_fit(config, dtype, length);
    probed.by_product = of_sample > 10 * flops_max || fit == 0;
    if (probed.by_product) {
      const double rate = probe_product(config, dtype);
      probed.seconds = token_seconds(flops, rate);
      probed.tflops = rate * 1e-12;
      return probed;
    }
    const auto affordable = static_cast<std::uint64_t>(std::max(1.0, flops_max / of_sample));
    const std::uint64_t tried = std::min(samples, affordable);
    const double tokens = static_cast<double>(tried * length);
    StageProbe probe(config, dtype, stored, length);
    const auto copies = std::clamp<std::size_t>(fit, 1, blocks_max);
    const StageTime block = probe.run(1, tried, copies);
    const StageTime head = probe.run(probe.stages() - 1, tried, 1);
    probed.seconds = {block.forward / tokens, block.backward / tokens, head.forward / tokens,
                      head.backward / tokens};
    const auto layers = static_cast<double>(models::layer_count(config));
    const double seconds = layers * (probed.seconds.block_forward + probed.seconds.block_backward) +
                           probed.seconds.head_forward + probed.seconds.head_backward;
    probed.tflops = models::flops_per_token(config, length) / seconds * 1e-12;
    return probed;
  });
}

namespace {

constexpr std::int64_t update_elements_most = 24 << 20;  // 480 MiB: more than caches hold
constexpr std::int64_t update_elements_least = 1 << 18;
constexpr std::int64_t update_element_bytes = 20;  // fp32 weight and moments, gradient and result

/// An eighth of the free memory, if that is less than the preferred size.
std::int64_t update_elements() {
  const std::uint64_t available = available_memory();
  if (available == 0) return update_elements_most;
  const auto fit = static_cast<std::int64_t>(available / 8 / update_element_bytes);
  const std::int64_t elements = std::clamp(fit, update_elements_least, update_elements_most);
  return elements / zero3::GroupBlocks::slice * zero3::GroupBlocks::slice;
}

/// The optimizer's update, slice by slice as in a step, on state of its own.
class UpdateProbe {
 public:
  explicit UpdateProbe(std::int64_t elements) : elements_(elements) {}

  /// Seconds of one pass, with or without the checksums for state on NVMe.
  double run(bool checksums) {
    std::atomic<std::uint64_t> sum{0};
    const std::uint64_t begin = monotonic_ns();
    at::parallel_for(0, elements_ / slice, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t at = from * slice; at < to * slice; at += slice) {
        if (checksums) sum += sum_of_state(at);
        update(at);
        if (checksums) sum += sum_of_state(at);
      }
    });
    return seconds_since(begin);
  }

 private:
  static constexpr std::int64_t slice = zero3::GroupBlocks::slice;

  void update(std::int64_t at) {
    kernels::AdamArrays arrays;
    arrays.param = state_.data() + at;
    arrays.exp_avg = arrays.param + elements_;
    arrays.exp_avg_sq = arrays.exp_avg + elements_;
    arrays.grad = halves_.data() + at;
    arrays.grad_dtype = DType::Float16;
    arrays.param_out = halves_.data() + elements_ + at;
    kernels::adam_step(arrays, static_cast<std::uint64_t>(slice), constants_);
  }
  std::uint64_t sum_of_state(std::int64_t at) const {
    constexpr std::uint64_t piece = tiering::TierStore::checksum_piece_bytes;
    std::uint64_t sum = 0;
    for (std::int64_t array = 0; array < 3; ++array) {
      const auto* data = reinterpret_cast<const std::byte*>(state_.data() + array * elements_ + at);
      for (std::uint64_t done = 0; done < slice * sizeof(float); done += piece) {
        sum += kernels::checksum64(data + done, piece, done);
      }
    }
    return sum;
  }

  const std::int64_t elements_;
  std::vector<float> state_ = std::vector<float>(static_cast<std::size_t>(elements_) * 3, 0.5f);
  std::vector<std::uint16_t> halves_ =
      std::vector<std::uint16_t>(static_cast<std::size_t>(elements_) * 2, 0x3800);
  const kernels::AdamStep constants_ = kernels::make_adam_step({}, 1, true);
};

}  // namespace

ProbedMemory probe_memory() {
  const std::int64_t elements = update_elements();
  log(LogLevel::Info, "measuring the optimizer's update in " +
                          format_size(static_cast<std::uint64_t>(elements * update_element_bytes)) +
                          " of memory; --memory-bandwidth X spares that");
  UpdateProbe probe(elements);
  std::vector<double> without;
  std::vector<double> with;
  for (int round = 0; round < 5; ++round) {
    without.push_back(probe.run(/*checksums=*/false));
    with.push_back(probe.run(/*checksums=*/true));
  }
  const double update = median(std::move(without));
  // On a busy machine the difference may be zero or negative, so a small minimum is used.
  const double checksums = std::max(median(std::move(with)) - update, update / 20);
  return {.kernels = static_cast<double>(elements) * 28 / update,
          .checksum = static_cast<double>(elements) * 24 / checksums};
}

}  // namespace artesian::tools
