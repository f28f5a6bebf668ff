// Proves the CUDA backend under the whole engine without a GPU. Training on a CudaDevice whose
// runtime and kernels run on the host (tests/support/cuda_on_host), as late as its streams and
// events allow or in any such order, gives the bits of training on the CPU at every home of
// parameters and optimizer state. A GPU that fails or does not answer during a step ends the run
// with the device's error. LibTorch computes on the CPU, on that memory, at once;
// separate_device_test.cpp proves the fences around its computing.
#include <ATen/Parallel.h>

#include <cstdlib>
#include <map>
#include <set>

#include "tests/support/cuda_on_host/machine.h"
#include "tests/zero3/torch/equality.h"
#include "tiering/device/cuda_device.h"

namespace artesian::zero3 {
namespace {

using test_support::cuda_on_host;
using test_support::CudaOnHost;
using tiering::DeviceFence;
using tiering::Queue;

/// A CudaDevice for a LibTorch that computes as soon as it is called: work that was enqueued before
/// in the queue Compute has then run, with all that it waits for.
class ComputesOnHost final : public tiering::Device {
 public:
  ~ComputesOnHost() override { EXPECT_FALSE(registered); }
  bool registered = false;

  std::string name() const override { return cuda_->name(); }
  bool host_accessible() const noexcept override { return false; }
  Result<std::unique_ptr<pinned::Pool>> create_arena(std::uint64_t bytes) override {
    return cuda_->create_arena(bytes);
  }
  Result<void> register_host(std::span<std::byte> range) override {
    registered = true;
    return cuda_->register_host(range);
  }
  void unregister_host(std::span<std::byte> range) noexcept override {
    registered = false;
    cuda_->unregister_host(range);
  }
  Result<void> copy_to_device(std::byte* target, const std::byte* source,
                              std::uint64_t bytes) override {
    bytes_to_device_ += bytes;
    return cuda_->copy_to_device(target, source, bytes);
  }
  Result<void> copy_to_host(std::byte* target, const std::byte* source,
                            std::uint64_t bytes) override {
    bytes_to_host_ += bytes;
    return cuda_->copy_to_host(target, source, bytes);
  }
  Result<void> copy_within(Queue queue, std::byte* target, const std::byte* source,
                           std::uint64_t bytes) override {
    return enqueued(queue, cuda_->copy_within(queue, target, source, bytes));
  }
  Result<void> zero(Queue queue, std::byte* target, std::uint64_t bytes) override {
    return enqueued(queue, cuda_->zero(queue, target, bytes));
  }
  Result<void> expand(Queue queue, const std::byte* source, DType dtype, float* target,
                      std::uint64_t count) override {
    return enqueued(queue, cuda_->expand(queue, source, dtype, target, count));
  }
  Result<void> accumulate_gradients(Queue queue, std::span<const kernels::GradientPiece> pieces,
                                    const kernels::GradientDtypes& dtypes) override {
    return enqueued(queue, cuda_->accumulate_gradients(queue, pieces, dtypes));
  }
  Result<void> sum_squares(Queue queue, const std::byte* data, DType dtype, std::uint64_t count,
                           double* leaf_sums) override {
    return enqueued(queue, cuda_->sum_squares(queue, data, dtype, count, leaf_sums));
  }
  Result<void> update_steps(Queue queue, std::span<const kernels::AdamPiece> pieces,
                            const kernels::UpdateStep& step) override {
    return enqueued(queue, cuda_->update_steps(queue, pieces, step));
  }
  Result<DeviceFence> record(Queue queue) override { return cuda_->record(queue); }
  Result<void> wait(Queue queue, DeviceFence fence) override { return cuda_->wait(queue, fence); }
  bool ready(DeviceFence fence) noexcept override { return cuda_->ready(fence); }
  Result<void> finish(DeviceFence fence) noexcept override {
    cuda_->set_wait_seconds(wait_seconds());
    return cuda_->finish(fence);
  }
  void begin_compute() noexcept override {
    cuda_->begin_compute();
    run_compute();
    CudaOnHost::open_memory();
  }
  void end_compute() noexcept override { CudaOnHost::close_memory(); }

 private:
  static void run_compute() {
    if (!cuda_on_host().hangs) CudaOnHost::drain(nullptr);
  }
  /// Tensors that a kernel reads are freed as soon as it is enqueued, which a GPU's allocator
  /// handles.
  Result<void> enqueued(Queue queue, Result<void> outcome) {
    if (queue == Queue::Compute) run_compute();
    return outcome;
  }

  std::unique_ptr<tiering::CudaDevice> cuda_ = tiering::CudaDevice::open(0, nullptr).value();
};

class OnCudaOnHost : public Equality {
 protected:
  OnCudaOnHost() : Equality(tiny) { at::set_num_threads(1); }

  static void new_machine(CudaOnHost::Order order, std::uint64_t seed) {
    CudaOnHost::reset();
    cuda_on_host().order = order;
    cuda_on_host().random.seed(seed);
    cuda_on_host().host_tensors = true;
  }
  Config clipped_config(const Choice& run) const {
    Config config = config_of(run);
    config.gradient_clipping = 0.5;  // the norm affects every update
    return config;
  }
  Config device_config(const Choice& run) {
    separate_device = true;
    Config config = clipped_config(run);
    separate_device = false;
    return config;
  }

  void expect_equal(const Choice& run, CudaOnHost::Order order, std::uint64_t seed) {
    SCOPED_TRACE(describe(run) + ", order " + std::to_string(static_cast<int>(order)) + ", seed " +
                 std::to_string(seed));
    const Outcome& reference = on_cpu(run);
    new_machine(order, seed);
    {
      ComputesOnHost device;
      expect_same(train(run, device_config(run), {.backend = &device}), reference);
      EXPECT_GT(device.bytes_to_device() + device.bytes_to_host(), 0u);
    }
    EXPECT_EQ(CudaOnHost::left(), "");
  }

  const Outcome& on_cpu(const Choice& run) {
    const std::array<int, 3> group{run[Dtype], run[Accumulation], run[Head]};
    if (references_.count(group) == 0) {
      Choice in_memory{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, run[Dtype], run[Accumulation], run[Head]};
      in_memory[Masters] = 1;
      references_[group] = train(in_memory, clipped_config(in_memory));
    }
    return references_[group];
  }

  std::map<std::array<int, 3>, Outcome> references_;
};

TEST_F(OnCudaOnHost, EveryHomeGivesTheBitsOfTheCpu) {
  const int dtypes = std::getenv("ARTESIAN_SOAK") != nullptr ? 3 : 1;  // of each home
  std::uint64_t draw = 0;
  for (const int param : {0, 1, 2}) {
    for (const int optimizer : {0, 1, 2}) {
      for (int number = 0; number < dtypes; ++number) {
        Choice run = random_choice(19, draw++);
        run[ParamHome] = param;
        run[OptimizerHome] = optimizer;
        run[Dtype] = (param + optimizer + number) % 3;
        if (param + optimizer == 0) run[Head] = 1;  // looked-up rows come down, too
        const auto order = draw % 2 == 1 ? CudaOnHost::Order::Late : CudaOnHost::Order::Random;
        expect_equal(run, order, draw);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Some units, and all.
TEST_F(OnCudaOnHost, UnitsOfWhichItHoldsAllAreUpdatedThereWithTheBitsOfTheCpu) {
  std::set<std::ptrdiff_t> counts;
  for (const int dtype : {0, 1, 4}) {
    Choice run{0, 2, 0, 1, 1, 2, 1, 0, 0, 1, 1, dtype, 0, 0};
    if (dtype == 4) run[ParamHome] = 2;  // computed in fp16, so that spare memory has parameters
    Config config = device_config(run);
    const std::uint64_t least = *config.artesian.device_memory;
    const Outcome& reference = on_cpu(run);
    for (const std::uint64_t spare : {400'000u, 4'000'000u}) {
      SCOPED_TRACE(describe(run) + ", spare " + std::to_string(spare));
      config.artesian.device_memory = least + spare;
      new_machine(CudaOnHost::Order::Random, spare);
      {
        ComputesOnHost device;
        const Outcome outcome = train(run, config, {.backend = &device});
        expect_same(outcome, reference);
        ASSERT_FALSE(HasFatalFailure());
        counts.insert(outcome.updated_by_device);
        EXPECT_GT(outcome.updated_by_device, 0);
      }
      EXPECT_EQ(CudaOnHost::left(), "");
    }
  }
  EXPECT_GT(counts.size(), 1u);
}

TEST_F(OnCudaOnHost, AsMuchAsADriverPageLocksGivesTheBitsOfTheCpu) {
  const Choice run{2, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0};
  const Outcome& reference = on_cpu(run);
  for (const std::uint64_t most : {std::uint64_t{0}, std::uint64_t{256} << 10, ~std::uint64_t{0}}) {
    for (const bool pin_memory : {true, false}) {
      SCOPED_TRACE(std::to_string(most) + (pin_memory ? " bytes" : " bytes, without pin_memory"));
      new_machine(CudaOnHost::Order::Random, 3);
      cuda_on_host().registered_bytes_max = most;
      {
        ComputesOnHost device;
        Config config = device_config(run);
        config.zero.offload_optimizer.pin_memory = pin_memory;
        expect_same(train(run, config, {.backend = &device}), reference);
        EXPECT_FALSE(HasFatalFailure());
      }
      EXPECT_EQ(CudaOnHost::left(), "");
    }
  }
}

/// Returns the first error of a training, or success.
Result<void> train_some(Engine& engine, const Config& config, const Scale& scale) {
  const TokenBatch batch(scale.samples, scale.length);
  for (std::size_t step = 0; step < scale.steps; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      ARTESIAN_TRY(loss, engine.forward(batch.batch()));
      static_cast<void>(loss);
      ARTESIAN_TRY_VOID(engine.backward());
    }
    ARTESIAN_TRY(result, engine.step());
    static_cast<void>(result);
  }
  return {};
}

constexpr Choice from_nvme{2, 2, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 0};

TEST_F(OnCudaOnHost, AGpuThatFailsEndsTheRunWithItsErrorAndNothingElse) {
  for (const int operations : {3, 40, 150, 400}) {
    SCOPED_TRACE(operations);
    new_machine(CudaOnHost::Order::Random, 1);
    ComputesOnHost device;
    const Config config = device_config(from_nvme);
    auto engine = Engine::create(module_of(from_nvme), config, {.backend = &device}).value();
    RandomWeights weights(module_of(from_nvme).parameters(), 1);
    ASSERT_TRUE(engine->initialize(weights).has_value());
    cuda_on_host().operations_until_failure = operations;
    const auto trained = train_some(*engine, config, scale);
    ASSERT_FALSE(trained.has_value());
    EXPECT_EQ(trained.error().code, ErrorCode::Io);
    for (const char* part : {"cuda:0: ", "illegal memory access", "outside its stage"}) {
      EXPECT_NE(trained.error().message.find(part), std::string::npos) << trained.error().message;
    }
    EXPECT_EQ(engine->step().error().message, trained.error().message);
    EXPECT_FALSE(engine->close().has_value());
    engine.reset();
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

TEST_F(OnCudaOnHost, AGpuThatDoesNotAnswerEndsTheRunAtTheDeadline) {
  new_machine(CudaOnHost::Order::Late, 1);
  // Never destroyed, since the engine keeps memory that the device may still write to.
  auto* device = new ComputesOnHost;
  const Config config = device_config(from_nvme);
  auto engine =
      Engine::create(module_of(from_nvme), config, {.backend = device, .wait_seconds = 0.2})
          .value();
  RandomWeights weights(module_of(from_nvme).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  cuda_on_host().hangs = true;
  const auto trained = train_some(*engine, config, scale);
  ASSERT_FALSE(trained.has_value());
  EXPECT_EQ(trained.error().code, ErrorCode::Timeout);
  EXPECT_NE(trained.error().message.find("cuda:0: no answer"), std::string::npos);
  EXPECT_EQ(engine->close().error().code, ErrorCode::Timeout);
  engine.reset();
  CudaOnHost::reset();
}

}  // namespace
}  // namespace artesian::zero3
