// Proves that a run moves what is predicted. Small models train at many placements, budgets,
// limits, dtypes and numbers of micro-batches, and from the third step on the engine's counts of
// bytes are those of plan_step, to the byte; on a device with memory of its own also those of the
// link. The batches look rows up evenly, so that every sub-group of a table is touched.
#include "zero3/plan/units_under_backward.h"

#include <ATen/Parallel.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/random.h"
#include "tests/support/separate_device.h"
#include "tests/zero3/budgets.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/plan/rehearsal.h"
#include "zero3/torch/adapted_module.h"

namespace {

std::atomic<unsigned> microseconds_of_a_read{0};  // beside its own

}  // namespace

// In place of the C library's, for EngineChoice::Threads.
extern "C" ssize_t pread(int descriptor, void* target, std::size_t bytes, off_t offset) {
  if (microseconds_of_a_read != 0) ::usleep(microseconds_of_a_read);
  return ::syscall(SYS_pread64, descriptor, target, bytes, offset);
}

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;
using tiering::DeviceFence;

constexpr Scale scale_of_plans{
    .vocab = 200, .hidden = 32, .samples = 2, .length = 16, .steps = 5, .some = 6'000};

class StepPlanTest : public Equality {
 protected:
  StepPlanTest() : Equality(scale_of_plans) { at::set_num_threads(1); }

  Result<StepPlan> plan(const Engine& engine, const Module& module) const {
    return plan_step({.placement = &engine.placement(),
                      .stages = &module.stages(),
                      .limits = PrefetchLimits::of(engine.config().zero),
                      .micro_batches = engine.config().accumulation_steps,
                      .group = together ? at_once(engine) : 1,
                      .tokens = scale.samples * scale.length,
                      .lookup_width = scale.hidden,
                      .under_backward = engine.units_under_backward(),
                      .speculative = waits_for_norm(engine.config())});
  }

  static std::uint64_t at_once(const Engine& engine) {
    const KeptInputs& inputs = engine.placement().inputs;
    return inputs.some() ? inputs.at_once : engine.config().accumulation_steps;
  }

  /// Tokens evenly over the vocabulary; no row twice in a step of up to six micro-batches.
  void fill(TokenBatch& batch, std::uint64_t micro_batch) const {
    std::uint64_t token = 0;
    const std::uint64_t tokens = scale.samples * scale.length;
    for (auto& id : batch.ids()) {
      const std::uint64_t row = token++ * scale.vocab / tokens + micro_batch;
      id = static_cast<std::int64_t>(row % scale.vocab);
    }
    for (auto& id : batch.targets()) id = static_cast<std::int64_t>(token++ % scale.vocab);
  }

  Result<StepResult> one_step(Engine& engine) const {
    const std::uint64_t count = engine.config().accumulation_steps;
    std::vector<TokenBatch> tokens;
    std::vector<Batch> batches;
    for (std::uint64_t micro = 0; micro < count; ++micro) {
      fill(tokens.emplace_back(scale.samples, scale.length), micro);
    }
    for (const TokenBatch& each : tokens) batches.push_back(each.batch());
    if (together) {
      ARTESIAN_TRY(losses, engine.forward_backward(batches));
      static_cast<void>(losses);
      return engine.step();
    }
    for (const Batch& batch : batches) {
      ARTESIAN_TRY(loss, engine.forward(batch));
      static_cast<void>(loss);
      ARTESIAN_TRY_VOID(engine.backward());
    }
    return engine.step();
  }

  /// Expects the run to agree with its plan, and returns the plan's bytes.
  MovedByKind expect_as_planned(const Choice& run, const Config& config, SeparateDevice* device) {
    SCOPED_TRACE(describe(run));
    Module& module = module_of(run);
    auto engine = Engine::create(module, config,
                                 {.backend = device,
                                  .split_master = run[Masters] == 0,
                                  .spare_device = spare_device,
                                  .share_under_backward = share_under_backward,
                                  .input_elements = input_elements(module)});
    EXPECT_TRUE(engine.has_value()) << engine.error().to_string();
    if (!engine.has_value()) return {};
    const std::vector<bool>& units = (*engine)->units_under_backward();
    under_backward += std::count(units.begin(), units.end(), true);
    RandomWeights weights(module.parameters(), 1);
    EXPECT_TRUE((*engine)->initialize(weights).has_value());
    const auto planned = plan(**engine, module);
    EXPECT_TRUE(planned.has_value()) << planned.error().to_string();
    if (!planned.has_value()) return {};
    const Moved expected = planned->moved.total();
    const double timely = device != nullptr ? depends_on_time(*planned) : 0.0;
    // The first step records. If its first micro-batch ran alone, to be measured, the second step
    // cuts the trace, and the third still finds leftovers of that.
    const std::size_t first_steady = together ? 4 : 3;
    for (std::size_t step = 0; step < first_steady + 3; ++step) {
      if (before_step) before_step(step);
      const auto next = one_step(**engine);
      EXPECT_TRUE(next.has_value()) << next.error().to_string();
      if (!next.has_value() || next->overflow) break;
      const auto result = (*engine)->take_completed();  // the one before, updated under this one
      EXPECT_EQ(result.has_value(), step != 0);
      if (step < first_steady) continue;
      EXPECT_EQ(result->step, step);
      const auto read = static_cast<double>(result->bytes_nvme_read);
      EXPECT_NEAR(read, static_cast<double>(expected.nvme_read), timely) << "step " << step;
      EXPECT_EQ(result->bytes_nvme_write, expected.nvme_write) << "step " << step;
      EXPECT_EQ(result->bytes_d2h, expected.to_host) << "step " << step;
      EXPECT_EQ(result->fetch_demand, planned->fetched.demand) << "step " << step;
      EXPECT_EQ(result->fetch_prefetched, planned->fetched.prefetched) << "step " << step;
      EXPECT_EQ(result->fetch_reused, planned->fetched.reused) << "step " << step;
      const auto got = static_cast<double>(result->bytes_h2d);
      EXPECT_NEAR(got, static_cast<double>(expected.to_device), timely) << "step " << step;
      ++compared;
    }
    EXPECT_TRUE((*engine)->close().has_value());
    if (!testing::Test::HasFailure()) expect_frozen_are_only_read((*engine)->placement(), *planned);
    return planned->moved;
  }

  /// Expects that the plan only fetches frozen units. Each fetch of one on NVMe reads 2 bytes an
  /// element, in fp32 4.
  void expect_frozen_are_only_read(const Placement& placement, const StepPlan& plan) {
    for (const StepEvent& event : plan.events) {
      const bool of_stages =
          event.kind == StepEvent::Kind::Compute || event.kind == StepEvent::Kind::Input;
      if (of_stages || placement.layout.units[event.unit].trainable) continue;
      const bool fetch = event.kind == StepEvent::Kind::Fetch;
      ASSERT_TRUE(fetch || event.kind == StepEvent::Kind::Await);
      const bool nvme = placement.units[event.unit].param == Tier::Nvme;
      const std::uint64_t bytes =
          placement.layout.units[event.unit].image * dtype_size(placement.param_dtype);
      EXPECT_EQ(event.moved.total().nvme_read, fetch && nvme ? bytes : 0);
      EXPECT_EQ(event.moved.total().nvme_write, 0u);
      frozen_reads += fetch && nvme ? 1 : 0;
    }
  }

  /// Returns the bytes that are counted in this step or in a neighbour, depending on time. A
  /// separate device copies parameters as soon as they have been read. Copies made while the
  /// previous step is updated, under this forward, count in the previous step; copies ahead for the
  /// next step may be made in the next step. A slot that is evicted under backward before its unit
  /// is updated gets no copy of the update.
  static double depends_on_time(const StepPlan& plan) {
    double bytes = 0.0;
    std::map<std::uint32_t, double> on_their_way;
    const auto count = [&] {
      for (auto& [unit, copied] : on_their_way) bytes += std::exchange(copied, 0.0);
    };
    for (const StepEvent& event : plan.events) {
      const auto copied = static_cast<double>(event.moved.param.to_device);
      if (event.kind == StepEvent::Kind::Fetch) on_their_way[event.unit] += copied;
      if (event.kind == StepEvent::Kind::Await) on_their_way.erase(event.unit);
      if (event.under_backward) bytes += copied;
      if (event.kind == StepEvent::Kind::Update && !event.under_backward) count();
    }
    count();
    return bytes;
  }

  /// Without a search for a loss scale: every step updates.
  static Config steady(Config config) {
    config.loss_scale.loss_scale = 8.0;
    return config;
  }

  int compared = 0;
  int frozen_reads = 0;   // planned, of frozen units on NVMe
  bool together = false;  // all micro-batches of a step, layer by layer
  bool spare_device = true;
  double share_under_backward = 0.0;
  std::ptrdiff_t under_backward = 0;  // units that were allowed to be updated there
  std::function<void(std::size_t step)> before_step;
};

TEST_F(StepPlanTest, BytesAreThoseOfTheEngine) {
  MovedByKind all;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Choice run = random_choice(71, seed);
    all += expect_as_planned(run, steady(config_of(run)), nullptr);
  }
  EXPECT_EQ(compared, 60 * 3);
  for (const Moved* kind : {&all.param, &all.grad, &all.optimizer, &all.input}) {
    EXPECT_GT(kind->nvme_read, 0u);
    EXPECT_GT(kind->nvme_write, 0u);
  }
}

TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWithUpdatesUnderBackward) {
  track_activations();
  for (std::uint64_t seed = 300; seed < 340; ++seed) {
    Choice run = random_choice(71, seed);
    run[Dtype] = seed % 2 == 0 ? 1 : 3;
    together = seed % 3 == 0;
    if (together) run[Accumulation] = 1 + static_cast<int>(seed % 2);
    share_under_backward = seed % 4 == 0 ? 0.5 : 1.0;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    const bool separate = seed % 5 == 0 && !together;
    separate_device = separate;
    Config config = config_of(run);
    config.gradient_clipping = 0.0;
    config.check_grad_overflow = false;
    if (together) config.artesian.activation_memory = everything;
    expect_as_planned(run, config, separate ? &device : nullptr);
  }
  EXPECT_EQ(compared, 40 * 3);
  EXPECT_GT(under_backward, 30);
}

TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWithUpdatesThatMayBeTakenBack) {
  for (std::uint64_t seed = 340; seed < 380; ++seed) {
    Choice run = random_choice(71, seed);
    run[OptimizerHome] = 2;
    share_under_backward = seed % 4 == 0 ? 0.5 : 1.0;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    separate_device = seed % 5 == 0;
    Config config = steady(config_of(run));
    config.gradient_clipping = 1e6;  // which no norm reaches
    expect_as_planned(run, config, separate_device ? &device : nullptr);
  }
  EXPECT_EQ(compared, 40 * 3);
  EXPECT_GT(under_backward, 30);
}

// By what each keeps for an element: one moment or two, beside whole, split or no master weights.
TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWithEveryOptimizer) {
  constexpr std::array types{OptimizerType::Sgd,  OptimizerType::Adagrad, OptimizerType::RmsProp,
                             OptimizerType::Lion, OptimizerType::Lamb,    OptimizerType::Muon};
  for (std::uint64_t seed = 600; seed < 624; ++seed) {
    Choice run = random_choice(71, seed);
    run[OptimizerHome] = 2;
    share_under_backward = seed % 3 == 0 ? 1.0 : 0.0;
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    const OptimizerType type = types[seed % types.size()];
    separate_device = seed % 4 == 0 || (type == OptimizerType::Muon && seed % 12 == 5);
    Config config = steady(config_of(run));
    config.optimizer.type = type;
    if (type == OptimizerType::Muon) *config.artesian.host_memory += 400'000;  // the largest matrix
    config.optimizer.beta1 = seed % 8 < 4 ? 0.9 : 0.0;
    config.gradient_clipping = 1e6;
    if (seed % 3 == 0 && config.param_dtype != DType::Float16) {
      config.artesian.moments = DType::BFloat16;
    }
    expect_as_planned(run, config, separate_device ? &device : nullptr);
  }
  EXPECT_EQ(compared, 24 * 3);
}

// Of the first micro-batches of a step that run layer by layer only the sum is sent to the host; so
// one group of four sends a fourth of the bytes.
TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWhereASeparateDeviceSumsGradients) {
  track_activations();
  together = separate_device = true;
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    Choice run = random_choice(71, seed);
    run[Accumulation] = 1 + static_cast<int>(seed % 2);
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    device.micro_batches_at_once = std::size_t{1} << run[Accumulation];
    Config config = steady(config_of(run));
    config.artesian.activation_memory = everything;
    expect_as_planned(run, config, &device);
  }
  EXPECT_EQ(compared, 20 * 3);
}

// Random parameters are frozen, in some runs everything below a stage: then backward ends above it.
TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWithFrozenParameters) {
  std::vector<std::unique_ptr<Module>> plain;
  plain.swap(modules_);
  for (std::uint64_t seed = 400; seed < 440; ++seed) {
    modules_.clear();
    for (const auto& module : plain) {
      std::uint64_t draw = 0;
      modules_.push_back(std::make_unique<AdaptedModule>(*module, [&](ParameterSpec& parameter) {
        const bool high = parameter.name.find("h.1.") != std::string::npos;
        const bool by_chance = random_word(72, seed, draw++) % 2 == 0;
        parameter.trainable = seed % 3 == 0 ? high : by_chance || parameter.name == "ln_f.weight";
      }));
    }
    const Choice run = random_choice(71, seed);
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    separate_device = seed % 5 == 0;
    share_under_backward = seed % 2 == 0 ? 1.0 : 0.0;
    Config config = steady(config_of(run));
    if (seed % 4 == 0) config.gradient_clipping = 1e6;
    expect_as_planned(run, config, separate_device ? &device : nullptr);
  }
  EXPECT_EQ(compared, 40 * 3);
  EXPECT_GT(frozen_reads, 40);
}

// With the least memory forward reads a block's two bytes a parameter, and so does backward.
TEST_F(StepPlanTest, AFrozenBlockMovesTwoBytesAParameterAndPassAndIsNeverWritten) {
  const std::unique_ptr<Module> plain = std::move(modules_[1]);
  modules_[1] = std::make_unique<AdaptedModule>(*plain, [](ParameterSpec& parameter) {
    parameter.trainable = parameter.name.find("h.0.") == std::string::npos;
  });
  Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1};  // bf16, one micro-batch
  spare_device = false;
  const MovedByKind moved = expect_as_planned(run, steady(config_of(run)), nullptr);
  EXPECT_EQ(compared, 3);
  EXPECT_EQ(frozen_reads, 2);
  std::uint64_t trained = 0;
  for (const Unit& unit :
       make_layout(modules_[1]->parameters(), modules_[1]->stages(), {}, 1).units) {
    trained += unit.trainable ? unit.image : 0;
  }
  EXPECT_EQ(moved.param.nvme_write, 2 * trained);
  EXPECT_LE(moved.optimizer.nvme_write, 10 * trained);  // some of it fits into what rounding leaves
  EXPECT_GT(moved.optimizer.nvme_write, 8 * trained);
}

TEST_F(StepPlanTest, BytesAreThoseOfTheEngineWhereAStagesUnitsLieInEachOthersWay) {
  // Under forward the disk has time for updates of units that are only fetched ahead. The head's
  // norm is one, and then is in the way of its matrix: if it had been updated before, it would be
  // read again.
  constexpr const char* llama =
      R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
          "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
          "vocab_size": 1000, "max_position_embeddings": 64, "tie_word_embeddings": false})";
  modules_[1] = models::make_module(models::parse_model_config(llama, "config.json").value());
  const Choice run{2, 2, 0, 0, 2, 1, 2, 0, 0, 2, 1, 1, 0, 1};
  Config config = steady(config_of(run));
  config.artesian.host_memory = 400 << 10;
  config.zero.max_live_parameters = 40'000;
  const std::uint64_t least = *config.artesian.device_memory;
  for (std::uint64_t more = 0; more <= 12 << 10; more += 4096) {
    config.artesian.device_memory = least + more;
    expect_as_planned(run, config, nullptr);
  }
  EXPECT_EQ(compared, 4 * 3);
}

TEST_F(StepPlanTest, AllUnderBackwardIsTheClosedFormOfSixteen) {
  // As above, with whole master weights: what is updated under backward is read for the next
  // forward, 16 and 14 bytes in all. But the look-up table is updated under forward, and backward
  // does not read it.
  Choice run{2, 2, 2, 0, 0, 0, 0, 0, 2, 1, 1, 1, 0, 1};
  run[Masters] = 1;
  spare_device = false;
  share_under_backward = 1.0;
  Config config = config_of(run);
  config.gradient_clipping = 0.0;
  config.check_grad_overflow = false;
  const MovedByKind moved = expect_as_planned(run, config, nullptr);
  const Layout layout = make_layout(module_of(run).parameters(), module_of(run).stages(), {}, 1);
  std::uint64_t elements = 0;
  for (const Unit& unit : layout.units) elements += unit.image;
  const std::uint64_t table = layout.units[layout.stages.front().front()].image;
  EXPECT_EQ(under_backward, std::ssize(layout.units) - 1);
  EXPECT_EQ(moved.param.nvme_write, 2 * elements);
  EXPECT_EQ(moved.param.nvme_read, 4 * (elements - table));
}

TEST_F(StepPlanTest, EverythingOnNvmeIsTheClosedForm) {
  // An untied model without retention: 4M read and 2 written per element of an image, except the
  // look-up table's, which backward does not need, and except the first forward, which takes what
  // the update makes; 12 each of the optimizer's state.
  spare_device = false;
  for (const int accumulation : {0, 1, 2}) {
    const Choice run{2, 2, 2, 0, 0, 0, 0, 0, 2, 1, 1, 2, accumulation, 1};
    const Config config = steady(config_of(run));
    const MovedByKind moved = expect_as_planned(run, config, nullptr);
    const Module& module = module_of(run);
    const Layout layout = make_layout(module.parameters(), module.stages(), {}, 1);
    std::uint64_t elements = 0;
    for (const Unit& unit : layout.units) elements += unit.image;
    const std::uint64_t table = layout.units[layout.stages.front().front()].image;
    EXPECT_EQ(moved.param.nvme_write, 2 * elements);
    EXPECT_EQ(moved.param.nvme_read,
              2 * config.accumulation_steps * (2 * elements - table) - 2 * elements);
    EXPECT_EQ(moved.grad, (Moved{.to_host = moved.grad.to_host}));
    // Except the state that spare host memory holds.
    EXPECT_EQ(moved.optimizer.nvme_write, moved.optimizer.nvme_read);
    EXPECT_LE(moved.optimizer.nvme_write, 12 * elements);
  }
}

TEST_F(StepPlanTest, SplitMasterWeightsMakeTheClosedFormOf12Written) {
  // As above, in bf16: with nothing of the state in host memory 10 + 4M are read, of which the
  // optimizer reads 10 and the old parameters 2, and 12 are written; 14 with whole master weights.
  spare_device = false;
  for (const int masters : {0, 1}) {
    for (const int accumulation : {0, 1, 2}) {
      Choice run{2, 2, 2, 0, 0, 0, 0, 0, 2, 1, 1, 1, accumulation, 1};
      run[Masters] = masters;
      Config config = steady(config_of(run));
      const Module& module = module_of(run);
      config.artesian.host_memory = host_budget_for_gradients(module, config, masters == 0);
      const MovedByKind moved = expect_as_planned(run, config, nullptr);
      EXPECT_GT(moved.optimizer.nvme_write, 0u);
      Placement placement = make_placement({.parameters = &module.parameters(),
                                            .stages = &module.stages(),
                                            .config = &config,
                                            .compute_dtype = DType::Float32,
                                            .device_bytes = *config.artesian.device_memory,
                                            .host_bytes = *config.artesian.host_memory,
                                            .split_master = masters == 0,
                                            .spare_device = false})
                                .value();
      std::uint64_t elements = 0;
      for (std::uint32_t unit = 0; unit < placement.units.size(); ++unit) {
        EXPECT_EQ(placement.units[unit].param, tiering::Tier::Nvme);
        EXPECT_EQ(placement.units[unit].grad, tiering::Tier::Host);
        placement.units[unit].optimizer_homes.clear();  // the little that it has
        elements += placement.layout.units[unit].image;
      }
      const Layout& layout = placement.layout;
      const std::uint64_t table = layout.units[layout.stages.front().front()].image;
      const std::uint64_t micro_batches = config.accumulation_steps;
      const auto planned = plan_step({.placement = &placement,
                                      .stages = &module.stages(),
                                      .limits = PrefetchLimits::of(config.zero),
                                      .micro_batches = micro_batches,
                                      .tokens = scale.samples * scale.length,
                                      .lookup_width = scale.hidden});
      ASSERT_TRUE(planned.has_value());
      const Moved total = planned->moved.total();
      EXPECT_EQ(total.nvme_read, (10 + 4 * micro_batches) * elements - 2 * micro_batches * table);
      EXPECT_EQ(total.nvme_write, (masters == 0 ? 12 : 14) * elements);
    }
  }
}

TEST_F(StepPlanTest, GradientsThatSpillAreWrittenOnceForAllMicroBatches) {
  // Both budgets are the least that fits: all of them spill. However many micro-batches run at
  // once, 2 bytes an element are written, and 2 read, by the update: the norm was summed before.
  track_activations();
  together = true;
  for (const std::uint32_t micro_batches : {1u, 4u, 8u}) {
    const Choice run{2, 2, 0, 0, 0, 0, 0, 0, 2, 1, 1, 2, 0, 1, 2};
    Config config = steady(config_of(run));
    config.accumulation_steps = micro_batches;
    const MovedByKind moved = expect_as_planned(run, config, nullptr);
    const Module& module = module_of(run);
    std::uint64_t elements = 0;
    for (const Unit& unit : make_layout(module.parameters(), module.stages(), {}, 1).units) {
      elements += unit.image;
    }
    EXPECT_EQ(moved.grad.nvme_write, 2 * elements) << micro_batches;
    EXPECT_EQ(moved.grad.nvme_read, 2 * elements) << micro_batches;
  }
}

TEST_F(StepPlanTest, SplitMasterWeightsOfParametersInMemoryMakeItTenAndTen) {
  for (const int param_home : {0, 1}) {
    Choice run{param_home, 2, 3, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1};
    const MovedByKind moved = expect_as_planned(run, steady(config_of(run)), nullptr);
    EXPECT_EQ(moved.param.nvme_read + moved.param.nvme_write, 0u);
    run[Masters] = 1;
    const MovedByKind whole = expect_as_planned(run, steady(config_of(run)), nullptr);
    EXPECT_GT(moved.optimizer.nvme_write, 0u);
    EXPECT_EQ(moved.optimizer.nvme_read, moved.optimizer.nvme_write);
    EXPECT_LT(moved.optimizer.nvme_write, whole.optimizer.nvme_write);
  }
}

TEST_F(StepPlanTest, ParametersThatStayOnTheDeviceMoveNoByteOfNvme) {
  // An untied model in fp32 and in bf16, natively; device memory from the least to enough for all.
  for (const int dtype : {0, 3}) {
    std::set<std::uint64_t> written;
    const Choice run{2, 2, 0, 0, 1, 2, 2, 0, 2, 1, 1, dtype, 0, 1};
    const Config least = steady(config_of(run));
    for (const std::uint64_t more : {0, 32, 64, 128, 256}) {
      Config config = least;
      *config.artesian.device_memory += more << 10;
      const MovedByKind moved = expect_as_planned(run, config, nullptr);
      EXPECT_EQ(moved.param.nvme_read == 0, moved.param.nvme_write == 0);
      written.insert(moved.param.nvme_write);
    }
    EXPECT_GT(written.size(), 2u);
    EXPECT_EQ(*written.begin(), 0u);
  }
}

TEST_F(StepPlanTest, BytesAreThoseOfTheEngineLayerByLayer) {
  track_activations();
  together = true;
  MovedByKind all;
  for (std::uint64_t seed = 200; seed < 240; ++seed) {
    Choice run = random_choice(71, seed);
    run[Accumulation] = 1 + static_cast<int>(seed % 2);
    if (seed % 3 == 0) run[Schedule] = 4;
    Config config = steady(config_of(run));
    config.artesian.activation_memory = everything;
    all += expect_as_planned(run, config, nullptr);
  }
  EXPECT_EQ(compared, 40 * 3);
  EXPECT_GT(all.grad.nvme_read, 0u);
  EXPECT_GT(all.param.nvme_read, 0u);
  EXPECT_GT(all.input.nvme_read, 0u);
}

TEST_F(StepPlanTest, BytesOfTheLinkAreThoseOfASeparateDevice) {
  MovedByKind all;
  for (std::uint64_t seed = 100; seed < 140; ++seed) {
    Choice run = random_choice(71, seed);
    SeparateDevice device(SeparateDevice::Order::Late, seed);
    separate_device = true;
    const Config config = steady(config_of(run));
    separate_device = false;
    all += expect_as_planned(run, config, &device);
  }
  EXPECT_GT(all.optimizer.to_host, 0u);
  EXPECT_GT(all.param.to_device, 0u);
  EXPECT_GT(all.input.to_device, 0u);
}

/// While it is slow, the host's waits for it take 3 ms, in which reads end.
class SlowDevice final : public SeparateDevice {
 public:
  using SeparateDevice::SeparateDevice;
  bool slow = false;
  Result<void> finish(DeviceFence fence) noexcept override {
    if (slow) ::usleep(3'000);
    return SeparateDevice::finish(fence);
  }
};

// The table is fetched for the head while the blocks of the previous step are updated. In every
// second step it is read before their update has ended.
TEST_F(StepPlanTest, CopiesThatEndUnderAnUpdateCountInTheStepOfTheUpdate) {
  const Choice run{2, 1, 3, 1, 1, 2, 1, 0, 2, 1, 1, 4, 2, 0, 2, 0, 1, 0};
  SlowDevice device(SeparateDevice::Order::Late, 1);
  separate_device = true;
  const Config config = steady(config_of(run));
  separate_device = false;
  before_step = [&](std::size_t step) {
    device.slow = step % 2 == 0;
    microseconds_of_a_read = device.slow ? 1'000 : 5'000;
  };
  expect_as_planned(run, config, &device);
  microseconds_of_a_read = 0;
  EXPECT_EQ(compared, 3);
}

}  // namespace
}  // namespace artesian::zero3
