// Proves what a plan knows of the disks below nvme_path: which keys share folders and disks, and
// the free space of each file system, counted once, with the leftovers of dead runs. Nothing is
// reported of a folder that cannot exist.
#include "tools/plan/disk.h"

#include <gtest/gtest.h>

#include "tests/support/diverted_files.h"
#include "tests/support/temporary_directory.h"
#include "tiering/swap_names.h"

namespace artesian::tools {
namespace {

using test_support::TemporaryDirectory;
using Folders = std::vector<std::string>;

constexpr std::uint64_t bytes_free = 123'456;

/// A disk with a fixed amount of free space, whatever else the machine does.
class QuietFiles final : public test_support::DivertedFiles {
 public:
  Result<std::uint64_t> free_bytes(const std::string&) noexcept override { return bytes_free; }
};

zero3::Config config_of(const Folders& param, const Folders& optimizer) {
  zero3::Config config;
  config.zero.offload_param.nvme_paths = param;
  config.zero.offload_optimizer.nvme_paths = optimizer;
  return config;
}

SwapVolumes volumes_of(const Folders& param, const Folders& optimizer, bool here) {
  return swap_volumes(config_of(param, optimizer), {.here = here, .assumed = {3e9, 2e9}});
}

DiskSpace space_of(const Folders& param, const Folders& optimizer) {
  QuietFiles files;
  return free_space(volumes_of(param, optimizer, /*here=*/true), files);
}

TEST(PlanDisk, KeysMayLeadToOtherFoldersAndDisks) {
  EXPECT_TRUE(volumes_of({"/x/a"}, {"/x/b/../a/"}, false).same);
  const SwapVolumes apart = volumes_of({"/x/a"}, {"/x/b", "/x/c"}, false);
  EXPECT_FALSE(apart.same);
  EXPECT_TRUE(apart.apart);
  EXPECT_EQ(apart.param.disks.size(), 1u);
  EXPECT_EQ(apart.optimizer.disks.size(), 2u);
  EXPECT_EQ(apart.optimizer.disks[1].speed.read_bytes_per_s, 3e9);
  EXPECT_FALSE(volumes_of({"/x/a"}, {"/x/b", "/x/a"}, false).apart);
  for (const auto& either : {volumes_of({}, {"/x/b"}, false), volumes_of({"/x/b"}, {}, false)}) {
    EXPECT_TRUE(either.same && !either.apart);
    EXPECT_EQ(either.param.folders, Folders{"/x/b"});
    EXPECT_EQ(either.optimizer.folders, Folders{"/x/b"});
  }
}

TEST(PlanDisk, FoldersOfOneDiskShareItHere) {
  const TemporaryDirectory directory;
  const Folders param{directory.file("a")};  // both are still to be made
  const Folders optimizer{directory.file("b")};
  EXPECT_FALSE(volumes_of(param, optimizer, true).apart);
  const DiskSpace space = space_of(param, optimizer);
  EXPECT_EQ(space.free, std::vector<std::uint64_t>{bytes_free});
  ASSERT_EQ(space.param.size(), 1u);
  ASSERT_EQ(space.optimizer.size(), 1u);
  EXPECT_NE(space.param[0].path, space.optimizer[0].path);
  EXPECT_EQ(space.param[0].share, 1.0);
}

TEST(PlanDisk, SeveralFoldersHaveAShareEach) {
  const TemporaryDirectory directory;
  const DiskSpace space = space_of({}, {directory.file("a"), directory.file("b")});
  ASSERT_EQ(space.optimizer.size(), 2u);
  EXPECT_EQ(space.optimizer[0].share, 0.5);
  EXPECT_EQ(space.param.size(), 2u);
  EXPECT_EQ(space.free.size(), 1u);
}

TEST(PlanDisk, LeftoversOfDeadRunsAreFree) {
  const TemporaryDirectory directory;
  directory.write(tiering::swap_file_name(7, 0), std::string(5000, 'a'));
  const DiskSpace space = space_of({directory.path()}, {directory.path() + "/"});
  EXPECT_EQ(space.free, std::vector<std::uint64_t>{bytes_free + 5000});  // counted once
}

TEST(PlanDisk, OfAFolderThatCanBeNowhereNothingIsKnown) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("file", "");
  EXPECT_TRUE(space_of({file}, {directory.file("no/such")}).free.empty());
  const DiskSpace one = space_of({file}, {directory.path()});
  EXPECT_TRUE(one.param.empty());
  EXPECT_EQ(one.optimizer.size(), 1u);
}

}  // namespace
}  // namespace artesian::tools
