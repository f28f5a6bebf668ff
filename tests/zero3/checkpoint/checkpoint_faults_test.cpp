// Proves that if the n-th operation of a save, or of an opening, fails or never answers, for all n,
// at most that save is lost. The previous checkpoint loads with all its bits, buffers are returned
// or given up, the saver works again once the disk answers, and a later start leaves nothing
// behind.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/keep_for_ever.h"
#include "base/log.h"
#include "tests/zero3/checkpoint/made_up_checkpoint.h"

namespace artesian::zero3 {
namespace {

using test_support::CrashFiles;

constexpr std::uint64_t numel = 700;

class CheckpointFaults : public testing::Test {
 protected:
  CheckpointFaults() {
    set_log_sink([](LogLevel, std::string_view) {});  // warnings of what could not be removed
  }
  ~CheckpointFaults() override { set_log_sink({}); }

  /// Calls again while the outcome is only that the disk was late, as a busy machine's disk may be
  /// for a short patience.
  template <typename Call>
  static auto in_time(const Call& call) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      auto outcome = call();
      if (outcome.has_value() || std::chrono::steady_clock::now() > end) return outcome;
      const ErrorCode code = outcome.error().code;
      if (code != ErrorCode::Timeout && code != ErrorCode::Busy) return outcome;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  static Result<SavedCheckpoint> save_in_time(CheckpointSaver& saver, const std::string& tag,
                                              std::uint64_t step) {
    return in_time([&] {
      LentBuffers buffers;
      auto saved = training().save(saver, tag, step, buffers);
      EXPECT_EQ(buffers.out, buffers.given_up);
      if (!saved.has_value()) (void)saver.finish(Deadline::after_seconds(60)).has_value();
      return saved;
    });
  }

  /// Two checkpoints; the next save prunes one.
  static std::unique_ptr<CheckpointSaver> two_saved(CrashFiles& files,
                                                    double stall_seconds = 60.0) {
    SaverOptions options = options_on(files, 2);
    options.stall_seconds = stall_seconds;
    options.reserve_bytes = 1 << 16;
    auto saver = in_time([&] { return CheckpointSaver::open(files, options); });
    EXPECT_TRUE(saver.has_value());
    EXPECT_TRUE(save_in_time(**saver, "a", 1).has_value());
    EXPECT_TRUE(save_in_time(**saver, "b", 2).has_value());
    return std::move(*saver);
  }

  static const MadeUpTraining& training() {
    static const auto& made = *new MadeUpTraining(StateForm::Split, numel);
    return made;
  }

  /// Expects `latest` to load as step 2, or as step 3.
  static void expect_loads(CrashFiles& files, bool saved) {
    const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
    ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
    const std::uint64_t step = (*reader)->manifest().state.step;
    ASSERT_TRUE(step == 3 || (step == 2 && !saved)) << step;
    training().expect_state(**reader, step);
  }

  static void expect_goes_on(CrashFiles& files, std::unique_ptr<CheckpointSaver> saver) {
    const auto saved = save_in_time(*saver, "d", 4);
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
    saver.reset();
    const auto again = CheckpointSaver::open(files, options_on(files, 2));
    ASSERT_TRUE(again.has_value()) << again.error().to_string();
    EXPECT_EQ((*again)->found().latest, "d");
    EXPECT_TRUE((*again)->found().damaged.empty());
    for (const std::string& path : files.paths()) {
      EXPECT_TRUE(!path.starts_with("/disk/checkpoints/.") || path == "/disk/checkpoints/.lock")
          << path;
    }
  }
};

TEST_F(CheckpointFaults, TheFolderIsProbedInTheRoomThatWasTaken) {
  const auto opened = [](CrashFiles& files, double stall_seconds) {
    SaverOptions options = options_on(files, 2);
    options.stall_seconds = stall_seconds;
    options.reserve_bytes = (20 << 20) + 4096;  // some pieces, and one that is cut
    options.probe_seconds = 60.0;
    return CheckpointSaver::open(files, options);
  };
  CrashFiles files;
  {
    const auto saver = opened(files, 60.0);
    ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
    EXPECT_GT((*saver)->write_rate(), 0.0);
    ASSERT_TRUE((*saver)->close().has_value());
    for (const std::string& path : files.paths()) {
      EXPECT_FALSE(path.starts_with("/disk/checkpoints/.spare")) << "its room is given back";
    }
  }
  const std::uint64_t operations = files.operations();
  std::uint64_t refused = 0;
  for (std::uint64_t operation = 0; operation < operations; ++operation) {
    CrashFiles failing;
    failing.plan(operation, CrashFiles::Fault::Fails, EIO);
    refused += opened(failing, 60.0).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 4u) << "a disk that fails is met before the first step";
  auto kept = std::make_unique<CrashFiles>();
  CrashFiles& hung = *kept;
  keep_for_ever(std::move(kept));
  hung.plan(operations - 3, CrashFiles::Fault::NeverAnswers);
  const auto late = opened(hung, 0.05);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::Timeout);
}

TEST_F(CheckpointFaults, TheNthOperationOfASaveFailing) {
  for (const int system_error : {EIO, ENOSPC}) {
    for (const auto fault : {CrashFiles::Fault::Fails, CrashFiles::Fault::FailsFromThenOn}) {
      std::uint64_t failed = 0;
      for (std::uint64_t operation = 0;; ++operation) {
        CrashFiles files;
        auto saver = two_saved(files);
        const std::uint64_t before = files.operations();
        files.plan(operation, fault, system_error);
        LentBuffers buffers;
        const auto saved = training().save(*saver, "c", 3, buffers, {{"client-a", "x"}});
        const bool met = files.operations() - before > operation;
        files.forget_plan();
        EXPECT_EQ(buffers.out, 0);
        if (!saved.has_value()) {
          ++failed;
          EXPECT_EQ(saved.error().system_error, system_error) << saved.error().to_string();
        }
        expect_loads(files, saved.has_value());
        expect_goes_on(files, std::move(saver));
        if (HasFailure()) FAIL() << "operation " << operation;
        if (!met) break;
      }
      EXPECT_GT(failed, 30u);
    }
  }
}

TEST_F(CheckpointFaults, TheNthOperationOfASaveNeverAnswering) {
  std::uint64_t failed = 0;
  double patience = 0.05;  // seconds; a busy machine takes more
  for (std::uint64_t operation = 0;; ++operation) {
    // A thread that hangs uses these, so they must outlive it.
    auto kept = std::make_unique<CrashFiles>();
    CrashFiles& files = *kept;
    keep_for_ever(std::move(kept));
    auto saver = two_saved(files, patience);
    MadeUpTraining impatient(StateForm::Split, numel);
    impatient.wait_seconds = patience;
    const std::uint64_t before = files.operations();
    files.plan(operation, CrashFiles::Fault::NeverAnswers);
    LentBuffers buffers;
    const auto begin = std::chrono::steady_clock::now();
    const auto saved = impatient.save(*saver, "c", 3, buffers);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    const bool met = files.operations() - before > operation;
    if (!met && !saved.has_value() && saved.error().code == ErrorCode::Timeout && patience < 2.0) {
      files.release();
      patience *= 2;
      --operation;
      continue;
    }
    if (!saved.has_value()) {
      ++failed;
      EXPECT_EQ(saved.error().code, ErrorCode::Timeout) << saved.error().to_string();
    }
    EXPECT_EQ(buffers.out, buffers.given_up);
    if (!met) files.forget_plan();
    expect_loads(files, saved.has_value());  // while it hangs
    files.release();
    const auto late = saver->finish(Deadline::after_seconds(60));
    EXPECT_TRUE(!late.has_value() || !late->has_value() || (*late)->tag == "c");
    const auto begun = in_time([&] { return saver->begin("probe", 9); });
    ASSERT_TRUE(begun.has_value()) << begun.error().to_string();
    saver->abandon(make_error(ErrorCode::Cancelled, "probe"));
    EXPECT_FALSE(saver->finish(Deadline::after_seconds(60)).has_value());
    expect_goes_on(files, std::move(saver));
    if (HasFailure()) FAIL() << "operation " << operation;
    if (!met) break;
  }
  EXPECT_GT(failed, 30u);
}

TEST_F(CheckpointFaults, TheNthOperationOfAnOpeningFailing) {
  for (std::uint64_t operation = 0;; ++operation) {
    CrashFiles whole;
    two_saved(whole).reset();
    // In the middle of a save, so that recovery has something to do.
    const auto files = whole.after_cut(whole.logged() - 6, test_support::Cut::AllInOrder, 1);
    files->plan(operation, CrashFiles::Fault::Fails);
    const auto failed = CheckpointSaver::open(*files, options_on(*files, 2));
    const bool met = files->operations() > operation;
    files->forget_plan();
    if (failed.has_value() && !met) break;
    if (failed.has_value()) continue;  // the opening can do without this answer
    const auto again = CheckpointSaver::open(*files, options_on(*files, 2));
    ASSERT_TRUE(again.has_value()) << operation << " " << again.error().to_string();
    const auto reader = CheckpointReader::open(*files, "/disk/checkpoints", "");
    ASSERT_TRUE(reader.has_value()) << operation << " " << reader.error().to_string();
  }
}

TEST_F(CheckpointFaults, TheNthReadFailingIsTold) {
  CrashFiles files;
  two_saved(files).reset();
  std::uint64_t failures = 0;
  for (std::uint64_t operation = 0;; ++operation) {
    const std::uint64_t before = files.operations();
    files.plan(operation, CrashFiles::Fault::Fails);
    const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
    bool good = reader.has_value();
    std::vector<float> values(training().parameters()[1].numel());
    if (good) good = (*reader)->read(1, 0, values, {}, {}).has_value();
    const bool met = files.operations() - before > operation;
    files.forget_plan();
    if (!met) {
      ASSERT_TRUE(good);
      break;
    }
    ++failures;
    if (reader.has_value()) training().expect_state(**reader, 2);  // the next try succeeds
  }
  EXPECT_GT(failures, 10u);
}

TEST_F(CheckpointFaults, AFullDiskIsSaidAndTheFormerOneStays) {
  CrashFiles files;
  auto saver = CheckpointSaver::open(files, options_on(files, 2));
  ASSERT_TRUE(saver.has_value());
  LentBuffers buffers;
  ASSERT_TRUE(training().save(**saver, "a", 1, buffers).has_value());
  files.bytes_free = 4096;
  const auto full = training().save(**saver, "b", 2, buffers);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(files.bytes_free, 4096u);  // what it got is given back
  files.bytes_free = 1 << 30;
  EXPECT_TRUE(training().save(**saver, "c", 3, buffers).has_value());
}

TEST_F(CheckpointFaults, ATagOfSomebodyElseIsRefused) {
  CrashFiles files;
  LentBuffers buffers;
  {
    auto first = CheckpointSaver::open(files, options_on(files, 2));
    ASSERT_TRUE(first.has_value());
    ASSERT_TRUE(training().save(**first, "a", 1, buffers).has_value());
    const auto locked = CheckpointSaver::open(files, options_on(files, 2));
    ASSERT_FALSE(locked.has_value());
    EXPECT_EQ(locked.error().code, ErrorCode::Busy);
  }
  auto second = CheckpointSaver::open(files, options_on(files, 1));
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ((*second)->found().latest, "a");
  const auto refused = training().save(**second, "a", 1, buffers);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
  EXPECT_FALSE(training().save(**second, "../a", 1, buffers).has_value());
  ASSERT_TRUE(training().save(**second, "b", 2, buffers).has_value());
  ASSERT_TRUE(training().save(**second, "c", 3, buffers).has_value());
  EXPECT_TRUE(files.exists("/disk/checkpoints/a"));  // of another lineage: never removed
  EXPECT_FALSE(files.exists("/disk/checkpoints/b"));
}

TEST_F(CheckpointFaults, AnotherOneUnderTheTagOfOneThatGoesStays) {
  CrashFiles files;
  auto saver = two_saved(files);
  LentBuffers buffers;
  {
    SaverOptions elsewhere = options_on(files, 2);
    elsewhere.directory = "/disk/other";
    auto other = CheckpointSaver::open(files, elsewhere);
    ASSERT_TRUE(other.has_value());
    ASSERT_TRUE(training().save(**other, "a", 7, buffers).has_value());
  }
  const auto ours = files.open_folder("/disk/checkpoints");
  const auto others = files.open_folder("/disk/other");
  ASSERT_TRUE((*ours)->rename("a", **others, "ours", Existing::Refuse).has_value());
  ASSERT_TRUE((*others)->rename("a", **ours, "a", Existing::Refuse).has_value());
  ASSERT_TRUE(training().save(*saver, "c", 3, buffers).has_value());  // "a" is next
  const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "a");
  ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
  EXPECT_EQ((*reader)->manifest().state.step, 7u);
}

/// On a file system that cannot exchange two names the former checkpoint is renamed for a moment.
/// Whichever operation fails, and before any recovery, it has its tag again, or the new one has it.
TEST_F(CheckpointFaults, TheNthOperationOfATagThatIsSavedAgainFailing) {
  std::uint64_t failed = 0;
  for (std::uint64_t operation = 0;; ++operation) {
    CrashFiles files;
    files.refuses_exchange = true;
    auto saver = CheckpointSaver::open(files, options_on(files, 2));
    ASSERT_TRUE(saver.has_value());
    LentBuffers buffers;
    ASSERT_TRUE(training().save(**saver, "a", 2, buffers).has_value());
    const std::uint64_t before = files.operations();
    files.plan(operation, CrashFiles::Fault::Fails);
    const auto saved = training().save(**saver, "a", 3, buffers);
    const bool met = files.operations() - before > operation;
    files.forget_plan();
    failed += saved.has_value() ? 0 : 1;
    expect_loads(files, saved.has_value());
    if (HasFailure()) FAIL() << "operation " << operation;
    if (!met) break;
  }
  EXPECT_GT(failed, 20u);
}

/// A kill between two renames has left the former checkpoint under another name, and none under its
/// tag. If it is whole, recovery restores its tag. If it is damaged, it is all that is left, and
/// stays for its owner.
TEST_F(CheckpointFaults, WhatIsLeftOfTheOnlyCheckpointIsNeverRemoved) {
  for (const bool damaged : {false, true}) {
    CrashFiles files;
    LentBuffers buffers;
    {
      auto saver = CheckpointSaver::open(files, options_on(files, 2));
      ASSERT_TRUE(saver.has_value());
      ASSERT_TRUE(training().save(**saver, "a", 2, buffers).has_value());
    }
    const std::string old = DotName{DotName::Kind::Replaced, "a", 7}.name();
    const auto folder = files.open_folder("/disk/checkpoints");
    ASSERT_TRUE((*folder)->rename("a", **folder, old, Existing::Refuse).has_value());
    if (damaged) {
      const auto inner = (*folder)->open_folder(old);
      const auto manifest = (*inner)->open("manifest.json", {});
      ASSERT_TRUE((*manifest)->write_at("x", 1, 20).has_value());
    }
    ASSERT_TRUE(CheckpointSaver::open(files, options_on(files, 2)).has_value());
    EXPECT_EQ(files.exists("/disk/checkpoints/a"), !damaged);
    EXPECT_EQ(files.exists("/disk/checkpoints/" + old), damaged);
    EXPECT_EQ(files.exists("/disk/checkpoints/" + old + "/rank0.safetensors"), damaged);
    if (!damaged) expect_loads(files, false);
  }
}

TEST_F(CheckpointFaults, ACopyByASecondNameIsNeverWrittenOver) {
  CrashFiles files;
  auto saver = CheckpointSaver::open(files, options_on(files, 1));
  ASSERT_TRUE(saver.has_value());
  LentBuffers buffers;
  ASSERT_TRUE(training().save(**saver, "a", 1, buffers).has_value());
  {
    const auto folder = files.open_folder("/disk/checkpoints/a");
    const auto root = files.open_folder("/disk");
    ASSERT_TRUE((*folder)->link("rank0.safetensors", **root, "copy").has_value());
  }
  const std::vector<std::byte> copy = files.bytes_of("/disk/copy");
  for (std::uint64_t step = 2; step < 5; ++step) {
    ASSERT_TRUE(training().save(**saver, "s" + std::to_string(step), step, buffers).has_value());
  }
  EXPECT_EQ(files.bytes_of("/disk/copy"), copy);
  EXPECT_TRUE(files.exists("/disk/checkpoints/a"));
}

}  // namespace
}  // namespace artesian::zero3
