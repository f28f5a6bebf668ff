// Proves what the planner adds to placement, bytes and time, which have tests of their own. Memory
// by kind adds up to the placement's total. A step of many micro-batches is extrapolated exactly.
// The changes that it offers and the strategies that it finds are cases that evaluate to its
// figures. What cannot fit, in memory or on the disk, is an error. Its picture and its JSON object
// are consistent.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "tests/tools/plan/planner_fixture.h"
#include "tools/plan/report.h"
#include "zero3/plan/make_placement.h"

namespace artesian::tools {
namespace {

TEST_F(Planner, AStepOfManyMicroBatchesIsCarriedOn) {
  PlanCase few = on_nvme();
  few.config.accumulation_steps = 8;
  PlanCase more = few;
  more.config.accumulation_steps = 12;
  PlanCase many = few;
  many.config.accumulation_steps = 1000;
  const PlanFigures a = figures_of(few);
  const PlanFigures b = figures_of(more);
  const PlanFigures c = figures_of(many);
  const auto each = [](std::uint64_t one, std::uint64_t other) { return (other - one) / 4; };
  const auto carried = [&](auto of) { return of(b) + 988 * each(of(a), of(b)); };
  const auto read = [](const PlanFigures& of) { return of.moved.total().nvme_read; };
  const auto to_device = [](const PlanFigures& of) { return of.moved.total().to_device; };
  EXPECT_GT(each(read(a), read(b)), 0u);
  EXPECT_EQ(read(c), carried(read));
  EXPECT_EQ(to_device(c), carried(to_device));
  EXPECT_EQ(c.moved.total().nvme_write, a.moved.total().nvme_write);
  const double further = (b.time.seconds - a.time.seconds) / 4;
  EXPECT_NEAR(c.time.seconds, b.time.seconds + 988 * further, c.time.seconds * 1e-3);
  EXPECT_EQ(c.tokens, 1000u * 2 * 64);
}

TEST_F(Planner, EachRowOfATableCrossesTheBus) {
  PlanCase tried = plan(Offload::None, Offload::None);
  tried.gpu = true;
  tried.ranks = 8;
  tried.config.zero.stage = 2;
  const auto bus = [&](std::uint64_t micro_batches) {
    tried.config.accumulation_steps = micro_batches;
    return figures_of(tried).moved.grad.bus;
  };
  const auto width = static_cast<std::uint64_t>(model.hidden);
  const auto rows = [&](std::uint64_t micro_batches) {  // with their ids
    return micro_batches * 2 * 64 * (8 + width * 4) / 8 * 7;
  };
  const std::uint64_t others = bus(1) - rows(1);
  for (const std::uint64_t micro_batches : {8u, 17u, 100u, 1000u}) {
    EXPECT_EQ(bus(micro_batches), micro_batches * others + rows(micro_batches)) << micro_batches;
  }
}

TEST_F(Planner, WithoutClippingBackwardTakesAPartOfTheUpdate) {
  PlanCase clipped = on_nvme();
  clipped.config.accumulation_steps = 1;
  clipped.config.check_grad_overflow = clipped.config.artesian.speculative_update = false;
  clipped.rates.disk_read = 4e8;  // forward alone is too short for the update
  clipped.rates.disk_write = 2e8;
  clipped.compute = {1e-3, 2e-3, 2e-3, 4e-3};
  PlanCase free = clipped;
  free.config.gradient_clipping = 0.0;
  const PlanFigures before = figures_of(clipped);
  const PlanFigures after = figures_of(free);
  EXPECT_LT(after.time.seconds, before.time.seconds);
  EXPECT_GT(after.moved.param.nvme_read, before.moved.param.nvme_read);  // for the next forward
  const auto state = static_cast<double>(before.moved.optimizer.nvme_write);  // except last groups
  EXPECT_NEAR(static_cast<double>(after.moved.optimizer.nvme_write), state, 0.01 * state);
  free.config.check_grad_overflow = true;
  EXPECT_EQ(figures_of(free).time.seconds, before.time.seconds);
  EXPECT_EQ(before.nvme.buffers, 0u);
  clipped.config.artesian.speculative_update = true;
  const PlanFigures tried = figures_of(clipped);
  EXPECT_LT(tried.time.seconds, before.time.seconds);
  EXPECT_GT(tried.nvme.buffers,
            0u);  // shadows: of two moments and the master weights' lower halves
  const std::uint64_t saved = tried.nvme.buffers / 12 * 2;  // what parameters were
  EXPECT_NEAR(static_cast<double>(tried.moved.optimizer.nvme_write - saved), state, 0.01 * state);
}

TEST_F(Planner, MemoryByKindIsWhatThePlacementTakes) {
  for (const Offload param : {Offload::None, Offload::Cpu, Offload::Nvme}) {
    for (const bool gpu : {false, true}) {
      PlanCase tried = plan(param, Offload::Cpu);
      tried.gpu = gpu;
      tried.compute_dtype = gpu ? DType::BFloat16 : DType::Float32;
      const PlanFigures figures = figures_of(tried);
      const auto placement =
          zero3::make_placement({.parameters = &parameters,
                                 .stages = &stages,
                                 .config = &tried.config,
                                 .compute_dtype = gpu ? DType::BFloat16 : DType::Float32,
                                 .separate_device = gpu,
                                 .device_bytes = *tried.device_bytes,
                                 .host_bytes = tried.host_bytes});
      ASSERT_TRUE(placement.has_value());
      EXPECT_EQ(figures.device.used(),
                placement->device_pool_bytes + placement->device_gradient_bytes);
      EXPECT_EQ(figures.host.used(), placement->host_pool_bytes);
      EXPECT_EQ(figures.nvme.used(), placement->nvme_param_bytes + placement->nvme_optimizer_bytes);
      // The upper halves of master weights are not kept twice if parameters are close enough.
      const bool near = param == Offload::Cpu || !gpu;
      EXPECT_EQ(figures.elements * (near ? 10 : 12) / mib, (figures.host.optimizer - 1) / mib);
    }
  }
}

TEST_F(Planner, ChangesAreCasesOfTheirOwn) {
  const PlanCase now = on_nvme();
  const PlanFigures figures = figures_of(now);
  const auto changes = find_changes(now, figures);
  ASSERT_GE(changes.size(), 3u);
  for (std::size_t index = 0; index + 1 < changes.size(); ++index) {
    EXPECT_GE(changes[index].gain, changes[index + 1].gain);
  }
  const auto found = [&](const std::string& key, const std::string& to) {
    for (const Change& change : changes) {
      if (change.key == key && change.to == to) return change.tokens_per_s;
    }
    return 0.0;
  };
  PlanCase changed = now;
  changed.host_bytes *= 2;
  EXPECT_EQ(found("artesian.host_memory", "300 MiB"), figures_of(changed).tokens_per_s);
  changed = now;
  changed.config.micro_batch_size = 4;
  EXPECT_EQ(found("train_micro_batch_size_per_gpu (and train_batch_size)", "4"),
            figures_of(changed).tokens_per_s);
  changed = now;
  changed.activation_bytes = round_up(4 * figures.activations, mib);
  EXPECT_EQ(found("artesian.activation_memory", in_mib(changed.activation_bytes)),
            figures_of(changed).tokens_per_s);
}

TEST_F(Planner, WhatIsOfferedIsPlannedAsItIsWritten) {
  PlanCase now = on_nvme();
  now.device_bytes = 150 * mib;  // slots for all
  now.config.zero.max_live_parameters = figures_of(now).elements;
  now.config.zero.prefetch_bucket_size = figures_of(now).elements;
  now.config.zero.max_reuse_distance = 0;
  const PlanFigures figures = figures_of(now);
  const auto changes = find_changes(now, figures);
  const Change* reuse = find(changes, "zero_optimization.stage3_max_reuse_distance");
  ASSERT_NE(reuse, nullptr);
  PlanCase changed = now;
  changed.config.zero.max_reuse_distance = std::stoull(reuse->to);
  EXPECT_EQ(figures_of(changed).tokens_per_s, reuse->tokens_per_s);
  changed.config.zero.max_reuse_distance *= 1000;  // and this key has no more effect
  EXPECT_EQ(figures_of(changed).tokens_per_s, reuse->tokens_per_s);
  now.host_bytes = 150 * mib + 4096;
  const auto odd = find_changes(now, figures_of(now));
  const Change* memory = find(odd, "artesian.host_memory");
  ASSERT_NE(memory, nullptr);
  changed = now;
  changed.host_bytes = *parse_size(memory->to);
  EXPECT_GE(changed.host_bytes, 2 * now.host_bytes);
  EXPECT_EQ(figures_of(changed).tokens_per_s, memory->tokens_per_s);
}

TEST_F(Planner, OffersTheUpdateUnderBackwardWhereNothingIsClipped) {
  PlanCase now = plan(Offload::None, Offload::Nvme);
  now.device_bytes = 84 * mib;  // parameters, and next to no state
  now.host_bytes = on_nvme().host_bytes;
  for (double* seconds : {&now.compute.block_forward, &now.compute.block_backward}) *seconds *= 20;
  now.config.check_grad_overflow = true;
  now.config.artesian.speculative_update = false;
  const auto offered = [&](const char* key, double clipping) {
    now.config.gradient_clipping = clipping;
    const auto changes = find_changes(now, figures_of(now));
    const auto found = std::find_if(changes.begin(), changes.end(),
                                    [&](const Change& change) { return change.key == key; });
    return found == changes.end() ? 0.0 : found->tokens_per_s;
  };
  const double tried = offered("artesian.speculative_update", 1.0);
  EXPECT_GT(tried, 0.0);
  EXPECT_EQ(offered("bf16.check_grad_overflow", 1.0), 0.0);
  const double with = offered("bf16.check_grad_overflow", 0.0);
  EXPECT_GT(with, 0.0);
  now.config.check_grad_overflow = false;
  EXPECT_EQ(with, figures_of(now).tokens_per_s);
  now.config.gradient_clipping = 1.0;
  now.config.artesian.speculative_update = true;
  EXPECT_EQ(tried, figures_of(now).tokens_per_s);
}

TEST_F(Planner, OffersNothingToAStepThatOnlyComputes) {
  PlanCase now = plan(Offload::Cpu, Offload::Cpu);
  now.compute = {1, 2, 1, 2};
  EXPECT_TRUE(find_changes(now, figures_of(now)).empty());
}

TEST_F(Planner, FindsTheFastestThatFits) {
  const PlanCase roomy = plan(Offload::Nvme, Offload::Nvme);
  const auto all = search(roomy);
  ASSERT_EQ(all.size(), 7u);  // every strategy
  for (std::size_t index = 0; index < all.size(); ++index) {
    const zero3::Config& config = all[index].config;
    EXPECT_EQ(config.micro_batch_size * config.accumulation_steps, 8u);
    if (index != 0) {
      EXPECT_GE(all[index - 1].figures.tokens_per_s, all[index].figures.tokens_per_s);
    }
    PlanCase again = roomy;
    again.config = config;
    EXPECT_EQ(figures_of(again).time.seconds, all[index].figures.time.seconds);
  }
  EXPECT_NE(all.front().config.zero.offload_optimizer.device, Offload::Nvme);

  PlanCase small = roomy;  // state neither fits on the device nor on the host
  small.device_bytes = 128 * mib;
  small.host_bytes = 32 * mib;
  const auto few = search(small);
  ASSERT_EQ(few.size(), 1u);
  EXPECT_EQ(few.front().config.zero.offload_param.device, Offload::Nvme);
  EXPECT_EQ(few.front().config.zero.offload_optimizer.device, Offload::Nvme);
}

TEST_F(Planner, KeepsInputsInTiersWhereNothingElseFits) {
  PlanCase tried = on_nvme();  // where inputs go, as host memory is full in any case
  tried.length = 4096;
  tried.config.accumulation_steps = 1;
  tried.config.micro_batch_size = 1;  // which cannot be cut
  PlanCase checkpointed = tried;
  checkpointed.config.activation_checkpointing = true;
  PlanCase in_tiers = checkpointed;
  in_tiers.config.cpu_checkpointing = true;
  const auto between = [&](const PlanCase& less, const PlanCase& more) {
    const std::uint64_t low = memory_of(figures_of(less));
    const std::uint64_t high = memory_of(figures_of(more));
    EXPECT_LT(low + 16 * mib, high);
    return low + (high - low) / 2;
  };
  tried.memory_max = between(in_tiers, checkpointed);
  const auto all = search(tried);
  ASSERT_FALSE(all.empty());
  for (const Candidate& candidate : all) {
    EXPECT_TRUE(candidate.config.activation_checkpointing);
    EXPECT_TRUE(candidate.config.cpu_checkpointing) << candidate.name;
  }
  const PlanCase plain = [&] {
    PlanCase made = tried;
    made.memory_max.reset();
    return made;
  }();
  tried.memory_max = between(checkpointed, plain);
  ASSERT_FALSE(search(tried).empty());
  for (const Candidate& candidate : search(tried)) {
    EXPECT_TRUE(candidate.config.activation_checkpointing);
    EXPECT_FALSE(candidate.config.cpu_checkpointing) << candidate.name;
  }
}

TEST_F(Planner, KeepsInputsInTiersWhereThatIsFaster) {
  PlanCase alone = on_nvme();  // 8 micro-batches, one after the other, each with its own fetches
  alone.config.accumulation_steps = 8;
  alone.config.micro_batch_size = 1;
  PlanCase in_tiers = alone;
  in_tiers.config.activation_checkpointing = in_tiers.config.cpu_checkpointing = true;
  in_tiers.activation_bytes = alone.activation_bytes = 8 * mib;
  ASSERT_GT(figures_of(in_tiers).tokens_per_s, 1.1 * figures_of(alone).tokens_per_s);
  const auto changes = find_changes(alone, figures_of(alone));
  const auto offered = std::find_if(changes.begin(), changes.end(), [](const Change& change) {
    return change.key == "activation_checkpointing.cpu_checkpointing";
  });
  ASSERT_NE(offered, changes.end());
  EXPECT_EQ(offered->tokens_per_s, figures_of(in_tiers).tokens_per_s);
  alone.memory_max =  // not of 8 at once
      *alone.device_bytes + alone.host_bytes + 2 * figures_of(alone).activations;
  const auto all = search(alone);
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all.front().config.cpu_checkpointing);
  EXPECT_GE(all.front().figures.tokens_per_s, figures_of(in_tiers).tokens_per_s);

  alone.compute = {1, 2, 1, 2};  // a second forward costs a third more
  for (const Candidate& candidate : search(alone)) {
    EXPECT_FALSE(candidate.config.activation_checkpointing) << candidate.name;
  }
}

TEST_F(Planner, OrdersStrategiesAsTheyAreFastOnManyRanks) {
  PlanCase tried = plan(Offload::None, Offload::None);
  tried.gpu = true;
  tried.ranks = 8;
  const auto of = [all = search(tried)](const std::string& name) {
    for (const Candidate& candidate : all) {
      if (candidate.name == name) return candidate.figures.time.seconds;
    }
    ADD_FAILURE() << name;
    return 0.0;
  };
  EXPECT_LE(of("ZeRO-2"), of("ZeRO-2, optimizer on cpu"));
  EXPECT_LE(of("ZeRO-3"), of("ZeRO-3, optimizer on cpu"));
  EXPECT_LE(of("ZeRO-3, optimizer and parameters on cpu"),
            of("ZeRO-Infinity, optimizer on nvme") * 1.002);  // the device has some of the state
}

TEST_F(Planner, ActivationsAndWhatBothTiersUseMustFitInMemory) {
  PlanCase tried = plan(Offload::Cpu, Offload::Cpu);
  tried.memory_max = memory_of(figures_of(tried));
  EXPECT_TRUE(evaluate(tried).has_value());
  tried.host_bytes = std::uint64_t{1} << 40;  // no more of a budget is taken than is used
  EXPECT_TRUE(evaluate(tried).has_value());
  EXPECT_FALSE(search(tried).empty());
  --*tried.memory_max;
  expect_one_byte_missing(tried, "artesian.host_memory: got ");
  tried.length = 1 << 20;
  EXPECT_TRUE(evaluate(tried).error().message.starts_with("train_micro_batch_size_per_gpu: got "));
}

TEST_F(Planner, WhatTheProgramTakesMustFitInMemoryToo) {
  PlanCase tried = plan(Offload::Cpu, Offload::Cpu);
  tried.program_bytes = 64 * mib;
  tried.memory_max = memory_of(figures_of(tried)) + 64 * mib;
  EXPECT_TRUE(evaluate(tried).has_value());
  --*tried.memory_max;
  expect_one_byte_missing(tried, "artesian.host_memory: got ");
  const std::string message = evaluate(tried).error().message;
  EXPECT_NE(message.find("and 64.0 MiB of the program, allowed "), message.npos) << message;
}

TEST_F(Planner, OffersNoMemoryThatIsNotThere) {
  PlanCase now = on_nvme();
  const char* key = "artesian.host_memory";
  const PlanFigures figures = figures_of(now);
  ASSERT_NE(find(find_changes(now, figures), key), nullptr);
  now.memory_max = memory_of(figures) + 8 * mib;
  EXPECT_EQ(find(find_changes(now, figures), key), nullptr);
}

TEST_F(Planner, WhatGoesToNvmeMustHaveRoomThere) {
  PlanCase tried = on_nvme();
  tried.config.artesian.speculative_update = false;
  const PlanFigures unlimited = figures_of(tried);
  EXPECT_EQ(unlimited.nvme.budget, 0u);
  const std::uint64_t files = unlimited.nvme.used() + 4 * 4096;  // the superblock's region
  tried.space = space_of(files);
  EXPECT_EQ(figures_of(tried).nvme.budget, files);
  tried.space = space_of(files - 1);
  const auto refused = evaluate(tried);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace);
  EXPECT_TRUE(
      refused.error().message.starts_with("zero_optimization.offload_optimizer.nvme_path: "
                                          "got "))
      << refused.error().message;
  EXPECT_NE(refused.error().message.find(": 1 bytes missing "), std::string::npos);
  PlanCase roomy = plan(Offload::Cpu, Offload::Cpu);
  roomy.device_bytes = 128 * mib;  // not for all of it
  roomy.host_bytes = 256 * mib;
  const auto uses_nvme = [&] {
    const auto all = search(roomy);
    return std::any_of(all.begin(), all.end(),
                       [](const Candidate& each) { return each.figures.nvme.used() != 0; });
  };
  EXPECT_TRUE(uses_nvme());
  roomy.space = space_of(mib);
  EXPECT_FALSE(uses_nvme());
}

TEST_F(Planner, EachFolderTakesItsShareOfADisk) {
  PlanCase tried = on_nvme();
  tried.config.artesian.speculative_update = false;
  const PlanFigures figures = figures_of(tried);
  const std::uint64_t state = figures.nvme.optimizer;
  const std::uint64_t param = figures.nvme.used() - state;
  constexpr std::uint64_t region = 4 * 4096;
  // Parameters and three quarters of the optimizer state on the first disk.
  tried.space.param = {{"/a", 0, 1.0}};
  tried.space.optimizer = {{"/a", 0, 0.75}, {"/b", 1, 0.25}};
  const std::uint64_t first = param + state / 4 * 3 + region;
  const std::uint64_t second = state / 4 + region;
  tried.space.free = {first, second};
  EXPECT_EQ(figures_of(tried).nvme.budget, first + second);
  tried.space.free = {first + second, second - 1};
  EXPECT_NE(evaluate(tried).error().message.find(" free in /b, allowed at least " +
                                                 std::to_string(second) + " bytes"),
            std::string::npos);
  tried.space.free = {first - 1, first + second};
  EXPECT_NE(evaluate(tried).error().message.find(" free in /a, "), std::string::npos);
}

TEST_F(Planner, WithoutRoomForShadowsTheUpdateStaysUnderForward) {
  PlanCase tried = on_nvme();
  tried.config.accumulation_steps = 1;
  tried.config.check_grad_overflow = false;
  tried.rates.disk_read = 4e8;  // forward alone is too short for the update
  tried.rates.disk_write = 2e8;
  tried.compute = {1e-3, 2e-3, 2e-3, 4e-3};
  const PlanFigures figures = figures_of(tried);
  ASSERT_GT(figures.nvme.buffers, 0u);
  const std::uint64_t files = figures.nvme.used() - figures.nvme.buffers + 4 * 4096;
  tried.space = space_of(files + 2 * figures.nvme.buffers);
  EXPECT_EQ(figures_of(tried).nvme.buffers, figures.nvme.buffers);
  tried.space = space_of(files + 2 * figures.nvme.buffers - 1);
  const PlanFigures without = figures_of(tried);
  EXPECT_EQ(without.nvme.buffers, 0u);
  EXPECT_GT(without.time.seconds, figures.time.seconds);
}

TEST_F(Planner, ParametersHaveADiskOfTheirOwn) {
  PlanCase tried = on_nvme();
  const PlanFigures together = figures_of(tried);
  tried.rates.param_read = tried.rates.disk_read / 100;
  tried.rates.param_write = tried.rates.disk_write / 100;
  const double one_after_the_other = figures_of(tried).time.seconds;
  tried.rates.param_apart = true;
  const PlanFigures apart = figures_of(tried);
  EXPECT_LT(apart.time.seconds, one_after_the_other);
  EXPECT_GT(apart.time.seconds, together.time.seconds);
  EXPECT_EQ(apart.bottleneck, "param NVMe");
  const Change* faster = find(find_changes(tried, apart), "a disk of twice the speed (nvme_path)");
  ASSERT_NE(faster, nullptr);
  EXPECT_GT(faster->gain, 0.5);
  tried.config.zero.offload_param.device = Offload::None;
  tried.device_bytes = 84 * mib;
  tried.host_bytes = 48 * mib;
  EXPECT_GT(figures_of(tried).moved.grad.nvme_write, 0u);  // spilled to the optimizer's disk
  PlanCase alone = tried;
  alone.rates.param_read = alone.rates.param_write = 0.0;
  EXPECT_EQ(figures_of(tried).time.seconds, figures_of(alone).time.seconds);
}

TEST_F(Planner, DisksThatWorkSideBySideDecideHowMuchBackwardUpdates) {
  PlanCase tried = on_nvme();
  tried.config.accumulation_steps = 1;
  tried.config.check_grad_overflow = false;
  tried.rates.disk_read = tried.rates.param_read = 4e8;
  tried.rates.disk_write = tried.rates.param_write = 2e8;
  tried.compute = {1e-3, 2e-3, 2e-3, 4e-3};
  const PlanFigures one_after_the_other = figures_of(tried);
  tried.rates.param_apart = true;
  const PlanFigures side_by_side = figures_of(tried);
  ASSERT_GT(one_after_the_other.nvme.buffers, 0u);
  EXPECT_NE(side_by_side.nvme.buffers, one_after_the_other.nvme.buffers);  // shadows of those units
  EXPECT_LT(side_by_side.time.seconds, one_after_the_other.time.seconds);
}

TEST_F(Planner, OffersTheBestChangeOfEachKey) {
  PlanCase now = on_nvme();
  now.activation_bytes = figures_of(now).activations;  // one; two and all four are tried
  const auto changes = find_changes(now, figures_of(now));
  for (const Change& change : changes) {
    const auto same = [&](const Change& other) { return other.key == change.key; };
    EXPECT_EQ(std::count_if(changes.begin(), changes.end(), same), 1) << change.key;
  }
  const Change* more = find(changes, "artesian.activation_memory");
  ASSERT_NE(more, nullptr);
  EXPECT_EQ(more->to, in_mib(round_up(4 * now.activation_bytes, mib)));
}

TEST_F(Planner, OffersBf16AsItWouldCompute) {
  PlanCase now = plan(Offload::Cpu, Offload::Cpu);
  now.config.param_dtype = now.config.grad_accum_dtype = DType::Float32;
  now.compute = {1e-3, 2e-3, 2e-3, 4e-3};
  const PlanFigures figures = figures_of(now);
  EXPECT_EQ(find(find_changes(now, figures), "bf16.enabled"), nullptr);  // not predictable
  now.bf16 = ComputeInBf16{.compute_dtype = DType::BFloat16, .compute = {2e-4, 4e-4, 4e-4, 8e-4}};
  const auto changes = find_changes(now, figures);
  const Change* found = find(changes, "bf16.enabled");
  ASSERT_NE(found, nullptr);
  EXPECT_GT(found->gain, 3.0);
  PlanCase changed = plan(Offload::Cpu, Offload::Cpu);
  changed.compute_dtype = now.bf16->compute_dtype;
  changed.compute = now.bf16->compute;
  EXPECT_EQ(found->tokens_per_s, figures_of(changed).tokens_per_s);
  now.bf16->grad_accum_dtype = DType::Float32;  // the config names it, and keeps naming it
  changed.config.grad_accum_dtype = DType::Float32;
  const auto wide = find_changes(now, figures);
  EXPECT_EQ(find(wide, "bf16.enabled")->tokens_per_s, figures_of(changed).tokens_per_s);
  EXPECT_LT(find(wide, "bf16.enabled")->tokens_per_s, found->tokens_per_s);
}

TEST_F(Planner, WhatIsChangedHasTheSumsThatItsRunWouldHave) {
  PlanCase now = on_nvme();
  now.config.accumulation_steps = 4;
  const auto more = [&](DType sums) {
    PlanCase changed = now;
    changed.config.accumulation_steps = 16;
    changed.config.grad_accum_dtype = sums;
    return figures_of(changed).tokens_per_s;
  };
  const auto offered = [&] {
    return find(find_changes(now, figures_of(now)),
                "gradient_accumulation_steps (and train_batch_size)")
        ->tokens_per_s;
  };
  EXPECT_NE(more(DType::BFloat16), more(DType::Float32));
  EXPECT_EQ(offered(), more(DType::BFloat16));  // the config names it
  now.grad_accum_by_default = true;
  EXPECT_EQ(offered(), more(DType::Float32));
  for (const Candidate& candidate : search(now)) {
    const bool many = candidate.config.accumulation_steps >= 8;
    EXPECT_EQ(candidate.config.grad_accum_dtype, many ? DType::Float32 : DType::BFloat16);
  }
}

TEST_F(Planner, WhatIsRunHasTheBudgetsThatWerePlanned) {
  PlanCase tried = of_a_gpu(plan(Offload::Cpu, Offload::Cpu), 2 * gib);
  tried.compute_dtype = DType::BFloat16;
  const auto all = search(tried);
  ASSERT_FALSE(all.empty());
  for (const Candidate& candidate : all) {
    const zero3::Config config = config_of_run(tried, candidate);
    EXPECT_EQ(*config.artesian.device_memory + candidate.figures.activations + gib,
              *tried.gpu_bytes);
    EXPECT_EQ(config.artesian.host_memory, tried.host_bytes);
    EXPECT_EQ(config.artesian.compute_dtype, DType::BFloat16);
    EXPECT_EQ(config.zero, candidate.config.zero);
  }
}

TEST_F(Planner, SaysWhatDeepSpeedsBucketsTake) {
  PlanCase tried = plan(Offload::None, Offload::None);
  tried.gpu = true;
  tried.ranks = 8;
  tried.config.zero.stage = 2;
  tried.buckets = {true, 500'000'000, 500'000'000};
  const auto said = [&] {
    const auto advice = advise(tried);
    return advice.empty() ? std::string() : advice.front();
  };
  EXPECT_TRUE(said().starts_with("zero_optimization.overlap_comm: ")) << said();
  EXPECT_NE(said().find(" x 2 bytes for it, 9 GB of each GPU"), std::string::npos) << said();
  tried.buckets.overlap_comm = false;
  EXPECT_EQ(said(), "");
  tried.buckets.overlap_comm = true;
  tried.ranks = 1;
  EXPECT_EQ(said(), "");
}

TEST_F(Planner, AdvisesInKeysOfDeepSpeed) {
  const PlanCase roomy = plan(Offload::Cpu, Offload::Cpu);
  const auto advice = advise(roomy);
  ASSERT_EQ(advice.size(), 1u);
  const std::int64_t threshold = 6 * model.hidden * model.hidden;
  EXPECT_TRUE(advice.front().starts_with("zero_optimization.stage3_param_persistence_threshold: " +
                                         std::to_string(threshold)))
      << advice.front();
  PlanCase tight = on_nvme();
  tight.length = 63;  // 126 tokens
  const auto shapes = advise(tight);
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_TRUE(shapes.front().starts_with("tokens of a micro-batch: 126 is no multiple of 16"))
      << shapes.front();
}

TEST_F(Planner, TextObjectAndPictureHoldTheSameFigures) {
  const PlanCase now = on_nvme();
  PlanReport report;
  report.plan = &now;
  report.figures = figures_of(now);
  report.candidates = search(now);
  report.notes = {"<a> & \"b\""};
  report.rates = {{"nvme_read", 2.0, "GB/s", "given"}};
  const auto object = nlohmann::json::parse(plan_json(report));
  EXPECT_EQ(object["step"]["seconds"], report.figures.time.seconds);
  EXPECT_EQ(object["bytes_per_step"]["nvme_read"]["total"], report.figures.moved.total().nvme_read);
  EXPECT_EQ(object["notes"][0], report.notes[0]);
  EXPECT_EQ(object["memory"]["nvme"]["budget"], nullptr);
  EXPECT_EQ(object["candidates"].size(), report.candidates.size());
  EXPECT_NE(plan_text(report).find("nvme_read"), std::string::npos);
  const std::string svg = plan_svg(report);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 80);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_LT(svg.size(), 200'000u);  // for any number of events
}

TEST_F(Planner, MicroBatchesRunLayerByLayerWhereThereIsRoom) {
  PlanCase alone = on_nvme();
  const PlanFigures one_by_one = figures_of(alone);
  PlanCase together = alone;
  together.activation_bytes = 4 * one_by_one.activations;
  const PlanFigures at_once = figures_of(together);
  // Parameters that the update makes in forward are not read. But the update reads as many bytes:
  // the old ones, which are upper halves of master weights.
  const auto gathered = [](const PlanFigures& of) { return of.moved.param.nvme_read; };
  EXPECT_EQ(gathered(one_by_one), 4 * gathered(at_once));  // once for all four
  EXPECT_NEAR(at_once.time.model_seconds, one_by_one.time.model_seconds, 1e-9);
  EXPECT_GT(at_once.activations, 3 * one_by_one.activations);
  EXPECT_LT(at_once.time.seconds, one_by_one.time.seconds);
}

class LargePlanner : public Planner {
 protected:
  LargePlanner() : Planner(4e11) {}
};

TEST_F(LargePlanner, NothingIsLinearInElements) {
  PlanCase tried = plan(Offload::Nvme, Offload::Nvme);
  tried.device_bytes = tried.host_bytes = 100 * gib;
  const PlanFigures one = figures_of(tried);  // of one rank: millions of sub-groups
  const auto state = [](const PlanFigures& of) {
    return static_cast<double>(of.nvme.optimizer + of.host.optimizer);
  };
  EXPECT_GT(one.nvme.optimizer, 3'500 * gib);
  EXPECT_LT(one.time.spans.size(), 100'000u);
  tried.ranks = 512;
  tried.gpu = true;
  const PlanFigures many = figures_of(tried);
  // 12 bytes an element if host memory has all of it and no parameters, else 10.
  EXPECT_NEAR(state(many) / 12, state(one) / 10 / 512, state(one) / 10 / 512 * 0.01);
}

}  // namespace
}  // namespace artesian::tools
