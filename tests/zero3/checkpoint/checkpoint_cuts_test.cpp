// Proves that no power cut, at any operation of a save, a prune, a commit or a recovery, whatever
// of the unsynced operations survives, loses a committed checkpoint. The folder opens. `latest`
// names the checkpoint that was committed last, or the one that was being committed, whole and with
// all its bits. Nothing unfinished is left, and the run continues. A folder whose syncs are left
// out fails the test, so it is the syncs that ensure this.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/process.h"
#include "tests/support/sanitizers.h"
#include "tests/zero3/checkpoint/made_up_checkpoint.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {
namespace {

using test_support::CrashFiles;
using test_support::Cut;

constexpr std::uint64_t numel = 700;

struct Moment {  // of the log: what must hold behind it
  std::size_t logged = 0;
  std::string tag;  // committed last; empty: none
  std::uint64_t step = 0;
};

struct History {
  MadeUpTraining training{StateForm::Split, numel};
  std::vector<Moment> moments;

  /// Returns the state that holds after a cut behind this many operations.
  const Moment& before(std::size_t count) const {
    const Moment* found = &moments.front();
    for (const Moment& moment : moments) {
      if (moment.logged <= count) found = &moment;
    }
    return *found;
  }
  const Moment* after(std::size_t count) const {
    for (const Moment& moment : moments) {
      if (moment.logged > count) return &moment;
    }
    return nullptr;
  }
};

/// Saves steps, each under its tag, in one process.
void run(CrashFiles& files, History& history,
         const std::vector<std::pair<std::string, std::uint64_t>>& steps, std::uint32_t keep) {
  auto saver = CheckpointSaver::open(files, options_on(files, keep));
  ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
  if (!(*saver)->found().latest.empty()) {
    const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
    ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
    (*saver)->go_on_from((*reader)->manifest().link);
  }
  LentBuffers buffers;
  for (const auto& [tag, step] : steps) {
    const auto saved =
        history.training.save(**saver, tag, step, buffers, {{"client-a", "x"}, {"model/b", "y"}});
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
    history.moments.push_back({files.logged(), tag, step});
  }
}

/// Opens the folder after a cut, which must be in one of its two legal states. Returns what is
/// wrong, or an empty text.
std::string judge(CrashFiles& files, const History& history, std::size_t count) {
  const Moment& before = history.before(count);
  const Moment* after = history.after(count);
  if (!files.exists("/disk/checkpoints")) return before.tag.empty() ? "" : "the folder is gone";
  auto saver = CheckpointSaver::open(files, options_on(files, 2));
  if (!saver.has_value()) return "does not open: " + saver.error().to_string();
  if (!(*saver)->found().damaged.empty()) {
    return "a damaged one: " + (*saver)->found().damaged.front().second.to_string();
  }
  const std::string latest = (*saver)->found().latest;
  const bool is_before = latest == before.tag;
  const bool is_after = after != nullptr && latest == after->tag;
  if (!is_before && !is_after) return "latest is \"" + latest + "\"";
  for (const std::string& path : files.paths()) {
    if (path.starts_with("/disk/checkpoints/.") && path != "/disk/checkpoints/.lock") {
      return "left over: " + path;
    }
  }
  if (latest.empty()) return "";
  auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
  if (!reader.has_value()) return "does not load: " + reader.error().to_string();
  const std::uint64_t step = (*reader)->manifest().state.step;
  if (!(is_before && step == before.step) &&
      !(after != nullptr && is_after && step == after->step)) {
    return "is of step " + std::to_string(step);
  }
  const auto faults = (*reader)->verify({});
  if (!faults.has_value() || !faults->empty()) return "has damaged blocks";
  std::vector<float> master(history.training.parameters()[1].numel());
  if (!(*reader)->read(1, 0, master, {}, {}).has_value()) return "cannot be read";
  for (std::uint64_t i = 0; i < master.size(); ++i) {
    if (master[i] != history.training.master(step, 1, i)) return "has other bits";
  }
  LentBuffers buffers;  // and the run goes on
  (*saver)->go_on_from((*reader)->manifest().link);
  const auto saved = history.training.save(**saver, "next", step + 1, buffers);
  return saved.has_value() ? "" : "does not go on: " + saved.error().to_string();
}

/// True if some cut in a save damages a folder whose syncs are left out.
bool some_cut_is_bad(const CrashFiles& files, const History& history) {
  for (std::size_t count = 0; count <= files.logged(); ++count) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      for (const Cut cut : {Cut::NothingUnsynced, Cut::RandomSubset, Cut::Tears, Cut::Zeros}) {
        if (judge(*files.after_cut(count, cut, seed), history, count) != "") return true;
      }
    }
  }
  return false;
}

/// Cuts behind every operation from `first` on, in every way. Returns the number of cuts.
std::uint64_t cut_everywhere(const CrashFiles& files, const History& history, std::size_t first,
                             std::uint64_t seeds) {
  std::uint64_t states = 0;
  for (std::size_t count = first; count <= files.logged(); ++count) {
    const auto expect_good = [&](Cut cut, std::uint64_t seed) {
      const auto after = files.after_cut(count, cut, seed);
      const std::string fault = judge(*after, history, count);
      EXPECT_EQ(fault, "") << "cut " << count << " of " << files.logged() << " way "
                           << static_cast<int>(cut) << " seed " << seed << " behind "
                           << files.describe(count == 0 ? 0 : count - 1);
      ++states;
      return fault.empty();
    };
    if (!expect_good(Cut::AllInOrder, 0) || !expect_good(Cut::NothingUnsynced, 0)) return states;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      if (!expect_good(Cut::RandomSubset, seed) || !expect_good(Cut::Tears, seed) ||
          !expect_good(Cut::Zeros, seed)) {
        return states;
      }
    }
  }
  return states;
}

std::uint64_t seeds() {
  return test_support::soaking() ? 32 : test_support::sanitized ? 1 : 3;
}

TEST(CheckpointCuts, OfSavesAndPrunesCostNothing) {
  for (const bool refuses_exchange : {false, true}) {
    CrashFiles files;
    files.refuses_exchange = refuses_exchange;
    History history;
    history.moments.push_back({});
    run(files, history, {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}}, 2);
    if (HasFatalFailure()) return;
    const std::uint64_t states = cut_everywhere(files, history, 0, seeds());
    std::printf("%llu states\n", static_cast<unsigned long long>(states));
    EXPECT_GE(states, seeds() * 300);
  }
}

TEST(CheckpointCuts, OfATagThatIsSavedAgainCostNothing) {
  for (const bool refuses_exchange : {false, true}) {
    CrashFiles files;
    files.refuses_exchange = refuses_exchange;
    History history;
    history.moments.push_back({});
    run(files, history, {{"a", 1}, {"a", 2}, {"a", 3}}, 1);
    if (HasFatalFailure()) return;
    const std::uint64_t states = cut_everywhere(files, history, 0, seeds());
    std::printf("%llu states\n", static_cast<unsigned long long>(states));
    EXPECT_GE(states, seeds() * 300);
  }
}

TEST(CheckpointCuts, OfRecoveriesCostNothing) {
  std::mt19937_64 random(test_support::test_seed(1));
  std::uint64_t states = 0;
  for (int turn = 0; turn < (test_support::soaking()   ? 300
                             : test_support::sanitized ? 5
                                                       : 20);
       ++turn) {
    CrashFiles files;
    files.refuses_exchange = turn % 2 == 0;
    History history;
    history.moments.push_back({});
    run(files, history, {{"a", 1}, {"b", 2}, {turn % 4 < 2 ? "b" : "c", 3}}, 1);
    if (HasFatalFailure()) return;
    // In the last save. The folder is then as the second process found it.
    const std::size_t first = history.moments[2].logged;
    const std::size_t cut = first + random() % (files.logged() - first);
    const auto second = files.after_cut(cut, Cut::RandomSubset, random());
    const Moment before = history.before(cut);
    const Moment after = *history.after(cut);
    {
      auto saver = CheckpointSaver::open(*second, options_on(*second, 2));
      ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
    }
    History recovered;
    recovered.moments = {{0, before.tag, before.step}, {~std::size_t{0}, after.tag, after.step}};
    states += cut_everywhere(*second, recovered, 0, seeds());
  }
  std::printf("%llu states\n", static_cast<unsigned long long>(states));
  EXPECT_GE(states, seeds() * (test_support::sanitized ? 40 : 150));
}

TEST(CheckpointCuts, WithoutItsSyncsItWouldNotHold) {
  for (const bool of_folders : {false, true}) {
    CrashFiles files;
    (of_folders ? files.forgets_folders : files.forgets_files) = true;
    History history;
    history.moments.push_back({});
    run(files, history, {{"a", 1}, {"b", 2}, {"c", 3}}, 1);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(some_cut_is_bad(files, history)) << of_folders;
  }
}

}  // namespace
}  // namespace artesian::zero3
