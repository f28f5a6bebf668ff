// Proves that no power cut while several ranks save loses a checkpoint that `latest` durably names,
// though their machines fail apart: each at an operation of its own, with another part of its
// unsynced operations lost. Between two meetings of all ranks each rank may have come any way, and
// a sync of one machine makes nothing of another durable. The checkpoint is whole and readable by
// any number of ranks. If a machine's syncs of folders are left out, the test fails, so it is the
// syncs that ensure this.
#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"
#include "tests/zero3/checkpoint/made_up_checkpoint.h"

namespace artesian::zero3 {
namespace {

using test_support::CrashFiles;
using test_support::Cut;

constexpr std::uint64_t numel = 700;
constexpr std::uint32_t nobody = ~0u;

/// The time between two meetings of all ranks, in operations of the log.
struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::uint64_t before = 0;  // step of the durable checkpoint; 0: none
  std::uint64_t after = 0;   // another step that may be durable
};

struct History {
  explicit History(std::uint32_t count) : ranks(count), training(StateForm::Split, numel, count) {}
  const std::uint32_t ranks;
  const MadeUpTraining training;
  std::vector<Stretch> stretches;
};

std::string tag_of(std::uint64_t step) {
  return "step" + std::to_string(step);
}

/// Saves steps 1 to `steps`. `forgetful`: the rank whose machine's syncs of folders do nothing.
void run(CrashFiles& files, History& history, std::uint64_t steps, std::uint32_t forgetful) {
  std::vector<std::unique_ptr<CheckpointSaver>> savers;
  const auto as = [&](std::uint32_t rank) {
    files.machine = rank;
    files.forgets_folders = rank == forgetful;
  };
  for (std::uint32_t rank = 0; rank < history.ranks; ++rank) {
    as(rank);
    SaverOptions options = options_on(files, 1);
    options.rank = rank;
    auto saver = CheckpointSaver::open(files, std::move(options));
    ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
    savers.push_back(std::move(saver).value());
  }
  std::size_t begin = 0;
  LentBuffers buffers;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto meet = [&] {
      history.stretches.push_back({begin, files.logged(), step - 1, step});
      begin = files.logged();
    };
    const auto saved =
        history.training.save_together(savers, tag_of(step), step, buffers, as, meet);
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  }
  history.stretches.push_back({begin, begin, steps, steps});
}

/// Reads the part of rank `rank` of `ranks`. Returns what is wrong with it, or an empty text.
std::string read_as(const CheckpointReader& reader, const MadeUpTraining& training,
                    std::uint64_t step, std::uint32_t rank, std::uint32_t ranks) {
  for (std::uint32_t parameter = 0; parameter < training.parameters().size(); ++parameter) {
    const std::uint64_t all = training.parameters()[parameter].numel();
    const std::uint64_t first = all * rank / ranks;
    std::vector<float> master(all * (rank + 1) / ranks - first);
    if (!reader.read(parameter, first, master, {}, {}).has_value()) return "cannot be read";
    for (std::uint64_t i = 0; i < master.size(); ++i) {
      if (master[i] != training.master(step, parameter, first + i)) return "has other bits";
    }
  }
  return "";
}

/// Returns what is wrong with the folder after the cuts, or an empty text.
std::string judge(CrashFiles& files, const History& history, const Stretch& at) {
  if (!files.exists("/disk/checkpoints")) return at.before == 0 ? "" : "the folder is gone";
  const auto saver = CheckpointSaver::open(files, options_on(files, 1));
  if (!saver.has_value()) return "does not open: " + saver.error().to_string();
  const std::string latest = (*saver)->found().latest;
  if (latest.empty()) return at.before == 0 ? "" : "latest is gone";
  if (latest != tag_of(at.before) && latest != tag_of(at.after)) return "latest is " + latest;
  if (!(*saver)->found().damaged.empty()) {
    return "a damaged one: " + (*saver)->found().damaged.front().second.to_string();
  }
  const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
  if (!reader.has_value()) return "does not load: " + reader.error().to_string();
  const std::uint64_t step = (*reader)->manifest().state.step;
  if (tag_of(step) != latest) return "is of step " + std::to_string(step);
  const auto faults = (*reader)->verify({});
  if (!faults.has_value() || !faults->empty()) return "has damaged blocks";
  for (std::uint32_t ranks = 1; ranks <= 3; ++ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::string fault = read_as(**reader, history.training, step, rank, ranks);
      if (!fault.empty()) return fault;
    }
  }
  return "";
}

struct Found {
  std::uint64_t states = 0;
  std::string fault;  // the first
};

/// Cuts rank 0 behind each operation, and the others anywhere in the same stretch.
Found cut_everywhere(const CrashFiles& files, const History& history, std::uint64_t seeds) {
  Found found;
  for (const Stretch& at : history.stretches) {
    for (std::size_t count = at.begin; count <= at.end; ++count) {
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const auto cut_of = [&](std::uint32_t machine) {
          const std::uint64_t place = random_word(seed, 7 + machine, count);
          const std::uint64_t way = random_word(seed, 77 + machine, count);
          return CrashFiles::MachineCut{
              machine == 0 ? count : at.begin + place % (at.end - at.begin + 1),
              static_cast<Cut>(way % 5)};
        };
        const auto after = files.after_cuts(cut_of, seed);
        const std::string fault = judge(*after, history, at);
        ++found.states;
        if (fault.empty()) continue;
        found.fault = fault + ": cut " + std::to_string(count) + " of " +
                      std::to_string(files.logged()) + " seed " + std::to_string(seed);
        return found;
      }
    }
  }
  return found;
}

std::uint64_t seeds() {
  return test_support::soaking() ? 300 : test_support::sanitized ? 3 : 12;
}

TEST(RanksCuts, OfMachinesThatFailApartCostNothing) {
  for (const std::uint32_t ranks : {2u, 3u}) {
    CrashFiles files;
    History history(ranks);
    run(files, history, 3, nobody);
    if (HasFatalFailure()) return;
    const Found found = cut_everywhere(files, history, seeds());
    EXPECT_EQ(found.fault, "") << ranks << " ranks";
    std::printf("%u ranks: %llu states\n", ranks, static_cast<unsigned long long>(found.states));
    EXPECT_GE(found.states, seeds() * 150);
  }
}

TEST(RanksCuts, EachRankSyncsTheFolderOfItsFile) {
  for (std::uint32_t forgetful = 0; forgetful < 3; ++forgetful) {
    CrashFiles files;
    History history(3);
    run(files, history, 2, forgetful);
    if (HasFatalFailure()) return;
    EXPECT_NE(cut_everywhere(files, history, 12).fault, "") << forgetful;
  }
}

}  // namespace
}  // namespace artesian::zero3
