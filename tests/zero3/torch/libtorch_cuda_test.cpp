// Proves what the engine asks of LibTorch's CUDA part, and when, without that part: doubles of its
// hooks, guard and allocator replace it, on top of the runtime of tests/support/cuda_on_host. As in
// the real one, the allocator has no statistics, and throws, until LibTorch's CUDA is initialized,
// which neither hasCUDA() nor a tensor over given memory does. Such an exception becomes the error
// of the call, in an engine, too. Kernels that are not deterministic are LibTorch's error, unless
// artesian.determinism is "preferred".
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/log.h"
#include "models/activation_bytes.h"
#include "models/llama_of_size.h"
#include "models/registry.h"
#include "tests/support/cuda_on_host/machine.h"
#include "zero3/step/weights.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/from_torch.h"
#include "zero3/torch/token_batch.h"

namespace artesian::zero3 {
namespace {

/// c10::cuda::CUDACachingAllocator, as far as the engine uses it.
class AllocatorDouble final : public c10::DeviceAllocator {
 public:
  bool is_initialized = false;

  bool initialized() override { return is_initialized; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    TORCH_CHECK(is_initialized, "Invalid device argument ", int{device}, ": did you call init?");
    c10::CachingDeviceAllocator::DeviceStats statistics;
    statistics.allocated_bytes[0].current = 1000;
    statistics.allocated_bytes[0].peak = 3000;
    return statistics;
  }
  c10::DataPtr allocate(std::size_t) override { TORCH_CHECK(false, "out of a double's memory"); }
  void copy_data(void*, const void*, std::size_t) const override {}
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

AllocatorDouble& allocator() {
  static AllocatorDouble allocator;
  return allocator;
}

struct HooksDouble final : at::CUDAHooksInterface {
  explicit HooksDouble(at::CUDAHooksArgs) {}
  void init() const override { allocator().is_initialized = true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

c10::StreamId current_stream = 0;

struct GuardDouble final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

/// Registers the doubles, as loading libtorch_cuda.so does.
void load_doubles() {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks", [](at::CUDAHooksArgs arguments) -> std::unique_ptr<at::CUDAHooksInterface> {
        return std::make_unique<HooksDouble>(arguments);
      });
  static const GuardDouble guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)].store(&guard);
  c10::SetAllocator(c10::kCUDA, &allocator());
}

class LibTorchCuda : public testing::Test {
 protected:
  static void SetUpTestSuite() { load_doubles(); }
  LibTorchCuda() {
    set_log_sink([this](LogLevel, std::string_view line) { log_ += line; });
  }
  ~LibTorchCuda() override {
    set_log_sink({});
    at::globalContext().setDeterministicAlgorithms(false, false);
  }

  std::string log_;
};

// This test is the first: LibTorch initializes a device once in a process.
TEST_F(LibTorchCuda, IsInitializedBeforeItsStatisticsAreAsked) {
  const ComputeDevice too_soon{.torch = c10::Device(c10::kCUDA, 0), .owned = {}};
  for (const auto& bytes : {tensor_bytes_now(too_soon), tensor_bytes_peak(too_soon)}) {
    ASSERT_FALSE(bytes.has_value());
    EXPECT_NE(bytes.error().message.find("did you call init?"), std::string::npos);
  }
  const auto opened = open_compute_device("cuda:0");
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
  EXPECT_TRUE(allocator().is_initialized);
  EXPECT_EQ(tensor_bytes_now(*opened).value(), 1000u);
  EXPECT_EQ(tensor_bytes_peak(*opened).value(), 3000u);
}

TEST_F(LibTorchCuda, AnOperationWithoutADeterministicKernelIsAnErrorThatNamesTheKey) {
  ASSERT_TRUE(open_compute_device("cuda:0").has_value());
  const auto outcome = from_torch([]() -> Result<void> {
    at::Context::alertNotDeterministic("flash_attention_backward");
    return {};
  });
  ASSERT_FALSE(outcome.has_value());
  for (const char* part : {"artesian.determinism", "preferred", "flash_attention_backward"}) {
    EXPECT_NE(outcome.error().message.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(log_.find("artesian.determinism"), std::string::npos);
}

TEST_F(LibTorchCuda, WhereDeterminismIsPreferredItRunsAndThatIsSaid) {
  ASSERT_TRUE(open_compute_device("cuda:0", Determinism::Preferred).has_value());
  EXPECT_NE(log_.find("artesian.determinism"), std::string::npos);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(from_torch([]() -> Result<void> {
                at::Context::alertNotDeterministic("an_operation_of_the_users");
                return {};
              }).has_value());
}

TEST_F(LibTorchCuda, HasRoomForPlannedActivationsBesideTheDefaultDeviceTier) {
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  test_support::cuda_on_host().bytes_per_device = 24 * gib;
  const std::uint64_t free = free_device_memory(0).value();
  const models::ModelConfig model = models::llama_of_size(8e9);
  const auto parameters = models::model_parameters(model);
  const auto stages = models::model_stages(model);
  Config config;
  config.accumulation_steps = 8;
  config.param_dtype = DType::BFloat16;
  config.activation_checkpointing = true;
  std::uint64_t planned = 0;
  const auto plan = [&](const Budgets& budgets) -> Result<std::uint64_t> {
    planned = models::planned_activations({.model = &model,
                                           .config = &config,
                                           .parameters = &parameters,
                                           .stages = &stages,
                                           .tokens = 4096,
                                           .compute_dtype = DType::BFloat16,
                                           .budget = budgets.activations},
                                          budgets.host);
    return planned;
  };
  const Budgets budgets = choose_budgets(config, "cuda:0", plan).value();
  EXPECT_GT(planned + gib, free / 10);  // which it was
  EXPECT_EQ(budgets.device, free - planned - gib);
  EXPECT_GT(budgets.device, 12 * gib);
  const auto far_too_many = [&](const Budgets&) -> Result<std::uint64_t> { return 100 * gib; };
  EXPECT_EQ(choose_budgets(config, "cuda:0", far_too_many).value().device, free / 10);
  config.artesian.device_memory = 5 * gib;
  EXPECT_EQ(choose_budgets(config, "cuda:0", far_too_many).value().device, 5 * gib);
  test_support::CudaOnHost::reset();
}

TEST_F(LibTorchCuda, SettingsOfItsAllocatorAreTheUsersIfThereAreAny) {
  ::unsetenv("PYTORCH_ALLOC_CONF");
  ::setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512", 1);
  ASSERT_TRUE(check_device("cuda:0").has_value());
  EXPECT_EQ(::getenv("PYTORCH_ALLOC_CONF"), nullptr);
  ::unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  ASSERT_TRUE(check_device("cuda:0").has_value());
  EXPECT_STREQ(::getenv("PYTORCH_ALLOC_CONF"), "expandable_segments:True");
  ::setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False", 1);
  ASSERT_TRUE(check_device("cuda:0").has_value());
  EXPECT_STREQ(::getenv("PYTORCH_ALLOC_CONF"), "expandable_segments:False");
}

TEST_F(LibTorchCuda, AnotherStreamThanTheEnginesIsRefusedAndTheEngineGoesOn) {
  const auto opened = open_compute_device("cuda:0");
  ASSERT_TRUE(opened.has_value());
  EXPECT_TRUE(check_stream(*opened, "forward").has_value());
  current_stream = 3;
  const auto refused = check_stream(*opened, "forward");
  current_stream = 0;
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
  EXPECT_EQ(refused.error().message.find("forward(): got another LibTorch stream"), 0u);
}

TEST_F(LibTorchCuda, WhatItThrowsInAForwardIsTheForwardsError) {
  const auto described = models::parse_model_config(
      R"({"model_type": "gpt2", "vocab_size": 100, "n_positions": 8, "n_embd": 32, "n_layer": 2,
          "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})",
      "config.json");
  const auto module = models::make_module(described.value());
  Config config;
  config.micro_batch_size = config.train_batch_size = config.accumulation_steps = 1;
  config.zero.stage = 3;
  config.artesian.device_memory = config.artesian.host_memory = std::uint64_t{64} << 20;
  auto engine = Engine::create(*module, config, {.device = "cuda:0"});
  ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
  RandomWeights weights(module->parameters(), 1);
  ASSERT_TRUE((*engine)->initialize(weights).has_value());
  current_stream = 3;
  EXPECT_FALSE((*engine)->forward(TokenBatch(1, 8).batch()).has_value());
  current_stream = 0;
  allocator().is_initialized = false;
  const auto loss = (*engine)->forward(TokenBatch(1, 8).batch());
  allocator().is_initialized = true;
  ASSERT_FALSE(loss.has_value());
  EXPECT_NE(loss.error().message.find("did you call init?"), std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3
