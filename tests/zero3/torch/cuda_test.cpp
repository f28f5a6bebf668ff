// Proves training on a GPU. Every home of parameters and optimizer state, budgets down to the least
// and any limits give the same bits. For given gradients optimizer, casts and norms have the CPU's
// bits. A budget beyond the GPU's memory is refused by name. The engine's memory on the device is
// within its budget. Attention's backward has the same bits in each run, also at a length of many
// blocks of keys, for which the models above are too small. Skips (exit 77) without a device.
#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "tests/models/attention_gradients.h"
#include "tests/support/gpu_main.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/tensor_weights.h"

namespace artesian::zero3 {
namespace {

class OnAGpu : public Equality {
 protected:
  OnAGpu() : Equality(Scale{.steps = 8}) { separate_device = true; }

  Config gpu_config(Choice run) {
    if (run[Dtype] != 0) run[Dtype] += 2;  // computed in the stored dtype: "auto" on a GPU
    Config config = config_of(run);
    if (run[Budget] == 2) config.artesian.device_memory = std::uint64_t{1} << 30;
    return config;
  }
  Outcome on_gpu(const Choice& run) { return train(run, gpu_config(run), {.device = "cuda:0"}); }
};

TEST_F(OnAGpu, EveryPlacementGivesTheSameBits) {
  std::uint64_t draw = 0;
  for (const int dtype : {0, 1, 2}) {
    for (const int head : {0, 1}) {
      Choice reference_run{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, dtype, 1, head};
      const Outcome reference = on_gpu(reference_run);
      ASSERT_EQ(reference.steps.size(), scale.steps);
      expect_same(on_gpu(reference_run), reference);  // twice the same: kernels are deterministic
      if (HasFatalFailure()) return;
      for (const int param : {0, 1, 2}) {
        for (const int optimizer : {0, 1, 2}) {
          Choice run{};
          for (std::size_t factor = 0; factor < factor_count; ++factor) {
            run[factor] = static_cast<int>(random_word(13, 0, draw++) %
                                           static_cast<std::uint64_t>(levels[factor]));
          }
          run[ParamHome] = param;
          run[OptimizerHome] = optimizer;
          run[Dtype] = dtype;
          run[Accumulation] = 1;
          run[Head] = head;
          SCOPED_TRACE(describe(run));
          expect_same(on_gpu(run), reference);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(OnAGpu, LearnsAsTheCpuDoes) {
  Choice run{1, 1, 2, 2, 1, 2, 2, 1, 2, 2, 0, 0, 0, 0};  // fp32: only the GEMMs' order differs
  const Outcome gpu = on_gpu(run);
  separate_device = false;
  const Outcome cpu = train(run);
  ASSERT_EQ(gpu.steps.size(), cpu.steps.size());
  for (std::size_t step = 0; step < cpu.steps.size(); ++step) {
    EXPECT_NEAR(gpu.steps[step].loss, cpu.steps[step].loss, 1e-4 * cpu.steps[step].loss) << step;
    EXPECT_NEAR(gpu.steps[step].grad_norm, cpu.steps[step].grad_norm,
                1e-3 * cpu.steps[step].grad_norm);
    EXPECT_GT(gpu.steps[step].bytes_h2d, 0u);
    EXPECT_GT(gpu.steps[step].bytes_d2h, 0u);
    EXPECT_GT(gpu.steps[step].peak_activations, 0u);
  }
}

/// One weight per element and a loss whose gradients are exact on any device: the sum of w * x with
/// x a power of two. So all computing after backward must have the CPU's bits.
class ExactModel final : public Module {
 public:
  explicit ExactModel(std::int64_t stages) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      const std::string name = "s" + std::to_string(stage);
      parameters_.push_back({.name = name + ".w", .shape = {4096 + 32 * stage}});
      stages_.push_back(
          {.name = name, .parameters = {static_cast<std::uint32_t>(stage)}, .lookup = {}});
    }
  }
  const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
  const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
  /// Passes on an input of as many elements as the longest parameter. Each stage adds its weights
  /// times a power of two.
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch&) override {
    const at::Tensor& weight = parameters[0];
    const auto count = weight.numel();
    const double factor = std::ldexp(1.0, -static_cast<int>(stage) - 1);
    const at::Tensor padded =
        at::constant_pad_nd(weight * factor, {0, input.numel() - count}).to(at::kFloat);
    const at::Tensor sum = input.to(at::kFloat) + padded;
    return stage + 1 < stages_.size() ? sum : sum.sum() * 0.0625;
  }

 private:
  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
};

std::string digest_of_exact_model(const Config& config, const std::string& device) {
  ExactModel model(3);
  auto engine = Engine::create(model, config, {.device = device});
  EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
  if (!engine.has_value()) return device;
  RandomWeights weights(model.parameters(), 7);
  EXPECT_TRUE((*engine)->initialize(weights).has_value());
  const at::Tensor input = at::zeros({4096 + 64});
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE((*engine)->forward({input, {}}).has_value());
    EXPECT_TRUE((*engine)->backward().has_value());
    EXPECT_TRUE((*engine)->step().has_value());
  }
  auto digest = (*engine)->digest();
  EXPECT_TRUE(digest.has_value());
  EXPECT_TRUE((*engine)->close().has_value());
  return digest.has_value() ? *digest : device;
}

TEST_F(OnAGpu, OptimizerCastsAndNormsHaveTheBitsOfTheCpu) {
  for (const int dtype : {0, 1, 2}) {
    for (const int home : {0, 1, 2}) {
      Choice run{home, home, 2, 1, 1, 2, 2, 0, 1, 1, 0, dtype, 0, 0};
      Config config = gpu_config(run);
      config.gradient_clipping = 0.5;  // the norm affects every update
      config.artesian.device_memory = config.artesian.host_memory = std::uint64_t{64} << 20;
      EXPECT_EQ(digest_of_exact_model(config, "cuda:0"), digest_of_exact_model(config, "cpu"))
          << dtype << " " << home;
    }
  }
}

TEST_F(OnAGpu, AttentionHasTheSameGradientsInEachRunAtALengthOfManyBlocks) {
  const models::AttentionShape shape{.batch = 4, .heads = 32, .key_heads = 8};
  const auto first = models::attention_gradients({at::kCUDA, 0}, shape);
  for (int run = 0; run < 20; ++run) {
    const auto again = models::attention_gradients({at::kCUDA, 0}, shape);
    for (std::size_t input = 0; input < first.size(); ++input) {
      EXPECT_TRUE(at::equal(again[input], first[input])) << run << " " << input;
    }
  }
}

TEST_F(OnAGpu, ABudgetBeyondItsMemoryIsRefusedByName) {
  Choice run{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, 1, 0, 0};
  Config config = gpu_config(run);
  config.artesian.device_memory = 1;
  auto engine = Engine::create(module_of(run), config, {.device = "cuda:0"});
  ASSERT_FALSE(engine.has_value());
  EXPECT_NE(engine.error().message.find("artesian.device_memory"), std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3

int main(int argc, char** argv) {
  return artesian::test_support::run_gpu_tests(argc, argv, [] {
    // Before any other use of LibTorch, which would remember that there is no CUDA.
    const auto opened = artesian::zero3::open_compute_device("cuda:0");
    return opened.has_value() ? std::string() : opened.error().to_string();
  });
}
