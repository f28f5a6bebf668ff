// Proves that a training that is saved and continues in another engine, in any other place, gives
// the bits of one that never stopped: losses, norms, loss scales and digest of a small GPT-2, over
// homes, budgets, rings, dtypes, accumulation and schedules on both sides of the save, with frozen
// parameters and groups. LibTorch's generators continue, too.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tests/support/separate_device.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/torch/adapted_module.h"
#include "zero3/torch/saved_facts.h"

namespace artesian::zero3 {
namespace {

class CheckpointEquality : public Equality {
 protected:
  CheckpointEquality() : Equality(tiny), threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~CheckpointEquality() override { at::set_num_threads(threads_); }

  std::string folder() const { return checkpoints_.path() + "/saved"; }
  Config budgeted(const Choice& run) const {
    Config config = config_of(run);
    if (separate_device) *config.artesian.device_memory += device_spare;
    return config;
  }
  EngineOptions options_of(const Choice& run, const Config& config) const {
    EngineOptions options;
    if (run[SwapFolders] == 2) options.path_disks = unlike_disks(config);
    options.groups = groups;
    if (!separate_device) return options;
    options.backend = separate;
    options.share_under_backward = 1.0;  // of updates that may be rolled back
    return options;
  }
  /// Runs `before` up to a step, saves, and continues as `after`.
  Outcome stop_and_go_on(const Choice& before, const Choice& after, std::size_t step,
                         const std::string& tag) {
    Outcome outcome;
    {
      separate_device = separate != nullptr && separate_before;
      const Config config = budgeted(before);
      const auto engine = make_engine(before, config, options_of(before, config));
      if (engine == nullptr) return outcome;
      RandomWeights weights(module_of(before).parameters(), 1);
      EXPECT_TRUE(engine->initialize(weights).has_value());
      run_steps(*engine, before, 0, step, outcome.steps);
      const auto saved = engine->save_checkpoint({.directory = folder(), .tag = tag});
      EXPECT_TRUE(saved.has_value()) << saved.error().to_string();
      if (!saved.has_value()) return outcome;
      EXPECT_EQ(saved->bytes_written, engine->checkpoints().data_bytes());
    }
    separate_device = separate != nullptr && !separate_before;
    const Config config = budgeted(after);
    const auto engine = make_engine(after, config, options_of(after, config));
    if (engine == nullptr) return outcome;
    const auto loaded = engine->load_checkpoint({.directory = folder(), .tag = tag});
    EXPECT_TRUE(loaded.has_value()) << loaded.error().to_string();
    if (!loaded.has_value()) return outcome;
    run_steps(*engine, after, step, scale.steps, outcome.steps);
    outcome.digest = digest_of(*engine, outcome.steps);
    return outcome;
  }

  /// Continues from a separate device on the CPU, and the reverse. Returns how often the device was
  /// asked for an update.
  std::uint64_t out_and_in(const Choice& on_device, const Choice& on_cpu, const Outcome& whole,
                           const std::string& tag) {
    using test_support::SeparateDevice;
    SeparateDevice device(SeparateDevice::Order::Late, 3);
    separate = &device;
    separate_before = true;
    expect_same(stop_and_go_on(on_device, on_cpu, 6, tag + "a"), whole);
    separate_before = false;
    expect_same(stop_and_go_on(on_cpu, on_device, 6, tag + "b"), whole);
    separate = nullptr;
    return device.update_calls;
  }

  std::vector<GroupOptions> groups;
  std::uint64_t device_spare = 0;  // bytes of a separate device beyond its budget
  test_support::SeparateDevice* separate = nullptr;
  bool separate_before = false;  // the device exists before the save, else after it

 private:
  const test_support::TemporaryDirectory checkpoints_;
  const int threads_;
};

/// Makes equal on both sides what decides bits.
Choice like(Choice run, const Choice& other) {
  for (const Factor same : {Dtype, Accumulation, Head}) run[same] = other[same];
  return run;
}

TEST_F(CheckpointEquality, ATrainingGoesOnToTheSameBitsInAnyPlace) {
  std::map<std::array<int, 3>, Outcome> references;
  constexpr std::uint64_t pairs = 30;
  for (std::uint64_t pair = 0; pair < pairs; ++pair) {
    Choice before = random_choice(31, pair);
    before[Dtype] = static_cast<int>(pair % static_cast<std::uint64_t>(levels[Dtype]));
    before[Accumulation] = static_cast<int>(pair % 3);
    const Choice after = like(random_choice(32, pair), before);
    SCOPED_TRACE(describe(before) + " then " + describe(after));
    const std::array<int, 3> group{before[Dtype], before[Accumulation], before[Head]};
    if (references.count(group) == 0) {
      Choice in_memory{0, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0, group[0], group[1], group[2]};
      in_memory[Masters] = 1;
      references[group] = train(in_memory);
    }
    const std::size_t step = 1 + pair % (scale.steps - 1);
    const Outcome outcome = stop_and_go_on(before, after, step, "pair" + std::to_string(pair));
    expect_same(outcome, references[group]);
    if (HasFatalFailure()) return;
    std::filesystem::remove_all(folder());
  }
}

TEST_F(CheckpointEquality, FrozenParametersAndGroupsGoOn) {
  std::vector<std::unique_ptr<Module>> plain = std::move(modules_);
  modules_.clear();
  for (const auto& module : plain) {
    modules_.push_back(std::make_unique<AdaptedModule>(*module, [](ParameterSpec& parameter) {
      parameter.group = parameter.shape.size() == 1 ? 1 : 0;
      parameter.trainable = parameter.name.find("h.0.") == std::string::npos;
    }));
  }
  groups = {{}, {.lr = 3e-3, .weight_decay = 0.0, .beta2 = 0.99}};
  for (int dtype = 0; dtype < levels[Dtype]; ++dtype) {
    Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, dtype, 1, dtype % 2};
    const Config config = config_of(run);
    const Outcome whole = train(run, config, options_of(run, config));
    Choice other{1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 0, dtype, 1, dtype % 2};
    other[Masters] = 1;
    const std::string tag = "dtype" + std::to_string(dtype);
    expect_same(stop_and_go_on(run, other, 5, tag + "a"), whole);
    expect_same(stop_and_go_on(other, run, 7, tag + "b"), whole);
  }
}

// On a device with memory of its own: loaded from its homes, and into them.
TEST_F(CheckpointEquality, ASeparateDeviceIsAPlaceAsAnyOther) {
  for (const int dtype : {0, 1, 2}) {
    const Choice on_cpu{1, 2, 2, 1, 1, 1, 1, 1, 1, 2, 0, dtype, 1, 1};
    const Outcome whole = train(on_cpu);
    for (const int home : {0, 1, 2}) {
      const Choice on_device{home, home, home == 2 ? 1 : 2, 0, 1, 1, 1, 1, 1, 1, 1, dtype, 1, 1};
      const std::string tag = std::to_string(dtype) + "-" + std::to_string(home);
      out_and_in(on_device, on_cpu, whole, tag);
    }
  }
}

// From NVMe into its spare memory, where it updates some units itself, and back.
TEST_F(CheckpointEquality, WhatASeparateDeviceUpdatesIsAPlaceAsAnyOther) {
  for (const int dtype : {0, 1, 4}) {
    const Choice on_cpu{2, 2, 0, 1, 1, 1, 1, 1, 1, 2, 0, dtype, 1, 1};
    Choice on_device{0, 2, 0, 0, 1, 2, 1, 0, 1, 1, 1, dtype, 1, 1};
    if (dtype == 4) on_device[ParamHome] = 2;
    const Outcome whole = train(on_cpu);
    for (const std::uint64_t spare : {300'000u, 4'000'000u}) {
      device_spare = spare;
      SCOPED_TRACE(describe(on_device) + ", spare " + std::to_string(spare));
      const std::string tag = std::to_string(dtype) + "-" + std::to_string(spare);
      EXPECT_GT(out_and_in(on_device, on_cpu, whole, tag), 0u);
    }
  }
}

TEST_F(CheckpointEquality, WhatTheGeneratorDrawsGoesOn) {
  const Choice run{};
  const Config config = config_of(run);
  at::manual_seed(7);
  static_cast<void>(at::rand({5}));
  const auto engine = make_engine(run, config);
  RandomWeights weights(module_of(run).parameters(), 1);
  ASSERT_TRUE(engine->initialize(weights).has_value());
  ASSERT_TRUE(
      engine->save_checkpoint({.directory = folder(), .client = {{"mine", "abc"}}}).has_value());
  const at::Tensor expected = at::rand({8});
  at::manual_seed(8);
  const auto loaded = engine->load_checkpoint({.directory = folder()});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  EXPECT_TRUE(at::equal(at::rand({8}), expected));
  EXPECT_EQ(loaded->client.at("mine"), "abc");
  EXPECT_EQ(loaded->manifest.machine.at("threads"), "1");

  at::manual_seed(9);  // weights alone begin another training, with the caller's draws
  const at::Tensor own = at::rand({8});
  at::manual_seed(9);
  const auto weights_alone =
      engine->load_checkpoint({.directory = folder(), .optimizer_states = false});
  ASSERT_TRUE(weights_alone.has_value()) << weights_alone.error().to_string();
  EXPECT_TRUE(at::equal(at::rand({8}), own));
}

TEST(BufferToSave, ComesBackAndIsRefusedWhereItsBytesAreNotItsValuesInOrder) {
  const at::Tensor buffer = at::rand({3, 4});
  const auto saved = buffer_to_save("mean", buffer);
  ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  const std::string bytes(reinterpret_cast<const char*>(saved->bytes.data()), saved->bytes.size());
  const auto back = tensor_of({saved->buffer, bytes});
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_TRUE(at::equal(*back, buffer));
  const auto turned = buffer_to_save("mean", buffer.t());
  ASSERT_FALSE(turned.has_value());
  EXPECT_NE(turned.error().message.find("buffer \"mean\": got "), std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3
