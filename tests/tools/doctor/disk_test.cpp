// Proves doctor's lines about each file system and disk.
#include "tools/doctor/disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "tests/support/disks.h"
#include "tests/support/made_up_machine.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace artesian::tools {
namespace {

namespace fs = std::filesystem;
using tiering::BlockDevice;

struct DiskCase {
  BlockDevice disk;
  Level level;
  std::string word;
};

TEST(Disks, EachKindIsNamed) {
  const DiskCase cases[] = {
      {{.name = "nvme0n1", .nvme = true}, Level::Ok, "NVMe"},
      {{.name = "nvme1n1", .nvme = true, .over_network = true}, Level::Warn, "over a network"},
      {{.name = "sda"}, Level::Warn, "SATA"},
      {{.name = "sdb", .rotational = true}, Level::Warn, "rotates"},
      {{.name = "vda", .virtual_disk = true}, Level::Warn, "virtual"},
  };
  for (const DiskCase& each : cases) {
    const Finding finding = examine_disks({each.disk}, 1);
    EXPECT_EQ(finding.level, each.level) << each.disk.name;
    EXPECT_NE(finding.meaning.find(each.word), std::string::npos) << finding.meaning;
    EXPECT_EQ(finding.fix.empty(), each.level == Level::Ok) << each.disk.name;
  }
  EXPECT_EQ(examine_disks({}, 1).level, Level::Warn);
}

TEST(Disks, ALoopDeviceIsWarnedOf) {
  test_support::MadeUpMachine machine;
  const BlockDevice below{.name = "nvme0n1", .nvme = true, .loop = "loop3"};
  EXPECT_TRUE(examine_loops({{.name = "nvme0n1", .nvme = true}}, machine.root()).empty());
  machine.write("/sys/block/loop3/loop/backing_file", "/data/image");
  machine.write("/sys/block/loop3/loop/dio", "0");
  const Findings cached = examine_loops({below, below}, machine.root());
  ASSERT_EQ(cached.size(), 1u);
  EXPECT_EQ(cached[0].level, Level::Warn);
  EXPECT_EQ(cached[0].value, "loop3, the file /data/image, through the page cache");
  EXPECT_NE(cached[0].fix.find("losetup --direct-io=on /dev/loop3"), std::string::npos);
  machine.write("/sys/block/loop3/loop/dio", "1");
  EXPECT_EQ(examine_loops({below}, machine.root()).at(0).fix,
            "a folder on the file system that holds that file");
  EXPECT_EQ(examine_loops({{.name = "loop3", .virtual_disk = true}}, machine.root()).size(), 1u);
}

TEST(Disks, WithSeveralNodesTheNearestIsNamed) {
  const BlockDevice disk{.name = "nvme0n1", .nvme = true, .numa_node = 1};
  EXPECT_NE(examine_disks({disk}, 2).meaning.find("--cpunodebind=1"), std::string::npos);
  EXPECT_EQ(examine_disks({disk}, 1).meaning.find("--cpunodebind"), std::string::npos);
}

tiering::MachineProfile tuned_profile() {
  return {.path = "/nvme",
          .file_system = "ext4",
          .measured_at = "2026-01-31T12:00:00Z",
          .queue_depth = 64,
          .threads = 1,
          .engine = "libaio",
          .best = aio::EngineOptions{.block_size = 262144, .queue_depth = 64},
          .rates = {{.block_size = 4096, .read_share = 1, .gb_per_s = 0.5},
                    {.block_size = 262144, .read_share = 1, .gb_per_s = 3.2149},
                    {.block_size = 262144, .read_share = 0, .gb_per_s = 2},
                    {.block_size = 1048576, .read_share = 0.5, .gb_per_s = 2.5}}};
}

Result<void> takes_all(aio::EngineKind, const aio::EngineOptions&) {
  return {};
}

TEST(IoSettings, OfAMachineProfileAreToldAndOneOfNoUseIsWarnedOf) {
  tiering::MachineProfile profile = tuned_profile();
  const Finding tuned = examine_profile(profile, "/nvme/swap", takes_all);
  EXPECT_EQ(tuned.level, Level::Ok);
  EXPECT_EQ(tuned.value,
            "block_size 256 KiB, queue_depth 64, libaio; 3.21 GB/s read, 2 written, 2.5 mixed, "
            "measured 2026-01-31T12:00:00Z");
  EXPECT_EQ(tuned.meaning, "taken by every config without an aio section");
  profile.best->polling = aio::Polling::Submission;
  EXPECT_NE(examine_profile(profile, "/nvme", takes_all).meaning.find("artesian.polling sqpoll"),
            std::string::npos);
  profile.best.reset();
  const Finding old = examine_profile(profile, "/nvme/swap");
  EXPECT_EQ(old.level, Level::Ok);
  EXPECT_EQ(old.value, "measured 2026-01-31T12:00:00Z, without settings");
  EXPECT_NE(old.meaning.find("aio_bench tune --path /nvme/swap"), std::string::npos);
  const Finding none = examine_profile(make_error(ErrorCode::Io, "cannot open", ENOENT), "/nvme");
  EXPECT_EQ(none.level, Level::Ok);
  EXPECT_EQ(none.value, "never measured");
  const Finding broken = examine_profile(make_error(ErrorCode::Invalid, "no profile"), "/nvme");
  EXPECT_EQ(broken.level, Level::Warn);
  EXPECT_EQ(broken.value, "no profile");
  EXPECT_EQ(broken.fix, "aio_bench tune --path /nvme");
}

TEST(IoSettings, AnEngineThatCannotBeMadeIsWarnedOf) {
  tiering::MachineProfile profile = tuned_profile();
  const auto refuses = [](aio::EngineKind kind, const aio::EngineOptions& options) {
    EXPECT_EQ(kind, aio::EngineKind::Libaio);
    EXPECT_EQ(options.queue_depth, 64u) << "with the profile's settings";
    return Result<void>(make_error(ErrorCode::Unsupported, "no AIO requests", EAGAIN));
  };
  const Finding refused = examine_profile(profile, "/nvme", refuses);
  EXPECT_EQ(refused.level, Level::Warn);
  EXPECT_NE(refused.meaning.find("libaio cannot be made here: no AIO requests"), std::string::npos)
      << refused.meaning;
  EXPECT_EQ(refused.fix,
            "sysctl fs.aio-max-nr=1048576; or measure what can: aio_bench tune --path /nvme");
  profile.engine = "of_a_later_version";
  const Finding unknown = examine_profile(profile, "/nvme", takes_all);
  EXPECT_EQ(unknown.level, Level::Warn);
  EXPECT_EQ(unknown.fix, "aio_bench tune --path /nvme");
}

TEST(FileSystems, WhatIsNoLocalDiskIsWarnedOf) {
  const std::pair<std::string, std::string> cases[] = {{"tmpfs", "memory"},
                                                       {"nfs4", "network"},
                                                       {"overlay", "container"},
                                                       {"fuse.s3", "network"},
                                                       {"btrfs", "copy-on-write"}};
  for (const auto& [type, word] : cases) {
    const Finding finding = examine_file_system({.point = "/x", .type = type});
    EXPECT_EQ(finding.level, Level::Warn) << type;
    EXPECT_NE(finding.meaning.find(word), std::string::npos) << finding.meaning;
    EXPECT_FALSE(finding.fix.empty()) << type;
  }
  EXPECT_EQ(examine_file_system({.point = "/", .type = "ext4"}).level, Level::Ok);
}

TEST(FreeSpace, SaysHowManyParametersItHolds) {
  EXPECT_NE(examine_free_space(std::uint64_t{16'000'000'000}).meaning.find("of 1 billion"),
            std::string::npos);
  EXPECT_EQ(examine_free_space(std::uint64_t{100} << 20).level, Level::Warn);
  EXPECT_EQ(examine_free_space(4096).level, Level::Fail);
}

TEST(FreeSpace, OfADiskThatIsNearlyFullIsWarnedOf) {
  constexpr std::uint64_t gib = 1 << 30;
  EXPECT_EQ(examine_free_space(100 * gib, 1000 * gib).level, Level::Ok);
  EXPECT_EQ(examine_free_space(100 * gib, 1000 * gib).value, "100 GiB of 1000 GiB");
  const Finding full = examine_free_space(49 * gib, 1000 * gib);
  EXPECT_EQ(full.level, Level::Warn);
  EXPECT_NE(full.meaning.find("nearly full"), std::string::npos);
  EXPECT_FALSE(full.fix.empty());
}

TEST(MountOptions, ThoseThatMakeTransfersSlowAreWarnedOf) {
  const auto warned = [](const std::string& type, std::vector<std::string> options) {
    return examine_mount_options({.point = "/data", .type = type, .options = std::move(options)});
  };
  EXPECT_TRUE(warned("ext4", {"rw", "relatime", "discard", "data=ordered", "rw"}).empty());
  EXPECT_TRUE(warned("btrfs", {"rw", "compress=no", "dax=never", "dirsync"}).empty());
  const std::pair<const char*, const char*> cases[] = {
      {"ext4", "sync"},        {"ext4", "data=journal"},       {"xfs", "dax=always"},
      {"ext4", "dax"},         {"btrfs", "compress=zstd:3"},   {"btrfs", "compress"},
      {"btrfs", "autodefrag"}, {"btrfs", "compress-force=lzo"}};
  for (const auto& [type, option] : cases) {
    const Findings findings = warned(type, {"rw", option, option});
    ASSERT_EQ(findings.size(), 1u) << option;
    EXPECT_EQ(findings[0].value, std::string(option) + " of /data");
    EXPECT_NE(findings[0].fix.find("mount -o "), std::string::npos) << findings[0].fix;
  }
  EXPECT_TRUE(warned("xfs", {"compress=zstd"}).empty()) << "that is no option of xfs";
}

TEST(Paths, NothingIsLeftBehind) {
  test_support::TemporaryDirectory folder;
  const Findings findings = examine_path(folder.path());
  EXPECT_EQ(findings[0].level, Level::Ok);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  for (const Finding& finding : findings) EXPECT_EQ(finding.subject, folder.path());
}

TEST(Paths, AMissingFolderNeedsItsParent) {
  test_support::TemporaryDirectory folder;
  EXPECT_NE(examine_path(folder.path() + "/new/")[0].value.find("missing"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder.path() + "/new"));
  const Findings none = examine_path(folder.path() + "/no/parent");
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].level, Level::Fail);
  EXPECT_EQ(none[0].fix, "mkdir -p " + folder.path() + "/no/parent");
  std::ofstream(folder.path() + "/file") << "text";
  EXPECT_EQ(examine_path(folder.path() + "/file")[0].value, "not a folder");
}

TEST(Paths, OneBelowAClosedFolderIsNotSaidToBeMissing) {
  test_support::TemporaryDirectory folder;
  fs::create_directories(folder.path() + "/closed/in/it");
  fs::permissions(folder.path() + "/closed", fs::perms::none);
  const int status = test_support::run_in_child([&] {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 77;
    const Findings findings = examine_path(folder.path() + "/closed/in/it");
    const bool right = findings.size() == 1 && findings[0].level == Level::Fail &&
                       findings[0].value == "cannot be looked at: Permission denied" &&
                       findings[0].fix.find("search permission") != std::string::npos;
    return right ? 0 : 1;
  });
  fs::permissions(folder.path() + "/closed", fs::perms::owner_all);
  EXPECT_TRUE(status == 0 || status == 77) << status;
}

TEST(DoctorStriping, TellsOfPathsThatAreOneDiskOrOneFolder) {
  const StripedPath a{"a", "/x/a", {"nvme0n1"}};
  const StripedPath b{"b", "/y/b", {"nvme1n1"}};
  const StripedPath c{"c", "/z/c", {"nvme2n1", "nvme1n1"}};  // a RAID with one of them
  EXPECT_EQ(examine_striping({a, b}).level, Level::Ok);
  const Finding shared = examine_striping({a, b, c});
  EXPECT_EQ(shared.level, Level::Warn);
  EXPECT_EQ(shared.value, "b and c are on one disk, nvme1n1");
  EXPECT_FALSE(shared.fix.empty());
  const Finding twice = examine_striping({b, c, {"link", "/y/b", {"nvme1n1"}}});
  EXPECT_EQ(twice.level, Level::Fail);
  EXPECT_EQ(twice.value, "b and link are one folder");
}

TEST(DoctorStriping, KnowsAFolderHoweverItIsSpelledAndIfItIsMissing) {
  const test_support::TemporaryDirectory folder;
  const StripedPath plain = striped_path(folder.file("new"));
  const StripedPath other = striped_path(folder.path() + "/x/../new/");
  EXPECT_EQ(plain.folder, other.folder);
  EXPECT_FALSE(plain.disks.empty());
  EXPECT_EQ(plain.disks, striped_path(folder.path()).disks);
  EXPECT_TRUE(striped_path("/no/such/parent").disks.empty());
}

// A call into it waits in the kernel, which nothing interrupts.
TEST(Paths, AFileSystemThatDoesNotAnswerIsAFailure) {
  test_support::TemporaryDirectory folder;
  const auto disk = test_support::MountedImage::make(folder.path(), 16 << 20);
  if (disk == nullptr) GTEST_SKIP() << "cannot mount here";
  const int descriptor = open(disk->path().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(ioctl(descriptor, FIFREEZE, 0), 0);
  const Findings findings = examine_path_in_time(disk->path(), 0.5);
  ASSERT_EQ(ioctl(descriptor, FITHAW, 0), 0);
  ASSERT_EQ(close(descriptor), 0);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::Fail);
  EXPECT_EQ(findings[0].value, "no answer from its file system within 0.5 s");
  EXPECT_EQ(findings[0].subject, disk->path());
  // The first caller continues now, with the file of that name.
  const Deadline deadline = Deadline::after_seconds(60);
  Level level = Level::Fail;
  while (level != Level::Ok && monotonic_ns() < deadline.at_ns) {
    level = examine_path_in_time(disk->path())[0].level;
  }
  EXPECT_EQ(level, Level::Ok);
}

}  // namespace
}  // namespace artesian::tools
