// Which folders are the same, which sections share them, and what is known of their disks.
#include "zero3/step/swap_paths.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temporary_directory.h"
#include "tiering/disk/profile.h"

namespace artesian::zero3 {
namespace {

using Volumes = std::vector<std::vector<std::uint32_t>>;
using Folders = std::vector<std::string>;

TEST(SwapPaths, OfOneSectionAreOneVolume) {
  const SwapPaths paths = resolve_swap_paths({"/x/b", "/x/a"}, {}).value();
  EXPECT_EQ(paths.directories, (Folders{"/x/b", "/x/a"}));
  EXPECT_EQ(paths.volumes, (Volumes{{0, 1}}));
  EXPECT_EQ(resolve_swap_paths({}, {"/x/b"}).value().volumes, (Volumes{{0}}));
  EXPECT_TRUE(resolve_swap_paths({}, {}).value().directories.empty());
}

TEST(SwapPathsUse, CountsUp) {
  const SwapPathsUse before{.paths = {{.directory = "/a", .bytes_read = 1, .bytes_written = 2},
                                      {.directory = "/b", .bytes_read = 3}}};
  SwapPathsUse sum;
  EXPECT_TRUE((sum - SwapPathsUse()).paths.empty());
  sum += before;  // empty is all zeros, on either side
  sum += SwapPathsUse();
  sum += before;
  EXPECT_EQ((sum - SwapPathsUse()).paths[1].bytes_read, 6u);
  const SwapPathsUse since = sum - before;
  ASSERT_EQ(since.paths.size(), 2u);
  EXPECT_EQ(since.paths[0].directory, "/a");
  EXPECT_EQ(since.paths[0].bytes_read, 1u);
  EXPECT_EQ(since.paths[0].bytes_written, 2u);
  EXPECT_EQ(since.paths[1].bytes_read, 3u);
}

TEST(SwapPaths, AreSharedWhereSectionsNameTheSame) {
  const SwapPaths same = resolve_swap_paths({"/x/a", "/x/b"}, {"/x/b/", "/x/c/../a"}).value();
  EXPECT_EQ(same.directories, (Folders{"/x/a", "/x/b"}));
  EXPECT_EQ(same.volumes, (Volumes{{0, 1}}));
  EXPECT_EQ(same.param_volume, same.optimizer_volume);
  const SwapPaths some = resolve_swap_paths({"/x/a", "/x/b"}, {"/x/c", "/x/b"}).value();
  EXPECT_EQ(some.directories, (Folders{"/x/a", "/x/b", "/x/c"}));
  EXPECT_EQ(some.volumes, (Volumes{{0, 1}, {1, 2}}));
  EXPECT_EQ(some.param_volume, 0u);
  EXPECT_EQ(some.optimizer_volume, 1u);
}

TEST(SwapPaths, TwoThatCannotBeResolvedAreNotOne) {
  const test_support::TemporaryDirectory directory;
  const Folders loops{directory.file("a"), directory.file("b")};
  for (const std::string& loop : loops) std::filesystem::create_symlink(loop, loop);
  const auto paths = resolve_swap_paths(loops, {});
  ASSERT_TRUE(paths.has_value()) << paths.error().to_string();
  EXPECT_EQ(paths->directories, loops);
  EXPECT_FALSE(resolve_swap_paths({loops[0], loops[0] + "/"}, {}).has_value());
}

TEST(SwapPaths, OneFolderTwiceInASectionIsRefusedHoweverItIsSpelled) {
  const test_support::TemporaryDirectory directory;
  const std::string real = directory.file("real");
  std::filesystem::create_directory(real);
  std::filesystem::create_directory_symlink(real, directory.file("link"));
  for (const std::string& other :
       {real + "/", directory.file("x/../real"), directory.file("link")}) {
    const auto refused = resolve_swap_paths({real, directory.file("else"), other}, {});
    ASSERT_FALSE(refused.has_value()) << other;
    EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
    EXPECT_EQ(refused.error().file, real);
    EXPECT_EQ(refused.error().message, "got \"" + other + "\" twice (also as \"" + real +
                                           "\"), allowed each folder once; remove one");
  }
}

Config config_with(const Folders& folders) {
  Config config;
  config.zero.offload_param = {.device = Offload::Nvme, .nvme_paths = folders};
  config.zero.offload_optimizer = {.device = Offload::Cpu, .nvme_paths = {"/unused"}};
  return config;
}

TEST(SwapPaths, OfAConfigurationAreThoseInUse) {
  Config config = config_with({"/x/a"});
  config.aio.block_size = 64 << 20;
  const SwapPaths paths = swap_paths_of(config).value();
  EXPECT_EQ(paths.directories, Folders{"/x/a"});
  EXPECT_EQ(paths.stripe_bytes, 8u << 20);
  EXPECT_TRUE(paths.disks.empty());
  const auto wrong = swap_paths_of(config, std::vector<tiering::PathDisk>(2));
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().message,
            "path_disks: got 2, allowed none or 1, one for each folder of nvme_path");
}

tiering::MachineProfile profile_with(std::vector<tiering::MachineProfile::Rate> rates) {
  return {.path = "/nvme",
          .file_system = "ext4",
          .measured_at = "2026-01-31T12:00:00Z",
          .queue_depth = 8,
          .threads = 1,
          .engine = "threads",
          .rates = std::move(rates)};
}

TEST(SwapPaths, StripesAreOfTheLargestBlockOfTheirFolders) {
  const test_support::TemporaryDirectory directory;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  ASSERT_EQ(setenv("XDG_CACHE_HOME", directory.path().c_str(), 1), 0);
  Config config = config_with({directory.file("a"), directory.file("b")});
  config.aio.block_size = 65536;
  const std::string file = tiering::machine_profile_path(directory.path()).value();
  auto profile = profile_with({{.block_size = 65536, .gb_per_s = 1},
                               {.block_size = 65536, .read_share = 0, .gb_per_s = 1},
                               {.block_size = 2 << 20, .gb_per_s = 3},
                               {.block_size = 2 << 20, .read_share = 0, .gb_per_s = 3}});
  profile.best = aio::EngineOptions{.block_size = 2 << 20, .queue_depth = 3};
  ASSERT_TRUE(tiering::save_machine_profile(file, profile).has_value());
  const SwapPaths given = swap_paths_of(config).value();
  EXPECT_EQ(given.stripe_bytes, 65536u);
  EXPECT_EQ(given.disks[0].speed.read_bytes_per_s, 1e9);
  EXPECT_TRUE(given.notes.empty());
  config.aio_from_profile = true;
  const SwapPaths chosen = swap_paths_of(config).value();
  EXPECT_EQ(chosen.stripe_bytes, 2u << 20);
  ASSERT_EQ(chosen.io.size(), 2u);
  EXPECT_EQ(chosen.io[1].options.queue_depth, 3u);
  EXPECT_EQ(chosen.disks[0].speed.read_bytes_per_s, 3e9);  // at the block size in use
  EXPECT_EQ(chosen.notes.size(), 1u);
}

TEST(SwapPaths, SavedProfilesGiveTheDisksOfAllFoldersOrNone) {
  const test_support::TemporaryDirectory directory;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  ASSERT_EQ(setenv("XDG_CACHE_HOME", directory.path().c_str(), 1), 0);
  const Config config = config_with({directory.file("a"), directory.file("b")});
  EXPECT_TRUE(swap_paths_of(config).value().disks.empty());
  const auto profile = profile_with(
      {{.block_size = 1 << 20, .gb_per_s = 2}, {.block_size = 1 << 20, .read_share = 0}});
  auto measured = profile;
  measured.rates[1].gb_per_s = 1;
  const std::string file = tiering::machine_profile_path(directory.path()).value();
  ASSERT_TRUE(tiering::save_machine_profile(file, measured).has_value());
  const SwapPaths paths = swap_paths_of(config).value();
  ASSERT_EQ(paths.disks.size(), 2u);
  EXPECT_DOUBLE_EQ(paths.disks[0].speed.read_bytes_per_s, 2e9);
  EXPECT_DOUBLE_EQ(paths.disks[1].speed.write_bytes_per_s, 1e9);
  EXPECT_EQ(paths.disks[0].device, paths.disks[1].device);  // one disk has one profile
}

}  // namespace
}  // namespace artesian::zero3
