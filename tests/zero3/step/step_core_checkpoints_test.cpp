// Proves that a saved training continues to the bits of one that never stopped, with a driver that
// has no tensors: over dtypes, placements that change in between, master weights that are split on
// one side alone, and any outcome of the step before the save: skipped, clipped, rolled back,
// updated under backward for good, with its update pending. Also proves the effect of faults: a
// save that fails costs the training nothing, a damaged checkpoint leaves the engine free for
// another one, and only a fault of a tier ends the run.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>

#include "base/log.h"
#include "base/safetensors_header.h"
#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Scales of the gradients, step by step: the third, fourth and eighth overflow.
double scale_of(std::uint64_t step) {
  return step == 2 || step == 3 || step == 7 ? infinity : 1.0;
}

class StepCoreCheckpoints : public testing::Test {
 protected:
  StepCoreCheckpoints() {
    set_log_sink([](LogLevel, std::string_view) {});  // steps that are skipped
  }
  ~StepCoreCheckpoints() override { set_log_sink({}); }

  std::string folder() const { return directory_.path() + "/checkpoints"; }
  SaveRequest request(const std::string& tag = "") const {
    return {.directory = folder(), .tag = tag};
  }
  void run_steps(Driver& driver, std::uint64_t from, std::uint64_t to) const {
    for (std::uint64_t step = from; step < to; ++step) {
      const StepResult result = driver.step(step, scale_of(step));
      scales_[step] = result.loss_scale;
    }
  }
  LoadedCheckpoint load(Driver& driver, const std::string& tag = "") const {
    auto loaded = driver.core->load_checkpoint({.directory = folder(), .tag = tag});
    EXPECT_EQ(error_of(loaded), "");
    return loaded.has_value() ? *std::move(loaded) : LoadedCheckpoint{};
  }

  const test_support::TemporaryDirectory directory_;
  mutable std::map<std::uint64_t, double> scales_;  // by step, of the last run
};

/// Places for the state, and sizes of the sub-groups in which it is written.
std::vector<Case> placements(const Case& like) {
  std::vector<Case> all(5, like);
  all[1].home = Offload::Cpu;
  all[1].host_more = 1 << 20;
  all[2].home = Offload::None;
  all[2].sub_group = 1'000'000;
  all[3].host_more = 60'000;  // some of the state in host memory, some not
  all[3].sub_group = 4096;
  all[4].split_master = false;
  all[4].speculative = false;
  return all;
}

TEST_F(StepCoreCheckpoints, GoOnToTheSameBitsInAnyOtherPlacement) {
  constexpr std::uint64_t steps = 9;
  int compared = 0;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const Case like{.dtype = dtype, .hysteresis = 2};
    Driver whole(like);
    whole.fill();
    run_steps(whole, 0, steps);
    const auto whole_scales = std::exchange(scales_, {});
    const std::string digest = whole.digest();
    const auto all = placements(like);
    for (std::size_t from = 0; from < all.size(); ++from) {
      const std::uint64_t saved_at = 1 + (from + compared) % (steps - 1);
      const std::string tag = "t" + std::to_string(from) + dtype_name(dtype);
      Driver first(all[from]);
      first.fill();
      run_steps(first, 0, saved_at);
      ASSERT_EQ(error_of(first.core->save_checkpoint(request(tag))), "");
      for (const std::size_t to : {(from + 1) % all.size(), (from + 3) % all.size()}) {
        Driver second(all[to]);
        const LoadedCheckpoint loaded = load(second, tag);
        EXPECT_EQ(loaded.manifest.state.step, saved_at);
        run_steps(second, saved_at, steps);
        std::vector<std::uint64_t> norms = first.norms;
        norms.insert(norms.end(), second.norms.begin(), second.norms.end());
        EXPECT_EQ(norms, whole.norms);
        EXPECT_EQ(scales_, whole_scales);
        EXPECT_EQ(second.digest(), digest)
            << dtype_name(dtype) << " from " << from << " to " << to << " at " << saved_at;
        ++compared;
      }
      run_steps(first, saved_at, steps);  // a save changes nothing of its own run
      EXPECT_EQ(first.digest(), digest) << dtype_name(dtype) << " " << from;
    }
  }
  EXPECT_EQ(compared, 30);
}

// Blocks have at most 1 MiB: here sub-groups are three of them, one whole one, and two.
TEST_F(StepCoreCheckpoints, SubGroupsOfSeveralBlocksComeBackWhole) {
  const SmallModel model = make_small_model(40'000, 16, 1);
  for (const std::uint64_t sub_group : {1'000'000u, 1u << 18, 300u << 10}) {
    const std::string tag = "t" + std::to_string(sub_group);
    Driver first({.sub_group = sub_group, .device = 8 << 20}, model);
    first.fill();
    run_steps(first, 0, 2);
    ASSERT_EQ(error_of(first.core->save_checkpoint(request(tag))), "");
    Driver second({.sub_group = 2048, .device = 8 << 20}, model);
    load(second, tag);
    EXPECT_EQ(second.digest(), first.digest()) << sub_group;
  }
}

TEST_F(StepCoreCheckpoints, GoOnWhateverTheStepBeforeWas) {
  struct Before {
    const char* what;
    Case run;
    std::function<void(Driver&)> act = [](Driver&) {};
  };
  const Case for_good{.dtype = DType::BFloat16, .clipping = 0, .check_overflow = false};
  const std::vector<Before> befores = {
      {"clipped, so taken back", {.clipping = 0.001}},
      {"made under backward", {.clipping = 0}},
      {"made under backward for good", for_good},
      {"completed at once",
       {},
       [](Driver& d) { EXPECT_EQ(error_of(d.core->finish_update()), ""); }},
      {"evaluated after",
       {},
       [](Driver& d) {
         EXPECT_EQ(error_of(d.core->begin_evaluation()), "");
         d.enter_forward(d.stages().size());
         EXPECT_EQ(error_of(d.core->end_evaluation(false)), "");
       }},
      {"followed by one that is abandoned", {}, [](Driver& d) {
         d.micro_batch(77);
         d.forward();
         EXPECT_EQ(error_of(d.core->abandon_step()), "");
       }}};
  for (const Before& before : befores) {
    Driver whole(before.run);
    whole.fill();
    for (std::uint64_t step = 0; step < 6; ++step) whole.step(step);
    Driver first(before.run);
    first.fill();
    for (std::uint64_t step = 0; step < 3; ++step) first.step(step);
    before.act(first);
    const std::string tag = "t" + std::to_string(&before - befores.data());
    ASSERT_EQ(error_of(first.core->save_checkpoint(request(tag))), "") << before.what;
    EXPECT_EQ(first.core->take_completed().value().step, 3u) << before.what;
    Driver second(before.run);
    load(second, tag);
    for (std::uint64_t step = 3; step < 6; ++step) second.step(step);
    EXPECT_EQ(second.digest(), whole.digest()) << before.what;
    EXPECT_EQ(first.taken_back != 0, before.run.clipping > 0) << before.what;
  }
}

TEST_F(StepCoreCheckpoints, FrozenParametersAndGroupsComeBackAndAreWrittenOnce) {
  const SmallModel model = partly_frozen_model();
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    Case run{.dtype = dtype};
    run.groups = decay_and_none();
    Driver whole(run, model);
    whole.fill();
    for (std::uint64_t step = 0; step < 6; ++step) whole.step(step);
    Driver first(run, model);
    first.fill();
    const std::string tag = std::string("a") + dtype_name(dtype);
    for (std::uint64_t step = 0; step < 2; ++step) first.step(step);
    ASSERT_EQ(error_of(first.core->save_checkpoint(request("former" + tag))), "");
    first.step(2);
    const auto saved = first.core->save_checkpoint(request(tag));
    ASSERT_EQ(error_of(saved), "");
    struct stat file {};
    ASSERT_EQ(stat((folder() + "/" + tag + "/frozen.safetensors").c_str(), &file), 0);
    EXPECT_EQ(file.st_nlink, 2u);
    Case other = run;
    other.home = Offload::Cpu;
    other.host_more = 1 << 20;
    Driver second(other, model);
    const LoadedCheckpoint loaded = load(second, tag);
    ASSERT_EQ(loaded.manifest.groups.size(), 2u);
    EXPECT_EQ(loaded.manifest.groups[1].lr, first.core->config().optimizer.lr * 0.3);
    EXPECT_EQ(loaded.manifest.groups[0].step, 3u);
    EXPECT_EQ(second.core->update_count(0), 3u);
    for (std::uint64_t step = 3; step < 6; ++step) second.step(step);
    EXPECT_EQ(second.digest(), whole.digest()) << dtype_name(dtype);
  }
}

TEST_F(StepCoreCheckpoints, SplitAndWholeMasterWeightsBecomeEachOther) {
  const Case split{.dtype = DType::BFloat16};
  Case whole = split;
  whole.split_master = false;
  Driver first(split);
  first.fill();
  for (std::uint64_t step = 0; step < 5; ++step) first.step(step);
  ASSERT_EQ(error_of(first.core->save_checkpoint(request("split"))), "");
  ASSERT_EQ(first.core->placement().units[0].master, Master::Split);
  const std::string digest = first.digest();
  ASSERT_EQ(error_of(first.core->close()), "");  // so that the folder is free
  Driver second(whole);
  load(second, "split");
  EXPECT_EQ(second.digest(), digest);
  ASSERT_EQ(error_of(second.core->save_checkpoint(request("whole"))), "");
  Driver third(split);
  load(third, "whole");
  EXPECT_EQ(third.digest(), digest);
}

TEST_F(StepCoreCheckpoints, OneOfAnotherRunReplacesAllThatThisOneIs) {
  for (const bool persistent : {false, true}) {
    const Case run{.dtype = DType::Float16, .hysteresis = 2};
    const auto made = [&] {
      auto driver = std::make_unique<Driver>(run, make_small_model(24, 16, 3), [&](Config& config) {
        if (persistent) config.zero.param_persistence_threshold = 1000;
      });
      driver->fill();
      return driver;
    };
    const auto saved = made();
    run_steps(*saved, 0, 4);
    const std::string tag = persistent ? "p" : "s";
    ASSERT_EQ(error_of(saved->core->save_checkpoint(request(tag))), "");
    run_steps(*saved, 4, 6);
    const auto other = made();
    run_steps(*other, 3, 5);
    other->micro_batch(500);
    const auto refused = other->core->load_checkpoint({.directory = folder(), .tag = tag});
    EXPECT_NE(error_of(refused).find("call step() or abandon_step() first"), std::string::npos);
    ASSERT_EQ(error_of(other->core->abandon_step()), "");
    load(*other, tag);
    run_steps(*other, 4, 6);
    EXPECT_EQ(other->digest(), saved->digest()) << persistent;
  }
}

TEST_F(StepCoreCheckpoints, WeightsAloneStartANewTraining) {
  const Case run{.dtype = DType::BFloat16};
  Driver first(run);
  first.fill();
  for (std::uint64_t step = 0; step < 3; ++step) first.step(step);
  ASSERT_EQ(error_of(first.core->save_checkpoint(request("a"))), "");
  const std::vector<float> saved = first.read(2);
  ASSERT_EQ(error_of(first.core->close()), "");  // so that the folder is free
  for (const bool from_fp32 : {true, false}) {
    Driver second(run);
    const auto loaded = second.core->load_checkpoint({.directory = folder(),
                                                      .tag = "a",
                                                      .optimizer_states = false,
                                                      .from_fp32_weights = from_fp32});
    ASSERT_EQ(error_of(loaded), "");
    EXPECT_EQ(second.core->update_count(2), 0u);
    std::vector<float> expected = saved;
    if (!from_fp32) {
      for (float& value : expected) value = bf16_to_float(float_to_bf16(value));
    }
    EXPECT_EQ(second.read(2), expected);
    EXPECT_EQ(second.step(0).step, 1u);
    ASSERT_EQ(error_of(second.core->save_checkpoint(request())), "");
    Driver third(run);
    EXPECT_EQ(load(third, "global_step1").manifest.link.parent, 0u);
    std::filesystem::remove_all(folder() + "/global_step1");
  }
}

TEST_F(StepCoreCheckpoints, SkippedStepsInARowAreCountedAcrossARestart) {
  const auto few = [](Config& config) { config.artesian.skipped_steps_max = 3; };
  Driver first({}, make_small_model(24, 16, 3), few);
  first.fill();
  for (std::uint64_t step = 0; step < 2; ++step) {
    EXPECT_FALSE(first.step(step, infinity).end.has_value());
  }
  ASSERT_EQ(error_of(first.core->save_checkpoint(request("a"))), "");
  Driver second({}, make_small_model(24, 16, 3), few);
  load(second, "a");
  EXPECT_TRUE(second.step(2, infinity).end.has_value()) << "the third in a row";
}

/// Also if the folder is opened anew in between, as by a caller with other rules.
TEST_F(StepCoreCheckpoints, EachOneDescendsFromTheOneBefore) {
  Driver driver({});
  driver.fill();
  const CheckpointPlace place{.directory = folder(), .keep = 0, .reserve = false};
  std::vector<CheckpointLink> links;
  for (std::uint64_t step = 0; step < 3; ++step) {
    driver.step(step);
    ASSERT_EQ(error_of(driver.core->open_checkpoints(place)), "");
    const auto saved = driver.core->save_checkpoint(request());
    ASSERT_EQ(error_of(saved), "");
    links.push_back(saved->link);
  }
  for (std::size_t index = 1; index < links.size(); ++index) {
    EXPECT_EQ(links[index].parent, links[index - 1].id);
    EXPECT_EQ(links[index].lineage, links[0].lineage);
    EXPECT_EQ(links[index].serial, index + 1);
  }
}

TEST_F(StepCoreCheckpoints, WhatTheModelDoesNotShareIsSaidAndComesFromElsewhere) {
  Driver small({}, make_small_model(24, 16, 2));
  small.fill();
  small.step(0);
  ASSERT_EQ(error_of(small.core->save_checkpoint(request("small"))), "");
  Driver large({}, make_small_model(24, 16, 3));
  const auto strict = large.core->load_checkpoint({.directory = folder(), .tag = "small"});
  EXPECT_NE(error_of(strict).find("h.2.norm"), std::string::npos) << error_of(strict);
  const auto no_source =
      large.core->load_checkpoint({.directory = folder(), .tag = "small", .strict = Strict::No});
  EXPECT_NE(error_of(no_source).find("give a source"), std::string::npos) << error_of(no_source);
  RandomWeights rest(large.core->shape().parameters, 9);
  const auto loaded = large.core->load_checkpoint(
      {.directory = folder(), .tag = "small", .strict = Strict::No, .rest = &rest});
  ASSERT_EQ(error_of(loaded), "");
  EXPECT_EQ(loaded->missing.size(), 4u);
  EXPECT_EQ(loaded->unexpected.size(), 0u);
  EXPECT_EQ(large.core->update_count(0), 1u);
  large.step(1);
}

TEST_F(StepCoreCheckpoints, WhatIsNotThereStaysInATrainingThatHasWeights) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    const Case run{.dtype = dtype};
    Driver small(run, make_small_model(24, 16, 2));
    small.fill();
    small.step(0);
    const std::string tag = std::string("stays") + dtype_name(dtype);
    ASSERT_EQ(error_of(small.core->save_checkpoint(request(tag))), "");
    const std::vector<float> first = small.read(0);
    // The same with one more bias in each block, so that one part of a unit is loaded and one
    // stays, and with one more block, which stays whole.
    SmallModel model = make_small_model(24, 16, 3);
    const auto index_of = [&](const std::string& name) {
      return static_cast<std::uint32_t>(
          std::find_if(model.parameters.begin(), model.parameters.end(),
                       [&](const ParameterSpec& each) { return each.name == name; }) -
          model.parameters.begin());
    };
    const std::uint32_t norm = index_of("h.0.norm");
    ASSERT_LT(norm, model.parameters.size());
    model.parameters[norm].name = "h.0.another";
    Driver large(run, model);
    large.fill();
    large.step(4);
    large.step(5);
    const auto whole_before = large.read(index_of("h.2.norm"));
    const auto part_before = large.read(norm);
    const auto loaded =
        large.core->load_checkpoint({.directory = folder(), .tag = tag, .strict = Strict::No});
    ASSERT_EQ(error_of(loaded), "");
    EXPECT_EQ(loaded->missing.size(), 5u);
    EXPECT_EQ(large.read(0), first);
    EXPECT_EQ(large.read(index_of("h.2.norm")), whole_before);
    EXPECT_EQ(large.read(norm), part_before);
    EXPECT_EQ(large.core->update_count(0), 1u);
    EXPECT_EQ(large.core->update_count(norm), 2u);
    large.step(1);
    EXPECT_NE(large.read(norm), part_before);
    ASSERT_EQ(error_of(small.core->close()), "");  // so that the folder is free
    // After a save and a load each parameter keeps its own count.
    ASSERT_EQ(error_of(large.core->save_checkpoint(request(tag + "again"))), "");
    Driver again(run, model);
    load(again, tag + "again");
    EXPECT_EQ(again.core->update_count(0), 2u);
    EXPECT_EQ(again.core->update_count(norm), 3u);
    large.step(2);
    again.step(2);
    EXPECT_EQ(again.digest(), large.digest());
    ASSERT_EQ(error_of(large.core->close()), "");
  }
}

TEST_F(StepCoreCheckpoints, FrozenParametersMayBeLeftOut) {
  SmallModel model = make_small_model(24, 16, 3);
  for (ParameterSpec& parameter : model.parameters) {
    parameter.trainable = parameter.name.find("h.1.") == std::string::npos;
  }
  Driver whole({}, model);
  whole.fill();
  for (std::uint64_t step = 0; step < 4; ++step) whole.step(step);
  Driver first({}, model);
  first.fill();
  for (std::uint64_t step = 0; step < 2; ++step) first.step(step);
  SaveRequest without = request("without");
  without.exclude_frozen = true;
  ASSERT_EQ(error_of(first.core->save_checkpoint(without)), "");
  EXPECT_FALSE(std::filesystem::exists(folder() + "/without/frozen.safetensors"));
  Driver empty({}, model);
  const auto no_source = empty.core->load_checkpoint({.directory = folder(), .tag = "without"});
  EXPECT_NE(error_of(no_source).find("give a source"), std::string::npos) << error_of(no_source);
  Driver second({}, model);
  second.fill();
  EXPECT_EQ(load(second, "without").manifest.excluded.size(), 4u);
  for (std::uint64_t step = 2; step < 4; ++step) second.step(step);
  EXPECT_EQ(second.digest(), whole.digest());
}

TEST_F(StepCoreCheckpoints, BuffersAndOtherNamesComeBack) {
  Driver first({});
  first.fill();
  first.step(0);
  // Files of all sizes: empty, smaller than a block, of several blocks, and ending inside one.
  const std::vector<std::size_t> sizes{0, 12, 3'000'000, 1, 1'048'576, 100};
  std::vector<std::string> bytes;
  SaveRequest saved = request("buffers");
  for (const std::size_t size : sizes) {
    std::string& content = bytes.emplace_back(size, '\0');
    for (std::size_t at = 0; at < size; ++at) content[at] = static_cast<char>(at * 7 + size);
  }
  for (std::size_t index = 0; index < sizes.size(); ++index) {
    saved.buffers.push_back(
        {{"buffer" + std::to_string(index), find_safetensors_type("U8"), {sizes[index]}},
         std::as_bytes(std::span(bytes[index]))});
  }
  const std::string& name = first.core->shape().parameters[0].name;
  saved.aliases = {{"tied", name}};
  ASSERT_EQ(error_of(first.core->save_checkpoint(saved)), "");
  Driver second({});
  const LoadedCheckpoint loaded = load(second, "buffers");
  ASSERT_EQ(loaded.buffers.size(), sizes.size());
  for (std::size_t index = 0; index < sizes.size(); ++index) {
    EXPECT_EQ(loaded.buffers[index].buffer.name, "buffer" + std::to_string(index));
    EXPECT_EQ(loaded.buffers[index].bytes, bytes[index]) << index;
  }
  EXPECT_EQ(loaded.manifest.aliases, saved.aliases);
  EXPECT_EQ(second.digest(), first.digest());
  // The next save of the same run may have none.
  ASSERT_EQ(error_of(first.core->save_checkpoint(request("none"))), "");
  EXPECT_EQ(load(second, "none").buffers.size(), 0u);
}

TEST_F(StepCoreCheckpoints, OneOfAnotherRunGivesWayWhereThatIsAskedFor) {
  Driver theirs({});
  theirs.fill();
  theirs.step(8);
  ASSERT_EQ(error_of(theirs.core->save_checkpoint(request("same"))), "");
  ASSERT_EQ(error_of(theirs.core->close()), "");
  std::filesystem::create_directories(folder() + "/mine");
  Driver ours({});
  ours.fill();
  ours.step(0);
  ours.step(1);
  SaveRequest save = request("same");
  EXPECT_EQ(ours.core->save_checkpoint(save).error().code, ErrorCode::Invalid);
  save.replaces = Replaces::AnyLineage;
  ASSERT_EQ(error_of(ours.core->save_checkpoint(save)), "");
  save.tag = "mine";  // not a checkpoint, and not ours
  EXPECT_EQ(ours.core->save_checkpoint(save).error().code, ErrorCode::Invalid);
  Driver second({});
  EXPECT_EQ(load(second).manifest.state.step, 2u);
}

/// Flips a bit of a file's byte.
void damage(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

TEST_F(StepCoreCheckpoints, ADamagedOneLeavesTheEngineForAnother) {
  Driver first({});
  first.fill();
  run_steps(first, 0, 1);
  ASSERT_EQ(error_of(first.core->save_checkpoint(request())), "");
  const std::string digest = first.digest();
  run_steps(first, 1, 2);
  ASSERT_EQ(error_of(first.core->save_checkpoint(request())), "");
  const std::string path = folder() + "/global_step2/rank0.safetensors";
  const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(path));
  damage(path, bytes - 4096);  // in the last block of the last image
  Driver second({});
  second.fill();
  second.step(5);
  const auto damaged = second.core->load_checkpoint({.directory = folder(), .tag = "global_step2"});
  ASSERT_FALSE(damaged.has_value());
  EXPECT_EQ(damaged.error().code, ErrorCode::Corrupt);
  EXPECT_NE(error_of(damaged).find("rank0.safetensors"), std::string::npos) << error_of(damaged);
  EXPECT_EQ(second.core->state_of_step(), StepState::Unfilled);
  EXPECT_NE(error_of(second.core->begin_forward(1)).find("no weights"), std::string::npos);
  load(second, "global_step1");
  EXPECT_EQ(second.digest(), digest);
  const auto older = second.core->load_checkpoint({.directory = folder()});  // no tag: a whole one
  ASSERT_EQ(error_of(older), "");
  EXPECT_EQ(older->tag, "global_step1");
  EXPECT_EQ(second.digest(), digest);
}

TEST_F(StepCoreCheckpoints, ASaveThatFailsCostsTheTrainingNothing) {
  Driver plain({});
  plain.fill();
  for (std::uint64_t step = 0; step < 3; ++step) plain.step(step);
  Driver other({});
  other.fill();
  other.step(8);
  ASSERT_EQ(error_of(other.core->save_checkpoint(request("theirs"))), "");
  ASSERT_EQ(error_of(other.core->open_checkpoints({.directory = directory_.path() + "/else"})), "");
  Driver saving({});
  saving.fill();
  EXPECT_NE(error_of(saving.core->save_checkpoint({})).find("got no folder"), std::string::npos);
  saving.step(0);
  const auto busy = saving.core->save_checkpoint({.directory = directory_.path() + "/else"});
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, ErrorCode::Busy);
  saving.step(1);
  const auto refused = saving.core->save_checkpoint(request("theirs"));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Invalid) << error_of(refused);
  EXPECT_EQ(saving.core->state_of_step(), StepState::Ready);
  ASSERT_EQ(error_of(saving.core->save_checkpoint(request("ours"))), "");
  saving.step(2);
  EXPECT_EQ(saving.digest(), plain.digest());
  Driver theirs({});
  EXPECT_EQ(load(theirs, "theirs").manifest.state.step, 1u);
}

TEST_F(StepCoreCheckpoints, ATiersFaultEndsTheRunAndTheFormerOneStays) {
  Driver driver({});
  driver.fill();
  driver.step(0);
  ASSERT_EQ(error_of(driver.core->save_checkpoint(request())), "");
  driver.step(1);
  ASSERT_EQ(error_of(driver.core->finish_update()), "");
  driver.damage_swap_files();
  const auto ended = driver.core->save_checkpoint(request());
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code, ErrorCode::Corrupt) << error_of(ended);
  EXPECT_EQ(driver.core->state_of_step(), StepState::Failed);
  Driver second({});
  EXPECT_EQ(load(second).tag, "global_step1");
  const auto names = std::filesystem::directory_iterator(folder());
  for (const auto& each : names) {
    EXPECT_EQ(each.path().filename().string().find(".tmp"), std::string::npos) << each.path();
  }
}

}  // namespace
}  // namespace artesian::zero3
