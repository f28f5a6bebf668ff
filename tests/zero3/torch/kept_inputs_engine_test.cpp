// Proves how inputs that are kept in tiers survive irregular passes. Batches that a stage refuses
// in the middle of a group, evaluations in between, and batches larger than planned change no bit
// and leave nothing behind. A disk that is full, fails or stops answering while they are written or
// read ends the run with one error that names the shard.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fcntl.h>

#include <functional>

#include "tests/support/diverted_files.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

/// A module that refuses one call of forward, on demand.
class Moody final : public Module {
 public:
  explicit Moody(Module& real) : real_(real) {}
  const std::vector<ParameterSpec>& parameters() const noexcept override {
    return real_.parameters();
  }
  const std::vector<StageSpec>& stages() const noexcept override { return real_.stages(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, const Batch& batch) override {
    if (calls_until_refusal != 0 && --calls_until_refusal == 0) {
      throw std::runtime_error("not in the mood");
    }
    return real_.forward(stage, input, parameters, batch);
  }

  int calls_until_refusal = 0;  // 0: never

 private:
  Module& real_;
};

/// Inputs of 16 KiB.
constexpr Scale small{
    .vocab = 200, .hidden = 64, .samples = 2, .length = 32, .steps = 4, .some = 24'000};

class KeptInputsEngine : public Equality {
 protected:
  KeptInputsEngine() : Equality(small) { at::set_num_threads(1); }

  /// Everything on NVMe, the least budgets, four micro-batches at once.
  static Choice tight() {
    Choice run{2, 2, 0, 2, 0, 2, 2, 2, 2, 2, 1, 1, 2, 0};
    run[Schedule] = 4;
    return run;
  }
  /// Nothing but inputs on NVMe.
  Config inputs_alone() const {
    Choice run{2, 1, 0, 2, 0, 2, 2, 2, 2, 2, 1, 1, 2, 0};
    run[Schedule] = 4;
    Config config = config_of(run);
    config.zero.param_persistence_threshold = 1'000'000'000;
    config.artesian.device_memory = everything;
    const Module& module = module_of(run);
    for (std::uint64_t host = 4096;; host += 4096) {  // until no gradient spills
      const auto plan = make_placement({.parameters = &module.parameters(),
                                        .stages = &module.stages(),
                                        .config = &config,
                                        .compute_dtype = *config.artesian.compute_dtype,
                                        .device_bytes = everything,
                                        .host_bytes = host,
                                        .input_elements = input_elements(module),
                                        .activation_bytes = everything});
      config.artesian.host_memory = host;
      if (plan.has_value() && plan->nvme_param_bytes == plan->inputs.bytes_in(Tier::Nvme)) break;
    }
    return config;
  }
  std::unique_ptr<Engine> engine(Module& module, const Config& config, EngineOptions options = {}) {
    if (options.input_elements.empty()) options.input_elements = input_elements(module);
    auto made = create_patiently(module, config, options);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    RandomWeights weights(module.parameters(), 1);
    EXPECT_TRUE((*made)->initialize(weights).has_value());
    return std::move(made).value();
  }
  std::vector<TokenBatch> micro_batches(std::uint64_t step) const {
    std::vector<TokenBatch> made;
    std::uint64_t draw = step * 10'000;
    for (std::uint64_t micro = 0; micro < 4; ++micro) {
      TokenBatch& batch = made.emplace_back(scale.samples, scale.length);
      for (const auto tokens : {batch.ids(), batch.targets()}) {
        for (auto& token : tokens) {
          token = static_cast<std::int64_t>(random_word(5, 0, draw++) % scale.vocab);
        }
      }
    }
    return made;
  }
  using Pass = std::function<void(Engine&, std::span<const Batch>)>;
  std::string digest_after(Engine& trained, const Pass& pass) const {
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto tokens = micro_batches(step);
      std::vector<Batch> batches;
      for (const TokenBatch& batch : tokens) batches.push_back(batch.batch());
      pass(trained, batches);
      const auto result = trained.step();
      EXPECT_TRUE(result.has_value()) << result.error().to_string();
      if (!result.has_value()) return "";
    }
    const std::string digest = trained.digest().value();
    EXPECT_TRUE(trained.close().has_value());
    return digest;
  }
  static void all_at_once(Engine& trained, std::span<const Batch> batches) {
    const auto losses = trained.forward_backward(batches);
    EXPECT_TRUE(losses.has_value()) << losses.error().to_string();
  }
  std::string expected() {
    Choice run = tight();
    run[Schedule] = 0;
    run[Budget] = 2;
    return digest_after(*engine(module_of(run), config_of(run)), all_at_once);
  }
};

TEST_F(KeptInputsEngine, APassThatEndsInItsMiddleChangesNoBit) {
  const std::string reference = expected();
  Moody module(module_of(tight()));
  const auto trained = engine(module, config_of(tight()));
  ASSERT_GT(trained->placement().inputs.bytes_in(Tier::Nvme), 0u);
  ASSERT_EQ(trained->placement().inputs.at_once, 4u);
  int refused = 0;
  const auto pass = [&](Engine& of, std::span<const Batch> batches) {
    for (const int calls : {2, 7, 14, 16}) {  // in the first stage, in the middle, in the last
      module.calls_until_refusal = calls;
      const auto losses = of.forward_backward(batches);
      refused += losses.has_value() ? 0 : 1;
      EXPECT_TRUE(of.evaluate(batches[0]).has_value());
    }
    EXPECT_TRUE(of.forward(batches[0]).has_value());
    EXPECT_TRUE(of.evaluate(batches[1]).has_value());  // kept inputs stay
    EXPECT_TRUE(of.backward().has_value());
    all_at_once(of, batches.subspan(1));
  };
  EXPECT_EQ(digest_after(*trained, pass), reference);
  EXPECT_EQ(refused, 16);
}

TEST_F(KeptInputsEngine, BatchesLargerThanPlannedStayWhereTheyAreComputed) {
  const std::string reference = expected();
  Module& module = module_of(tight());
  EngineOptions options;
  options.input_elements = input_elements(module);
  options.input_elements[1] = 2000;  // of the 4096 that arrive
  options.input_elements[2] = 0;
  const auto trained = engine(module, config_of(tight()), options);
  const KeptInputs& inputs = trained->placement().inputs;
  EXPECT_EQ(inputs.home(2, 0), Tier::Device);
  EXPECT_EQ(inputs.home(1, 0), Tier::Nvme);
  EXPECT_EQ(digest_after(*trained, all_at_once), reference);
}

TEST_F(KeptInputsEngine, WithoutSizesInputsStayWhereTheyAreComputed) {
  const auto made = Engine::create(module_of(tight()), config_of(tight()), {});
  ASSERT_TRUE(made.has_value()) << made.error().to_string();
  EXPECT_FALSE((*made)->placement().inputs.some());
}

TEST_F(KeptInputsEngine, SizesOfOtherStagesAreRefused) {
  const auto made =
      Engine::create(module_of(tight()), config_of(tight()), {.input_elements = {1, 2, 3}});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::Invalid);
  EXPECT_EQ(made.error().message.find("input_elements: got 3, allowed none or 4"), 0u)
      << made.error().message;
}

struct Fault {
  const char* device;  // the file to which transfers go
  int flags;
  bool in_backward;
  ErrorCode code;
  const char* words;
};

class KeptInputsFaults : public KeptInputsEngine, public testing::WithParamInterface<Fault> {};

TEST_P(KeptInputsFaults, EndTheRunWithOneErrorThatNamesTheShard) {
  const Fault& fault = GetParam();
  test_support::DivertedFiles files;
  const int descriptor = ::open(fault.device, fault.flags | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  auto trained =
      engine(module_of(tight()), inputs_alone(), {.files = &files, .wait_seconds = 60.0});
  const Placement& placement = trained->placement();
  ASSERT_GT(placement.inputs.bytes_in(Tier::Nvme), 0u);
  ASSERT_EQ(placement.nvme_param_bytes + placement.nvme_optimizer_bytes,
            placement.inputs.bytes_in(Tier::Nvme));  // so reads and writes are theirs
  const auto tokens = micro_batches(0);
  if (!fault.in_backward) files.diverted = descriptor;
  Error failed;
  const auto forward = trained->forward(tokens[0].batch());
  if (!forward.has_value()) {
    failed = forward.error();
  } else {
    files.diverted = descriptor;
    const auto backward = trained->backward();
    ASSERT_FALSE(backward.has_value());
    failed = backward.error();
  }
  EXPECT_EQ(failed.code, fault.code) << failed.to_string();
  EXPECT_NE(failed.message.find(fault.words), std::string::npos) << failed.message;
  EXPECT_NE(failed.message.find(" input 0"), std::string::npos) << failed.message;
  const auto later = trained->forward(tokens[1].batch());
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().message, failed.message);
  files.diverted = -1;
  static_cast<void>(trained->close().has_value());
  trained.reset();
  ::close(descriptor);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

// /dev/full accepts no byte; reading unmapped memory of this process is EIO.
INSTANTIATE_TEST_SUITE_P(
    Disks, KeptInputsFaults,
    testing::Values(Fault{"/dev/full", O_RDWR, false, ErrorCode::NoSpace, "writing shard "},
                    Fault{"/proc/self/mem", O_RDONLY, true, ErrorCode::Io, "reading shard "},
                    Fault{"/dev/zero", O_RDWR, true, ErrorCode::Corrupt, "shard "}));

TEST_F(KeptInputsEngine, ADiskThatStopsAnsweringIsATimeoutThatNamesTheShard) {
  static test_support::DivertedFiles
      files;  // the engine is kept until the end, and its files with it
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // open until the process ends: transfers wait on it
  Config config = inputs_alone();
  config.artesian.engine = EngineChoice::IoUring;
  EngineOptions options{.files = &files, .wait_seconds = 0.5};
  options.input_elements = input_elements(module_of(tight()));
  auto made = create_patiently(module_of(tight()), config, options);
  if (!made.has_value() && made.error().code == ErrorCode::Unsupported) {
    GTEST_SKIP() << "the kernel refuses io_uring";
  }
  ASSERT_TRUE(made.has_value()) << made.error().to_string();
  auto trained = std::move(made).value();
  RandomWeights weights(module_of(tight()).parameters(), 1);
  ASSERT_TRUE(trained->initialize(weights).has_value());
  const auto tokens = micro_batches(0);
  ASSERT_TRUE(trained->forward(tokens[0].batch()).has_value());
  files.diverted = ends[0];
  const auto stalled = trained->backward();
  ASSERT_FALSE(stalled.has_value());
  EXPECT_EQ(stalled.error().code, ErrorCode::Timeout);
  EXPECT_NE(stalled.error().message.find("no answer from the disk within 0.5 s"), std::string::npos)
      << stalled.error().message;
  EXPECT_NE(stalled.error().message.find("input 0"), std::string::npos);
  EXPECT_FALSE(trained->close().has_value());
  trained.reset();
  files.diverted = -1;
}

}  // namespace
}  // namespace artesian::zero3
