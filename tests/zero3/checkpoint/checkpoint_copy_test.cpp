// Proves that a checkpoint which is copied while the update passes equals one that is read between
// two steps, byte for byte, over dtypes, placements, groups, frozen parameters and outcomes of the
// step before. The step that runs meanwhile keeps its bits, and the update's state is not read for
// the checkpoint. If the n-th operation on its folder fails or never answers, for all n, with a
// staging ring of 1, 2 and 4 items, the training loses nothing and the former checkpoint no byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <thread>

#include "base/keep_for_ever.h"
#include "base/log.h"
#include "base/safetensors_header.h"
#include "tests/support/crash_files.h"
#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

using test_support::CrashFiles;

class CheckpointCopy : public testing::Test {
 protected:
  CheckpointCopy() {
    set_log_sink([](LogLevel, std::string_view) {});  // steps that are skipped, saves that fail
  }
  ~CheckpointCopy() override { set_log_sink({}); }

  std::string folder(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string data(const std::string& name, const std::string& file = "rank0.safetensors") const {
    return directory_.read(name + "/global_step3/" + file);
  }

  const test_support::TemporaryDirectory directory_;
};

struct Before {
  const char* what;
  Case run;
  double scale = 1.0;  // of the gradients of the step that is saved
  std::function<void(Driver&)> act = [](Driver&) {};
};

/// Returns all outcomes that the saved step may have had, in any dtype.
std::vector<Before> befores(DType dtype) {
  const auto made = [&](Case run) {
    run.dtype = dtype;
    return run;
  };
  return {{"updated under the next forward", made({.clipping = 0.001, .speculative = false})},
          {"taken back, so under the next forward", made({.clipping = 0.001})},
          {"under backward", made({.clipping = 0})},
          {"skipped", made({}), std::numeric_limits<double>::infinity()},
          {"in host memory", made({.clipping = 0.001, .home = Offload::Cpu, .host_more = 1 << 20})},
          {"in memory, in part", made({.host_more = 60'000, .sub_group = 4096})},
          {"in device memory", made({.home = Offload::None, .sub_group = 1'000'000})},
          {"with whole master weights", made({.speculative = false, .split_master = false})},
          {"completed before", made({.speculative = false}), 1.0,
           [](Driver& d) { EXPECT_EQ(error_of(d.core->finish_update()), ""); }}};
}

TEST_F(CheckpointCopy, IsWhatReadingBetweenTwoStepsGives) {
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    for (const Before& before : befores(dtype)) {
      Driver drained(before.run);
      drained.fill();
      drained.step(0);
      drained.step(1);
      drained.step(2, before.scale);
      ASSERT_EQ(error_of(drained.core->finish_update()), "");
      ASSERT_EQ(error_of(drained.core->save_checkpoint({.directory = folder("drained")})), "");
      drained.step(3);
      drained.step(4);
      for (const bool expects : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + before.what +
                     (expects ? ", expected" : ""));
        Driver copied(before.run);
        copied.fill();
        copied.step(0);
        copied.step(1);
        const SaveRequest request{.directory = folder("copied")};
        if (expects) {
          ASSERT_EQ(error_of(copied.core->expect_checkpoint(request)), "");
        }
        copied.step(2, before.scale);
        before.act(copied);
        ASSERT_EQ(error_of(copied.core->begin_checkpoint(request)), "");
        copied.step(3);  // none of this may be in the checkpoint
        ASSERT_EQ(error_of(copied.core->commit_checkpoint()), "");
        const auto saved = copied.core->finish_checkpoint(60.0);
        ASSERT_EQ(error_of(saved), "");
        ASSERT_TRUE(saved->has_value());
        EXPECT_EQ((*saved)->bytes_written, copied.core->checkpoints().data_bytes());
        EXPECT_EQ(data("copied"), data("drained"));
        copied.step(4);
        EXPECT_EQ(copied.norms, drained.norms);
        EXPECT_EQ(copied.digest(), drained.digest());
        Driver second(before.run);
        ASSERT_EQ(error_of(second.core->load_checkpoint({.directory = folder("copied")})), "");
        second.step(3);
        second.step(4);
        EXPECT_EQ(second.digest(), drained.digest());
        if (HasFailure()) return;
        std::filesystem::remove_all(folder("copied"));
      }
      std::filesystem::remove_all(folder("drained"));
    }
  }
}

TEST_F(CheckpointCopy, FrozenParametersAndGroupsAreInIt) {
  const SmallModel model = partly_frozen_model();
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    Case run{.dtype = dtype};
    run.groups = decay_and_none();
    Driver drained(run, model);
    Driver copied(run, model);
    for (Driver* driver : {&drained, &copied}) {
      driver->fill();
      for (std::uint64_t step = 0; step < 3; ++step) driver->step(step);
    }
    ASSERT_EQ(error_of(drained.core->finish_update()), "");
    ASSERT_EQ(error_of(drained.core->save_checkpoint({.directory = folder("drained")})), "");
    ASSERT_EQ(error_of(copied.core->begin_checkpoint({.directory = folder("copied")})), "");
    copied.step(3);
    ASSERT_EQ(error_of(copied.core->commit_checkpoint()), "");
    ASSERT_EQ(error_of(copied.core->finish_checkpoint(60.0)), "");
    EXPECT_EQ(data("copied"), data("drained"));
    EXPECT_EQ(data("copied", "frozen.safetensors"), data("drained", "frozen.safetensors"));
    drained.step(3);
    EXPECT_EQ(copied.digest(), drained.digest());
    std::filesystem::remove_all(folder("drained"));
    std::filesystem::remove_all(folder("copied"));
  }
}

TEST_F(CheckpointCopy, SaysHowFarItIs) {
  Case run{.clipping = 0.001, .speculative = false};
  run.groups = decay_and_none();
  Driver driver(run, partly_frozen_model());
  driver.fill();
  driver.step(0);
  std::vector<std::uint64_t> said;
  std::uint64_t all = 0;
  const auto listen = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_TRUE(all == 0 || all == total);
    all = total;
    said.push_back(done);
  };
  ASSERT_EQ(
      error_of(driver.core->begin_checkpoint({.directory = folder("saved"), .progress = listen})),
      "");
  driver.step(1);
  ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
  ASSERT_EQ(error_of(driver.core->finish_checkpoint(60.0)), "");
  EXPECT_EQ(all, driver.core->checkpoints().data_bytes());
  ASSERT_GT(said.size(), 3u);
  EXPECT_TRUE(std::is_sorted(said.begin(), said.end()));
  EXPECT_EQ(said.back(), all);
  said.clear();
  ASSERT_EQ(error_of(driver.core->begin_checkpoint({.directory = folder("saved")})), "");
  driver.step(2);
  ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
  ASSERT_EQ(error_of(driver.core->finish_checkpoint(60.0)), "");
  EXPECT_TRUE(said.empty()) << "of another save";
}

TEST_F(CheckpointCopy, ReadsNothingOfWhatTheUpdateReads) {
  const Case under_forward{.clipping = 0.001, .speculative = false};
  const Case under_backward{.clipping = 0};
  for (const Case& run : {under_forward, under_backward}) {
    std::vector<std::uint64_t> bytes;
    for (const int saves : {0, 1, 2}) {
      Driver driver(run);
      driver.fill();
      for (std::uint64_t step = 0; step < 2; ++step) driver.step(step);
      const SaveRequest request{.directory = folder("a")};
      if (saves == 2) {
        ASSERT_EQ(error_of(driver.core->expect_checkpoint(request)), "");
      }
      driver.step(2);
      if (saves != 0) {
        ASSERT_EQ(error_of(driver.core->begin_checkpoint(request)), "");
      }
      const StepResult last = driver.step(3);
      EXPECT_EQ(driver.core->take_completed()->step, 3u);
      EXPECT_EQ(last.step, 4u);
      ASSERT_EQ(error_of(driver.core->finish_update()), "");
      if (saves != 0) {
        ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
        ASSERT_EQ(error_of(driver.core->finish_checkpoint(60.0)), "");
      }
      bytes.push_back(driver.core->state().store().statistics().bytes_read);
      std::filesystem::remove_all(folder("a"));
    }
    EXPECT_EQ(bytes[2], bytes[0]);
    if (run.clipping == 0) {
      EXPECT_GT(bytes[1], bytes[0]);
    } else {
      EXPECT_EQ(bytes[1], bytes[0]);
    }
  }
}

TEST_F(CheckpointCopy, WhatIsExpectedAndDoesNotComeIsGivenUp) {
  const Case run{.clipping = 0};
  Driver driver(run);
  driver.fill();
  driver.step(0);
  const SaveRequest request{.directory = folder("a")};
  ASSERT_EQ(error_of(driver.core->expect_checkpoint(request)), "");
  driver.step(1);
  driver.step(2);  // no save has begun
  const auto given_up = driver.core->finish_checkpoint(60.0);
  ASSERT_FALSE(given_up.has_value());
  EXPECT_EQ(given_up.error().code, ErrorCode::Cancelled) << error_of(given_up);
  // A step that is abandoned and repeated; weights that are written after it.
  ASSERT_EQ(error_of(driver.core->expect_checkpoint(request)), "");
  driver.micro_batch(70);
  driver.micro_batch(71);
  ASSERT_EQ(error_of(driver.core->abandon_step()), "");
  driver.step(3);
  ASSERT_EQ(error_of(driver.core->write_state(1, StateKind::Master,
                                              [](std::uint64_t, std::span<float> values) {
                                                std::fill(values.begin(), values.end(), 0.5f);
                                              })),
            "");
  const auto saved = driver.core->save_checkpoint(request);
  ASSERT_EQ(error_of(saved), "");
  EXPECT_EQ(saved->tag, "global_step4");
  driver.step(4);
  Driver second(run);
  ASSERT_EQ(error_of(second.core->load_checkpoint({.directory = folder("a")})), "");
  EXPECT_EQ(second.read(1), std::vector<float>(second.read(1).size(), 0.5f));
  second.step(4);
  EXPECT_EQ(second.digest(), driver.digest());
}

TEST_F(CheckpointCopy, BuffersAreThoseThatWereExpected) {
  Driver driver({});
  driver.fill();
  driver.step(0);
  const std::string bytes(5000, 'b');
  const auto with = [&](const std::string& name, std::size_t size) {
    SaveRequest request{.directory = folder("a")};
    request.buffers.push_back(
        {{name, find_safetensors_type("U8"), {5000}}, std::as_bytes(std::span(bytes)).first(size)});
    return request;
  };
  const SaveRequest others[] = {
      {.directory = folder("a")}, with("other", 5000), with("mean", 4999)};
  for (const SaveRequest& other : others) {
    ASSERT_EQ(error_of(driver.core->expect_checkpoint(with("mean", 5000))), "");
    driver.step(1);
    const auto refused = driver.core->save_checkpoint(other);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Invalid) << error_of(refused);
  }
  ASSERT_EQ(error_of(driver.core->expect_checkpoint(with("mean", 5000))), "");
  driver.step(2);
  ASSERT_EQ(error_of(driver.core->save_checkpoint(with("mean", 5000))), "");
  Driver second({});
  const auto loaded = second.core->load_checkpoint({.directory = folder("a")});
  ASSERT_EQ(error_of(loaded), "");
  ASSERT_EQ(loaded->buffers.size(), 1u);
  EXPECT_EQ(loaded->buffers[0].bytes, bytes);
  EXPECT_EQ(second.digest(), driver.digest());
}

TEST_F(CheckpointCopy, OneAtATimeAndInOrder) {
  Driver driver({});
  driver.fill();
  driver.step(0);
  EXPECT_NE(error_of(driver.core->commit_checkpoint()).find("begin_checkpoint() first"),
            std::string::npos);
  const auto none = driver.core->finish_checkpoint(0.0);
  ASSERT_EQ(error_of(none), "");
  EXPECT_FALSE(none->has_value());
  const SaveRequest request{.directory = folder("a")};
  ASSERT_EQ(error_of(driver.core->expect_checkpoint(request)), "");
  EXPECT_NE(error_of(driver.core->commit_checkpoint()).find("begin_checkpoint() first"),
            std::string::npos);
  ASSERT_EQ(error_of(driver.core->begin_checkpoint(request)), "");
  const std::string busy = "call finish_checkpoint() first";
  EXPECT_NE(error_of(driver.core->begin_checkpoint(request)).find(busy), std::string::npos);
  EXPECT_NE(error_of(driver.core->save_checkpoint(request)).find(busy), std::string::npos);
  EXPECT_NE(error_of(driver.core->load_checkpoint({.directory = folder("a")})).find(busy),
            std::string::npos);
  EXPECT_NE(error_of(driver.core->open_checkpoints({.directory = folder("b")})).find(busy),
            std::string::npos);
  driver.micro_batch(7);
  EXPECT_NE(error_of(driver.core->begin_checkpoint(request)).find("of whole ones"),
            std::string::npos);
  ASSERT_EQ(error_of(driver.core->abandon_step()), "");
  SavedTrainer trainer;
  trainer.next_sample = 77;
  trainer.order = "sequential";
  ASSERT_EQ(error_of(driver.core->commit_checkpoint(trainer)), "");
  const auto saved = driver.core->finish_checkpoint(60.0);
  ASSERT_EQ(error_of(saved), "");
  EXPECT_EQ((*saved)->step, 1u);
  Driver second({});
  const auto loaded = second.core->load_checkpoint({.directory = folder("a")});
  ASSERT_EQ(error_of(loaded), "");
  EXPECT_EQ(loaded->manifest.trainer->next_sample, 77u);
}

TEST_F(CheckpointCopy, OneThatIsNotCommittedLeavesNothing) {
  for (const int steps : {0, 1}) {
    {
      Driver driver({});
      driver.fill();
      driver.step(0);
      ASSERT_EQ(error_of(driver.core->begin_checkpoint({.directory = folder("a")})), "");
      if (steps != 0) driver.step(1);
    }
    for (const auto& each : std::filesystem::directory_iterator(folder("a"))) {
      const std::string name = each.path().filename();
      EXPECT_TRUE(name == ".lock" || name == "zero_to_fp32.py") << name;
    }
  }
}

TEST_F(CheckpointCopy, TheEndWaitsForOneThatWasOnlyAskedAbout) {
  {
    Driver driver({});
    driver.fill();
    driver.step(0);
    ASSERT_EQ(error_of(driver.core->begin_checkpoint({.directory = folder("a")})), "");
    ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
    const auto asked = driver.core->finish_checkpoint(0.0);  // rarely finished by now
    EXPECT_TRUE(asked.has_value() || asked.error().code == ErrorCode::Timeout) << error_of(asked);
  }
  EXPECT_EQ(directory_.read("a/latest"), "global_step1");
}

TEST_F(CheckpointCopy, ATiersFaultOnTheWayEndsTheRunAndTheSave) {
  Driver driver({.clipping = 0.001, .speculative = false});
  driver.fill();
  driver.step(0);
  ASSERT_EQ(error_of(driver.core->save_checkpoint({.directory = folder("a")})), "");
  driver.step(1);
  ASSERT_EQ(error_of(driver.core->begin_checkpoint({.directory = folder("a")})), "");
  driver.damage_swap_files();
  const auto ended = driver.core->finish_update();
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code, ErrorCode::Corrupt) << error_of(ended);
  ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
  const auto saved = driver.core->finish_checkpoint(60.0);
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().code, ErrorCode::Corrupt) << error_of(saved);
  Driver second({});
  const auto loaded = second.core->load_checkpoint({.directory = folder("a")});
  ASSERT_EQ(error_of(loaded), "");
  EXPECT_EQ(loaded->tag, "global_step1");
}

/// Swap files are the kernel's; files below "/disk" are of a CrashFiles.
class TwoDisks final : public FileSystem {
 public:
  explicit TwoDisks(CrashFiles& checkpoints) : checkpoints_(checkpoints) {}
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    return of(path).open(path, options);
  }
  Result<void> make_directory(const std::string& path) noexcept override {
    return of(path).make_directory(path);
  }
  Result<void> remove(const std::string& path) noexcept override { return of(path).remove(path); }
  Result<void> remove_directory(const std::string& path) noexcept override {
    return of(path).remove_directory(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) noexcept override {
    return of(from).rename(from, to);
  }
  Result<void> sync_directory(const std::string& path) noexcept override {
    return of(path).sync_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) noexcept override {
    return of(path).list(path);
  }
  Result<std::uint64_t> free_bytes(const std::string& path) noexcept override {
    return of(path).free_bytes(path);
  }
  bool exists(const std::string& path) noexcept override { return of(path).exists(path); }
  Result<FileStatus> status(const std::string& path) noexcept override {
    return of(path).status(path);
  }
  Result<std::unique_ptr<Folder>> open_folder(const std::string& path) noexcept override {
    return of(path).open_folder(path);
  }

 private:
  FileSystem& of(const std::string& path) {
    const bool theirs = path == "/" || path == "/disk" || path.starts_with("/disk/");
    return theirs ? checkpoints_ : system_files();
  }
  CrashFiles& checkpoints_;
};

const std::string on_disk = "/disk/checkpoints";

CheckpointPlace place_on(CrashFiles& files, double stall_seconds, double commit_seconds) {
  CheckpointPlace place{
      .directory = on_disk, .stall_seconds = stall_seconds, .commit_seconds = commit_seconds};
  place.make_engine = [&files]() -> Result<std::unique_ptr<aio::Engine>> {
    return std::unique_ptr<aio::Engine>(
        std::make_unique<test_support::CrashEngine>(aio::EngineOptions{.queue_depth = 4}, files));
  };
  return place;
}

/// A training with a ring of `items` items that saves to a disk that may fail.
struct Faulty {
  Faulty(CrashFiles& files, std::uint64_t ring, double stall_seconds, double commit_seconds = 600)
      : disks(files),
        driver(
            {.clipping = 0.001, .speculative = false, .host_more = (ring - 1) * item_bytes},
            make_small_model(24, 16, 1),
            [&](Config& config) { config.zero.offload_optimizer.buffer_count = ring; }, &disks) {
    EXPECT_EQ(driver.core->state().ring().count(), ring);
    driver.fill();
    driver.step(0);
    EXPECT_EQ(
        error_of(driver.core->open_checkpoints(place_on(files, stall_seconds, commit_seconds))),
        "");
    EXPECT_EQ(error_of(driver.core->save_checkpoint({})), "");
    driver.step(1);
  }
  static constexpr std::uint64_t item_bytes = 48 << 10;  // at least, of a sub-group's

  /// Saves step 2 beside step 3, and returns the outcome.
  Result<std::optional<SavedCheckpoint>> save(double seconds) {
    EXPECT_EQ(error_of(driver.core->begin_checkpoint({.client = {{"a", "x"}}})), "");
    driver.step(2);
    EXPECT_EQ(error_of(driver.core->commit_checkpoint()), "");
    return driver.core->finish_checkpoint(seconds);
  }
  /// Waits until a hung disk is released.
  void wait_for_disk() {
    Result<std::optional<SavedCheckpoint>> ended = std::optional<SavedCheckpoint>();
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(driver.core->finish_checkpoint(60.0).has_value());
      ASSERT_EQ(error_of(driver.core->begin_checkpoint({.tag = "probe"})), "");
      ASSERT_EQ(error_of(driver.core->commit_checkpoint()), "");
      ended = driver.core->finish_checkpoint(60.0);
    } while (!ended.has_value() && ended.error().code == ErrorCode::Busy);
    EXPECT_EQ(error_of(ended), "");
  }
  /// Expects `latest` to have all bits of step 1, or of step 2.
  void expect_loads(CrashFiles& files, bool saved) const {
    const auto reader = CheckpointReader::open(files, on_disk, "");
    ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
    const std::uint64_t step = (*reader)->manifest().state.step;
    ASSERT_TRUE(step == 2 || (step == 1 && !saved)) << step;
    const auto faults = (*reader)->verify([](std::uint64_t, std::uint64_t) {});
    ASSERT_TRUE(faults.has_value()) << faults.error().to_string();
    EXPECT_TRUE(faults->empty());
  }

  TwoDisks disks;
  Driver driver;
};

std::string digest_without_saves(std::uint64_t steps) {
  Driver plain({.clipping = 0.001, .speculative = false}, make_small_model(24, 16, 1));
  plain.fill();
  for (std::uint64_t step = 0; step < steps; ++step) plain.step(step);
  return plain.digest();
}

TEST_F(CheckpointCopy, TheNthOperationFailingCostsTheSaveAlone) {
  const std::string digest = digest_without_saves(5);
  for (const std::uint64_t ring : {1, 2, 4}) {
    for (const int system_error : {EIO, ENOSPC}) {
      std::uint64_t failed = 0;
      for (std::uint64_t operation = 0;; ++operation) {
        CrashFiles files;
        Faulty training(files, ring, 60.0);
        const std::uint64_t before = files.operations();
        files.plan(operation, CrashFiles::Fault::FailsFromThenOn, system_error);
        const auto saved = training.save(60.0);
        const bool met = files.operations() - before > operation;
        files.forget_plan();
        if (!saved.has_value()) {
          ++failed;
          EXPECT_EQ(saved.error().system_error, system_error) << error_of(saved);
        }
        training.expect_loads(files, saved.has_value());
        training.driver.step(3);
        ASSERT_EQ(error_of(training.driver.core->save_checkpoint({})), "");
        training.driver.step(4);
        EXPECT_EQ(training.driver.digest(), digest);
        if (HasFailure()) FAIL() << "ring of " << ring << ", operation " << operation;
        if (!met) break;
      }
      EXPECT_GT(failed, 30u);
    }
  }
}

TEST_F(CheckpointCopy, TheNthOperationNeverAnsweringCostsTheSaveAlone) {
  const std::string digest = digest_without_saves(4);
  for (const std::uint64_t ring : {1, 2, 4}) {
    std::uint64_t failed = 0;
    for (std::uint64_t operation = 0;; ++operation) {
      // A thread that hangs uses these, so they must outlive it.
      auto kept = std::make_unique<CrashFiles>();
      CrashFiles& files = *kept;
      keep_for_ever(std::move(kept));
      Faulty training(files, ring, 0.05);
      const std::uint64_t before = files.operations();
      files.plan(operation, CrashFiles::Fault::NeverAnswers);
      const auto begin = std::chrono::steady_clock::now();
      const auto saved = training.save(0.05);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
      const bool met = files.operations() - before > operation;
      if (!saved.has_value()) {
        ++failed;
        EXPECT_EQ(saved.error().code, ErrorCode::Timeout) << error_of(saved);
      }
      if (!met) files.forget_plan();
      training.expect_loads(files, saved.has_value());  // while it hangs
      training.driver.step(3);
      EXPECT_EQ(training.driver.digest(), digest);
      files.release();
      training.wait_for_disk();
      if (HasFailure()) FAIL() << "ring of " << ring << ", operation " << operation;
      if (!met) break;
    }
    EXPECT_GT(failed, 30u);
  }
}

TEST_F(CheckpointCopy, ALoadAfterASaveThatOutlivedItsTimeIsBusy) {
  auto kept = std::make_unique<CrashFiles>();  // a hung thread uses it
  CrashFiles& files = *kept;
  keep_for_ever(std::move(kept));
  Faulty training(files, 1, 60.0, 0.05);
  StepCore& core = *training.driver.core;
  ASSERT_EQ(error_of(core.begin_checkpoint({.tag = "late"})), "");
  ASSERT_EQ(error_of(core.finish_update()), "");
  files.plan(0, CrashFiles::Fault::NeverAnswers);  // the sync, for example
  ASSERT_EQ(error_of(core.commit_checkpoint()), "");
  const auto late = core.finish_checkpoint(0.05);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::Timeout) << error_of(late);
  const std::string digest = training.driver.digest();
  const auto busy = core.load_checkpoint({.directory = on_disk});
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, ErrorCode::Busy) << error_of(busy);
  EXPECT_EQ(training.driver.digest(), digest);
  files.release();
  auto loaded = core.load_checkpoint({.directory = on_disk});
  while (!loaded.has_value() && loaded.error().code == ErrorCode::Busy) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    loaded = core.load_checkpoint({.directory = on_disk});
  }
  ASSERT_EQ(error_of(loaded), "");
  EXPECT_EQ(loaded->manifest.state.step, 1u);
  ASSERT_EQ(error_of(core.save_checkpoint({})), "");
}

}  // namespace
}  // namespace artesian::zero3
