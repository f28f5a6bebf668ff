// Proves the engine's arithmetic against LibTorch alone, not against another run of the engine:
// whole-model autograd and torch::optim::AdamW over the same weights and batches. With several
// micro-batches a step, a norm that clips in some steps and not in others, a schedule with a
// warm-up, an epsilon that matters at the size of the gradients, a tied head and one of its own; in
// fp32, bf16 and fp16, where steps overflow at the beginning and again later. Losses, norms, rates
// and weights are compared after every step.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "tests/zero3/torch/equality.h"
#include "zero3/torch/parameter_tensors.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t steps = 20;
constexpr std::uint64_t micro_batches = 4;
constexpr double clipping = 1.9;
constexpr double lr_last = 4e-3;
constexpr std::uint64_t warmup = 6;

/// The figures of a step of plain LibTorch.
struct Told {
  double loss = 0.0;
  double norm = 0.0;
};

/// fp32 weights under torch's AdamW, and a model of these weights rounded to the dtype, computed in
/// fp32.
class PlainTraining {
 public:
  PlainTraining(Module& module, const Config& config) : module_(module), config_(config) {
    RandomWeights weights(module.parameters(), 1);
    for (const ParameterSpec& spec : module.parameters()) {
      at::Tensor master = at::empty(spec.shape, at::kFloat);
      const std::span<float> all(master.data_ptr<float>(), spec.numel());
      EXPECT_TRUE(weights.read(static_cast<std::uint32_t>(masters_.size()), 0, all).has_value());
      masters_.push_back(master.set_requires_grad(true));
    }
    const OptimizerConfig& adam = config.optimizer;
    torch::optim::AdamWOptions options(lr_last);
    options.betas({adam.beta1, adam.beta2}).eps(adam.eps).weight_decay(adam.weight_decay);
    optimizer_ = std::make_unique<torch::optim::AdamW>(masters_, options);
  }

  /// Gradients of the mean over the micro-batches, and their norm.
  Told accumulate(const std::vector<TokenBatch>& batches) {
    Told told;
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& master : masters_) {
      const at::Tensor rounded =
          master.detach().to(scalar_type(config_.param_dtype)).to(at::kFloat);
      leaves.push_back(rounded.clone().set_requires_grad(true));
    }
    const double share = 1.0 / static_cast<double>(batches.size());
    for (const TokenBatch& batch : batches) {
      const at::Tensor loss = loss_of(leaves, batch.batch());
      (loss * share).backward();
      told.loss += loss.item<double>() * share;
    }
    double squares = 0.0;
    for (std::size_t index = 0; index < leaves.size(); ++index) {
      masters_[index].mutable_grad() = leaves[index].grad();
      squares += std::pow(leaves[index].grad().norm().item<double>(), 2);
    }
    told.norm = std::sqrt(squares);
    return told;
  }

  /// Updates with the gradients of accumulate().
  void update(double norm, double lr) {
    if (norm > clipping) {
      for (at::Tensor& master : masters_) master.mutable_grad().mul_(clipping / (norm + 1e-6));
    }
    for (auto& group : optimizer_->param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
    }
    optimizer_->step();
  }

  at::Tensor master(std::size_t index) const { return masters_[index].detach(); }

 private:
  at::Tensor loss_of(const std::vector<at::Tensor>& leaves, const Batch& batch) {
    at::Tensor activation = batch.input;
    for (std::size_t stage = 0; stage < module_.stages().size(); ++stage) {
      const StageSpec& spec = module_.stages()[stage];
      std::vector<at::Tensor> parameters;
      for (const auto index : graph_parameters(spec)) parameters.push_back(leaves[index]);
      if (spec.lookup.has_value()) activation = at::embedding(leaves[*spec.lookup], batch.input);
      activation = module_.forward(stage, activation, parameters, batch);
    }
    return activation;
  }

  Module& module_;
  const Config& config_;
  std::vector<at::Tensor> masters_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

struct Case {
  DType dtype;
  int head;  // 0: tied
  int home;  // of parameters and optimizer state, as in Choice
};

class Reference : public Equality, public testing::WithParamInterface<Case> {
 protected:
  Reference() : Equality(tiny) { at::set_num_threads(1); }

  Choice choice() const {
    const int dtype = GetParam().dtype == DType::Float32    ? 0
                      : GetParam().dtype == DType::BFloat16 ? 1
                                                            : 2;
    Choice run{};
    run[ParamHome] = run[OptimizerHome] = GetParam().home;
    run[BufferCount] = run[IoEngine] = 1;
    run[Dtype] = dtype;
    run[Accumulation] = 2;
    run[Head] = GetParam().head;
    return run;
  }
  Config config() const {
    Config config = config_of(choice());
    config.gradient_clipping = clipping;
    config.optimizer.lr = lr_last;
    config.optimizer.eps = 1e-3;
    config.optimizer.weight_decay = 0.1;
    config.scheduler = {.type = SchedulerConfig::Type::WarmupLR,
                        .warmup_max_lr = lr_last,
                        .warmup_num_steps = warmup,
                        .warmup_linear = true};
    return config;
  }
  /// The same few batches again and again, so that gradients become small as the model learns.
  std::vector<TokenBatch> batches_of(std::size_t step) const {
    std::vector<TokenBatch> batches;
    for (std::uint64_t micro = 0; micro < micro_batches; ++micro) {
      TokenBatch& batch = batches.emplace_back(scale.samples, scale.length);
      std::uint64_t draw = 0;
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        for (auto& token : tokens) {
          const std::uint64_t word = random_word(71, step % 3 * micro_batches + micro, draw++);
          token = static_cast<std::int64_t>(word % scale.vocab);
        }
      }
    }
    return batches;
  }
  /// Returns the error of all masters, relative to how far training has moved them.
  double error_of(Engine& engine, const PlainTraining& plain) const {
    const auto& parameters = module_of(choice()).parameters();
    RandomWeights weights(parameters, 1);
    double largest = 0.0;
    for (std::uint32_t index = 0; index < parameters.size(); ++index) {
      std::vector<float> values, first(parameters[index].numel());
      EXPECT_TRUE(weights.read(index, 0, first).has_value());
      const auto read = engine.read_master(index, [&](std::span<const float> piece) {
        values.insert(values.end(), piece.begin(), piece.end());
        return Result<void>();
      });
      EXPECT_TRUE(read.has_value()) << read.error().to_string();
      const at::Tensor expected = plain.master(index).flatten();
      const double moved = (expected - at::tensor(first)).norm().item<double>();
      const double error = (at::tensor(values) - expected).norm().item<double>();
      largest = std::max(largest, error / moved);
    }
    return largest;
  }
};

/// DeepSpeed's: the first step has the warm-up's least rate, and skipped steps do not count.
double rate_after(std::uint64_t updates) {
  if (updates == 0) return 0.0;
  return lr_last * std::min(1.0, static_cast<double>(updates - 1) / warmup);
}

TEST_P(Reference, TrainsAsAdamWOfLibTorch) {
  const Config config = this->config();
  Module& module = module_of(choice());
  EngineOptions options;
  options.input_elements = input_elements(module);
  auto engine = create_patiently(module, config, options).value();
  RandomWeights weights(module.parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  PlainTraining plain(module, config);
  // The effect of rounding: of gradients and their sums to the dtype, and of gradients that are
  // almost 0.
  const double tolerance = GetParam().dtype == DType::Float32    ? 5e-4
                           : GetParam().dtype == DType::BFloat16 ? 2e-2
                                                                 : 4e-3;
  std::uint64_t updates = 0, clipped = 0, overflows = 0, overflows_later = 0;
  double scale_now = GetParam().dtype == DType::Float16 ? 0x1p24 : 1.0;
  std::uint64_t since_overflow = 0;
  double error = 0.0;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto batches = batches_of(step);
    const Told told = plain.accumulate(batches);
    ASSERT_TRUE(run_micro_batches(*engine, batches, step % 2 == 0));
    const StepResult result = engine->step().value();
    EXPECT_NEAR(result.loss, told.loss, told.loss * tolerance) << "step " << step;
    EXPECT_DOUBLE_EQ(result.lr, rate_after(updates)) << "step " << step;
    EXPECT_EQ(result.loss_scale, scale_now) << "step " << step;
    if (result.overflow) {
      ++overflows;
      overflows_later += updates > 0 ? 1 : 0;
      scale_now /= 2;
      since_overflow = 0;
      continue;
    }
    EXPECT_NEAR(result.grad_norm, told.norm, told.norm * tolerance) << "step " << step;
    plain.update(told.norm, rate_after(updates++));
    clipped += told.norm > clipping ? 1 : 0;
    const bool window_ended = since_overflow > 0 && since_overflow % 3 == 0;
    ++since_overflow;
    if (GetParam().dtype == DType::Float16 && window_ended) scale_now *= 2;
    if (updates > 2) error = std::max(error, error_of(*engine, plain));
  }
  EXPECT_LE(error, tolerance);
  std::printf("%.2f of the tolerance; %llu updates, %llu clipped, %llu skipped\n",
              error / tolerance, static_cast<unsigned long long>(updates),
              static_cast<unsigned long long>(clipped), static_cast<unsigned long long>(overflows));
  EXPECT_GE(clipped, 2u);
  EXPECT_GE(updates - clipped, 2u);
  EXPECT_EQ(overflows > 0, GetParam().dtype == DType::Float16);
  EXPECT_EQ(overflows_later > 0, GetParam().dtype == DType::Float16);
  ASSERT_TRUE(engine->close().has_value());
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const char* home = info.param.home == 0 ? "_device" : info.param.home == 1 ? "_host" : "_nvme";
  return dtype_name(info.param.dtype) + std::string(info.param.head == 0 ? "_tied" : "_untied") +
         home;
}

INSTANTIATE_TEST_SUITE_P(All, Reference,
                         testing::Values(Case{DType::Float32, 0, 2}, Case{DType::Float32, 1, 0},
                                         Case{DType::BFloat16, 0, 2}, Case{DType::BFloat16, 1, 1},
                                         Case{DType::Float16, 0, 2}, Case{DType::Float16, 1, 1}),
                         case_name);

}  // namespace
}  // namespace artesian::zero3
