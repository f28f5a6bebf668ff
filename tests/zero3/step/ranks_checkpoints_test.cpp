// Proves that ranks which save and load together reach the same verdict if only rank 0 knows the
// reason. A late checkpoint blocks the next save and the next load on all of them, and none waits
// for another. Frozen parameters are written once, as by one rank. If a rank has no room for its
// state, all ranks return the error.
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/durable_folder.h"
#include "base/log.h"
#include "tests/support/diverted_files.h"
#include "tests/support/local_group.h"
#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

using test_support::LocalRanks;

/// Syncs of folders wait while it is closed.
class Gate {
 public:
  std::atomic<bool> full = false;  // no file is opened
  void shut(bool is) {
    const std::lock_guard lock(mutex_);
    shut_ = is;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !shut_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
};

class LateFolder final : public Folder {
 public:
  LateFolder(std::unique_ptr<Folder> folder, Gate& gate) : real_(std::move(folder)), gate_(gate) {}
  const std::string& path() const noexcept override { return real_->path(); }
  Result<std::unique_ptr<File>> open(const std::string& name,
                                     const OpenOptions& options) noexcept override {
    if (gate_.full) return make_error(ErrorCode::NoSpace, "no room for " + name);
    return real_->open(name, options);
  }
  Result<std::unique_ptr<Folder>> open_folder(const std::string& name) noexcept override {
    ARTESIAN_TRY(folder, real_->open_folder(name));
    return std::unique_ptr<Folder>(std::make_unique<LateFolder>(std::move(folder), gate_));
  }
  Result<void> make_folder(const std::string& name) noexcept override {
    return real_->make_folder(name);
  }
  Result<void> rename(const std::string& from, Folder& target, const std::string& to,
                      Existing existing) noexcept override {
    return real_->rename(from, *static_cast<LateFolder&>(target).real_, to, existing);
  }
  Result<void> link(const std::string& from, Folder& target,
                    const std::string& to) noexcept override {
    return real_->link(from, *static_cast<LateFolder&>(target).real_, to);
  }
  Result<void> remove(const std::string& name) noexcept override { return real_->remove(name); }
  Result<void> remove_folder(const std::string& name) noexcept override {
    return real_->remove_folder(name);
  }
  Result<void> sync() noexcept override {
    gate_.pass();
    return real_->sync();
  }
  Result<std::vector<std::string>> list() noexcept override { return real_->list(); }
  Result<FileStatus> status(const std::string& name) noexcept override {
    return real_->status(name);
  }
  Result<std::uint64_t> free_bytes() noexcept override { return real_->free_bytes(); }

 private:
  const std::unique_ptr<Folder> real_;
  Gate& gate_;
};

class LateFiles final : public test_support::DivertedFiles {
 public:
  Result<std::unique_ptr<Folder>> open_folder(const std::string& path) noexcept override {
    ARTESIAN_TRY(folder, open_system_folder(path));
    return std::unique_ptr<Folder>(std::make_unique<LateFolder>(std::move(folder), gate));
  }
  Gate gate;
};

/// Its files are larger than the disk.
class FullFiles final : public test_support::DivertedFiles {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    static_cast<void>(options);
    return make_error(ErrorCode::NoSpace, "no room left for " + path);
  }
};

class RanksCheckpoints : public testing::Test {
 protected:
  RanksCheckpoints() {
    set_log_sink([](LogLevel, std::string_view) {});  // warnings of what was late
  }
  ~RanksCheckpoints() override { set_log_sink({}); }

  std::string folder() const { return directory_.path() + "/checkpoints"; }
  static Case in_memory() {
    return {.home = Offload::Cpu, .host_more = 1 << 20, .groups = decay_and_none()};
  }

  /// Rank `of` uses `late`, others the kernel's files.
  static Driver driver_of(comm::Group& group, LateFiles* late = nullptr, std::uint32_t of = 0) {
    return Driver(
        in_memory(), partly_frozen_model(), [](Config&) {}, group.rank() == of ? late : nullptr,
        &group);
  }

  const test_support::TemporaryDirectory directory_;
};

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  EXPECT_FALSE(result.has_value());
  return result.has_value() ? ErrorCode{} : result.error().code;
}

/// Begins a save whose end rank 0 does not see.
void begin_late_save(StepCore& core, LateFiles& late, std::uint32_t rank) {
  ASSERT_EQ(error_of(core.begin_checkpoint({})), "");
  ASSERT_EQ(error_of(core.finish_update()), "");
  if (rank == 0) late.gate.shut(true);
  ASSERT_EQ(error_of(core.commit_checkpoint()), "");
  EXPECT_EQ(code_of(core.finish_checkpoint(1.0)), ErrorCode::Timeout);
}

TEST_F(RanksCheckpoints, OneThatIsLateHindersAllRanksAlike) {
  LateFiles late;
  LocalRanks ranks(3, {.deadline_seconds = 20.0});
  run_ranks(ranks, [&](comm::Group& group) {
    Driver driver = driver_of(group, &late);
    StepCore& core = *driver.core;
    driver.fill();
    ASSERT_EQ(error_of(core.open_checkpoints({.directory = folder(), .commit_seconds = 1.0})), "");
    driver.step(0);
    ASSERT_EQ(error_of(core.save_checkpoint({})), "");
    driver.step(1);
    ASSERT_NO_FATAL_FAILURE(begin_late_save(core, late, group.rank()));
    driver.step(2);
    EXPECT_EQ(code_of(core.save_checkpoint({})), ErrorCode::Busy);
    EXPECT_EQ(code_of(core.load_checkpoint({.directory = folder()})), ErrorCode::Busy);
    driver.step(3);  // the training continues
    if (group.rank() == 0) late.gate.shut(false);
    auto loaded = core.load_checkpoint({.directory = folder()});
    while (!loaded.has_value() && loaded.error().code == ErrorCode::Busy) {
      loaded = core.load_checkpoint({.directory = folder()});
    }
    ASSERT_EQ(error_of(loaded), "");
    EXPECT_EQ(loaded->manifest.state.step, 2u);
    driver.step(2);
    ASSERT_EQ(error_of(core.save_checkpoint({})), "");
  });
}

TEST_F(RanksCheckpoints, AnotherFolderIsOpenedByAllOrNone) {
  LateFiles late;
  LocalRanks ranks(2, {.deadline_seconds = 20.0});
  run_ranks(ranks, [&](comm::Group& group) {
    Driver driver = driver_of(group, &late);
    StepCore& core = *driver.core;
    driver.fill();
    ASSERT_EQ(error_of(core.open_checkpoints({.directory = folder(), .commit_seconds = 1.0})), "");
    driver.step(0);
    ASSERT_NO_FATAL_FAILURE(begin_late_save(core, late, group.rank()));
    const std::string other = directory_.path() + "/other";
    EXPECT_EQ(code_of(core.open_checkpoints({.directory = other})), ErrorCode::Busy);
    if (group.rank() == 0) late.gate.shut(false);
    ASSERT_EQ(error_of(core.open_checkpoints({.directory = other})), "");
    ASSERT_EQ(error_of(core.save_checkpoint({})), "");
  });
}

TEST_F(RanksCheckpoints, WhatIsFrozenIsWrittenOnce) {
  const auto frozen = [&](const std::string& tag) {
    struct stat file {};
    EXPECT_EQ(stat((folder() + "/" + tag + "/frozen.safetensors").c_str(), &file), 0);
    return file;
  };
  std::string digest;
  LocalRanks ranks(3, {.deadline_seconds = 20.0});
  run_ranks(ranks, [&](comm::Group& group) {
    Driver driver = driver_of(group);
    driver.fill();
    for (const char* tag : {"a", "b", "c"}) {
      driver.step(0);
      const auto saved = driver.core->save_checkpoint({.directory = folder(), .tag = tag});
      ASSERT_EQ(error_of(saved), "");
    }
    const std::string own = driver.digest();
    if (group.rank() == 0) digest = own;
  });
  EXPECT_EQ(frozen("a").st_nlink, 3u);
  EXPECT_EQ(frozen("a").st_ino, frozen("c").st_ino);
  Driver alone(in_memory(), partly_frozen_model());
  ASSERT_EQ(error_of(alone.core->load_checkpoint({.directory = folder(), .tag = "c"})), "");
  EXPECT_EQ(alone.digest(), digest);
}

/// Rank 0 waits for the frozen shares of a rank whose own part has failed.
TEST_F(RanksCheckpoints, ARankWithoutRoomForItsPartFailsTheSaveOfAll) {
  LateFiles late;
  LocalRanks ranks(3, {.deadline_seconds = 20.0});
  std::string digest;
  run_ranks(ranks, [&](comm::Group& group) {
    Driver driver = driver_of(group, &late, 1);
    driver.fill();
    driver.step(0);
    if (group.rank() == 1) late.gate.full = true;
    const auto refused = driver.core->save_checkpoint({.directory = folder(), .tag = "a"});
    EXPECT_EQ(code_of(refused), ErrorCode::NoSpace);
    late.gate.full = false;
    driver.step(1);  // the training continues
    ASSERT_EQ(error_of(driver.core->save_checkpoint({.directory = folder(), .tag = "b"})), "");
    const std::string own = driver.digest();
    if (group.rank() == 0) digest = own;
  });
  Driver alone(in_memory(), partly_frozen_model());
  ASSERT_EQ(error_of(alone.core->load_checkpoint({.directory = folder()})), "");
  EXPECT_EQ(alone.digest(), digest);
}

TEST_F(RanksCheckpoints, ARankWithoutRoomForItsStateEndsAll) {
  FullFiles full;
  LocalRanks ranks(3, {.deadline_seconds = 20.0});
  std::vector<std::string> errors(3);
  run_ranks(ranks, [&](comm::Group& group) {
    const SmallModel model = partly_frozen_model();
    const ModelShape shape{model.parameters, model.stages};
    SerialExecutor executor;
    const Config config = config_on_nvme(directory_.path());
    StepCoreOptions options = options_on_nvme(shape, config);
    options.budgets.host += 1 << 20;
    options.files = group.rank() == 1 ? &full : nullptr;
    options.groups = decay_and_none();
    options.group = &group;
    const auto made = StepCore::create(shape, config, options, executor);
    errors[group.rank()] = error_of(made);
    if (made.has_value()) static_cast<void>((*made)->close().has_value());
  });
  EXPECT_NE(errors[1].find("no room left"), std::string::npos) << errors[1];
  for (const int other : {0, 2}) {
    EXPECT_EQ(errors[static_cast<std::size_t>(other)].find("rank 1: "), 0u)
        << errors[static_cast<std::size_t>(other)];
  }
}

}  // namespace
}  // namespace artesian::zero3
