// Proves that descent decides which checkpoint is newest and which may be removed: an abandoned
// future, another lineage and hostile links are neither taken nor removed. Also proves how much
// space checkpoints need.
#include "zero3/plan/checkpoint_lineage.h"

#include <gtest/gtest.h>

#include <limits>

namespace artesian::zero3 {
namespace {

FoundCheckpoint found(std::string tag, std::uint64_t id, std::uint64_t parent, std::uint64_t serial,
                      std::uint64_t lineage = 9) {
  return {.tag = std::move(tag), .link = {id, parent, lineage, serial}, .step = serial * 100};
}

using Indices = std::vector<std::size_t>;

TEST(CheckpointLineage, TheOldestOfTheLineGo) {
  const std::vector<FoundCheckpoint> all{found("a", 1, 0, 1), found("b", 2, 1, 2),
                                         found("c", 3, 2, 3), found("d", 4, 3, 4)};
  EXPECT_EQ(line_of(all, "d"), (Indices{3, 2, 1, 0}));
  EXPECT_EQ(to_prune(all, "d", 2), (Indices{0, 1}));
  EXPECT_EQ(to_prune(all, "d", 1), (Indices{0, 1, 2}));
  EXPECT_EQ(to_prune(all, "d", 0), Indices{});
  EXPECT_EQ(to_prune(all, "d", 9), Indices{});
  EXPECT_EQ(to_prune(all, "none", 1), Indices{});
}

TEST(CheckpointLineage, AnAbandonedFutureStays) {
  // The user set `latest` back to a and continued: b and c belong to an abandoned run.
  const std::vector<FoundCheckpoint> all{found("a", 1, 0, 1), found("b", 2, 1, 2),
                                         found("c", 3, 2, 3), found("d", 4, 1, 2),
                                         found("e", 5, 4, 3)};
  EXPECT_EQ(line_of(all, "e"), (Indices{4, 3, 0}));
  EXPECT_EQ(to_prune(all, "e", 1), (Indices{0, 3}));
}

TEST(CheckpointLineage, AnotherLineageAndCirclesEndTheLine) {
  const std::vector<FoundCheckpoint> stranger{found("a", 1, 0, 1, 8), found("b", 2, 1, 2)};
  EXPECT_EQ(line_of(stranger, "b"), Indices{1});
  const std::vector<FoundCheckpoint> circle{found("a", 1, 2, 1), found("b", 2, 1, 2)};
  EXPECT_EQ(line_of(circle, "b"), (Indices{1, 0}));
  const std::vector<FoundCheckpoint> self{found("a", 1, 1, 1)};
  EXPECT_EQ(line_of(self, "a"), Indices{0});
}

TEST(CheckpointLineage, RoomIsWhatWillExistAtOnceLessWhatDoes) {
  const CheckpointRoom base{.checkpoint_bytes = 10, .saves = 0, .keep = 2};
  const auto with = [&](std::uint64_t saves, std::uint32_t keep, std::uint64_t present,
                        std::uint64_t spares = 0) {
    CheckpointRoom room = base;
    room.saves = saves;
    room.keep = keep;
    room.present = present;
    room.spares = spares;
    return bytes_to_come(room);
  };
  EXPECT_EQ(with(0, 2, 0), 30u);  // two kept, and the next beside them
  EXPECT_EQ(with(1, 2, 0), 10u);  // only a last one
  EXPECT_EQ(with(2, 2, 0), 20u);
  EXPECT_EQ(with(0, 1, 0), 20u);
  EXPECT_EQ(with(0, 2, 2), 10u);    // a run that is resumed
  EXPECT_EQ(with(0, 2, 2, 1), 0u);  // which has its spare file
  EXPECT_EQ(with(0, 2, 5), 10u);    // more exist than are kept: the first save needs one
  EXPECT_EQ(with(3, 0, 1), 30u);    // all are kept
  EXPECT_EQ(with(0, 0, 0), std::numeric_limits<std::uint64_t>::max());
}

TEST(CheckpointLineage, AFolderHoldsTrainingUpWhereItIsMuchSlowerThanTheState) {
  EXPECT_TRUE(holds_up_training(2'000, 400, 1'000));
  EXPECT_FALSE(holds_up_training(2'000, 500, 1'000));
  EXPECT_FALSE(holds_up_training(400, 400, 1'000)) << "nobody minds a second";
  EXPECT_FALSE(holds_up_training(2'000, 400, 0)) << "the state is in memory";
  EXPECT_FALSE(holds_up_training(2'000, 0, 1'000)) << "not known";
}

}  // namespace
}  // namespace artesian::zero3
