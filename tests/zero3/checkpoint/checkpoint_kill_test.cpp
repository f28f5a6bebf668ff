// Proves that a process that saves without a pause and is killed at any moment (SIGKILL), on a real
// disk, leaves the checkpoint that it reported last, or the next one, with all its bits. The next
// process continues from it, with other ranks and forms, and leaves nothing behind.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/checkpoint/made_up_checkpoint.h"

namespace artesian::zero3 {
namespace {

SaverOptions options_in(const std::string& directory) {
  SaverOptions options;
  options.directory = directory;
  options.keep = 2;
  options.stall_seconds = 120.0;
  return options;
}

/// Saves from the state of `directory` on, and reports each step that is committed. Never returns.
[[noreturn]] void save_for_ever(const std::string& directory, const MadeUpTraining& training,
                                int tells) {
  auto saver = CheckpointSaver::open(system_files(), options_in(directory));
  if (!saver.has_value()) _exit(2);
  std::uint64_t step = 0;
  if (!(*saver)->found().latest.empty()) {
    auto reader = CheckpointReader::open(system_files(), directory, "");
    if (!reader.has_value()) _exit(3);
    step = (*reader)->manifest().state.step;
    (*saver)->go_on_from((*reader)->manifest().link);
  }
  LentBuffers buffers;
  for (;;) {
    ++step;
    // Every third save reuses a tag.
    const std::string tag = step % 3 == 0 ? "again" : "global_step" + std::to_string(step);
    if (!training.save(**saver, tag, step, buffers).has_value()) _exit(4);
    if (write(tells, &step, sizeof step) != sizeof step) _exit(5);
  }
}

TEST(CheckpointKill, AtAnyMomentCostsNothing) {
  const test_support::TemporaryDirectory directory;
  const std::string place = directory.file("checkpoints");
  const MadeUpTraining trainings[] = {MadeUpTraining(StateForm::Split, 30000),
                                      MadeUpTraining(StateForm::Whole, 30000, 2),
                                      MadeUpTraining(StateForm::Split, 30000, 3)};
  std::mt19937_64 random(test_support::test_seed(1));
  std::uint64_t committed = 0;
  for (int turn = 0; turn < (test_support::soaking() ? 200 : 20); ++turn) {
    const MadeUpTraining& training = trainings[turn % 3];
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) save_for_ever(place, training, ends[1]);
    close(ends[1]);
    usleep(static_cast<useconds_t>(20'000 + random() % 400'000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "ended by itself: " << WEXITSTATUS(status);
    std::uint64_t told = 0;
    while (read(ends[0], &told, sizeof told) == sizeof told) committed = told;
    close(ends[0]);
    const auto saver = CheckpointSaver::open(system_files(), options_in(place));
    ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
    EXPECT_TRUE((*saver)->found().damaged.empty());
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(name.front() != '.' || name == ".lock") << name;
    }
    if ((*saver)->found().latest.empty()) {
      EXPECT_EQ(committed, 0u);
      continue;
    }
    const auto reader = CheckpointReader::open(system_files(), place, "");
    ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
    const std::uint64_t step = (*reader)->manifest().state.step;
    EXPECT_TRUE(step == committed || step == committed + 1) << step << " after " << committed;
    training.expect_state(**reader, step);
    committed = step;
  }
  EXPECT_GT(committed, 2u);
}

}  // namespace
}  // namespace artesian::zero3
