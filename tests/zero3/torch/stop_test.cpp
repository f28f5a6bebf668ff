// Proves that a step that is broken off in the middle leaves nothing behind. Wherever in forward or
// backward the caller's `stop` ends it, in any placement, the training that then repeats the step
// has the bits of one that was never disturbed, and a save has the step before.
#include <ATen/Parallel.h>

#include "tests/support/separate_device.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

class Stop : public Equality {
 protected:
  Stop() : Equality(tiny), threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~Stop() override { at::set_num_threads(threads_); }

  EngineOptions options_of(const Choice& run, const Config& config) {
    EngineOptions options;
    if (run[SwapFolders] == 2) options.path_disks = unlike_disks(config);
    options.backend = separate;
    options.share_under_backward = 0.5;  // from the start, so that steps ask equally often
    options.stop = [this] { return ++asked_ == stop_at_; };
    return options;
  }
  /// Breaks each step off once, at an instant that the step before suggests, and then runs it as a
  /// whole.
  Outcome train_with_stops(const Choice& run, std::uint64_t seed) {
    Outcome outcome;
    const Config config = config_of(run);
    const auto engine = make_engine(run, config, options_of(run, config));
    if (engine == nullptr) return outcome;
    RandomWeights weights(module_of(run).parameters(), 1);
    EXPECT_TRUE(engine->initialize(weights).has_value());
    std::uint64_t asks = 4;  // per step; for the first, fewer than it makes
    for (std::size_t step = 0; step < scale.steps; ++step) {
      break_off(*engine, run, 1 + random_word(71, seed, step) % asks);
      const auto done = engine->take_completed();
      if (done.has_value()) outcome.steps[static_cast<std::size_t>(done->step) - 1] = *done;
      asked_ = 0;
      run_steps(*engine, run, step, step + 1, outcome.steps);
      if (outcome.steps.size() != step + 1) return outcome;
      // The first step's micro-batches run one by one, later ones' in groups.
      asks = step == 0 ? asked_ / config.accumulation_steps : std::min(asks, asked_);
    }
    outcome.digest = digest_of(*engine, outcome.steps);
    return outcome;
  }
  static Result<void> pass(Engine& engine, const std::vector<Batch>& batches, bool one_by_one) {
    if (!one_by_one) {
      ARTESIAN_TRY(losses, engine.forward_backward(batches));
      EXPECT_EQ(losses.size(), batches.size());
      return {};
    }
    for (const Batch& batch : batches) {
      ARTESIAN_TRY(loss, engine.forward(batch));
      EXPECT_TRUE(std::isfinite(loss));
      ARTESIAN_TRY_VOID(engine.backward());
    }
    return {};
  }
  void break_off(Engine& engine, const Choice& run, std::uint64_t at) {
    asked_ = 0;
    stop_at_ = at;
    std::vector<TokenBatch> batches;
    std::vector<Batch> views;
    for (std::uint64_t micro = 0; micro < engine.config().accumulation_steps; ++micro) {
      TokenBatch& batch = batches.emplace_back(scale.samples, scale.length);
      for (auto& id : batch.ids()) id = 5;
      for (auto& target : batch.targets()) target = 7;
      views.push_back(batch.batch());
    }
    const Result<void> ended = pass(engine, views, run[Schedule] == 0);
    stop_at_ = 0;
    ASSERT_FALSE(ended.has_value());
    ASSERT_EQ(ended.error().code, ErrorCode::Cancelled) << ended.error().to_string();
    const auto early = engine.step();
    ASSERT_EQ(early.error().code, ErrorCode::Invalid);
    EXPECT_NE(early.error().message.find("abandon_step() first"), std::string::npos);
    const auto abandoned = engine.abandon_step();
    ASSERT_TRUE(abandoned.has_value()) << abandoned.error().to_string();
    ++stops_;
    if (asked_ > module_of(run).stages().size()) ++in_backward_;
  }

  test_support::SeparateDevice* separate = nullptr;
  std::uint64_t asked_ = 0;
  std::uint64_t stop_at_ = 0;  // 0: never
  std::uint64_t stops_ = 0;
  std::uint64_t in_backward_ = 0;

 private:
  const int threads_;
};

TEST_F(Stop, AStepThatWasBrokenOffAnywhereRunsAgainToTheSameBits) {
  for (std::uint64_t number = 0; number < 40; ++number) {
    Choice run = random_choice(70, number);
    run[Dtype] = static_cast<int>(number % 5);
    SCOPED_TRACE("run " + std::to_string(number));
    const Outcome reference = train(run);
    expect_same(train_with_stops(run, number), reference);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(stops_, 40 * scale.steps);
  EXPECT_GT(in_backward_, stops_ / 4);
}

TEST_F(Stop, SoItDoesBesideADeviceWithMemoryOfItsOwn) {
  for (std::uint64_t number = 0; number < 10; ++number) {
    const Choice run = random_choice(72, number);
    SCOPED_TRACE("run " + std::to_string(number));
    separate_device = false;
    separate = nullptr;
    const Outcome reference = train(run);
    test_support::SeparateDevice device(test_support::SeparateDevice::Order::Random, number);
    device.micro_batches_at_once = micro_batches_at_once(run);
    separate_device = true;
    separate = &device;
    expect_same(train_with_stops(run, number), reference);
    EXPECT_EQ(device.races, 0u);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace artesian::zero3
