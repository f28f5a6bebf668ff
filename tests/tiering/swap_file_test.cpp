// Proves, on the kernel's file system, what the swap file promises: space before the first step,
// extents that never overlap, refusals that say what to do, and nothing left behind, neither by
// close nor by a failed start. Sharing of one directory is tests/tiering/swap_sharing_test.cpp.
#include "tiering/swap_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/support/baseline.h"
#include "tests/support/memory_files.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"
#include "tiering/superblock.h"
#include "tiering/swap_directory.h"
#include "tiering/swap_lock.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

namespace fs = std::filesystem;
using test_support::TemporaryDirectory;

std::unique_ptr<SwapFile> created(const SwapFileOptions& options) {
  auto swap = SwapFile::create(options, system_files());
  if (!swap.has_value()) ADD_FAILURE() << swap.error().to_string();
  return std::move(swap).value();
}

Error refusal(const SwapFileOptions& options) {
  auto swap = SwapFile::create(options, system_files());
  if (!swap.has_value()) return std::move(swap).error();
  ADD_FAILURE() << "not refused";
  (void)(*swap)->close().has_value();
  return {};
}

unsigned mode_of(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 ? found.st_mode & 07777u : 0;
}

TEST(SwapFile, ReservesItsSpaceAndLeavesNothing) {
  const TemporaryDirectory directory;
  const auto before = test_support::Baseline::now();
  auto swap = created({.directory = directory.path(), .rank = 2, .run_id = 0xabc, .bytes = 9999});
  const std::string path = directory.file("artesian-0000000000000abc-rank2.swap");
  EXPECT_EQ(swap->file().path(), path);
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_size, static_cast<off_t>(superblock_region_size + 3 * 4096));
  EXPECT_GE(found.st_blocks * 512, found.st_size);  // reserved, not sparse
  const Superblock expected{.rank = 2, .run_id = 0xabc, .payload_bytes = 3 * 4096};
  EXPECT_EQ(read_superblock(swap->file()).value(), expected);
  std::ifstream lock(directory.file("artesian-rank2.lock"));
  std::string text;
  std::getline(lock, text);
  EXPECT_NE(text.find("pid " + std::to_string(getpid()) + " on host "), text.npos) << text;
  EXPECT_NE(text.find("run 0000000000000abc"), text.npos) << text;
  lock.close();
  EXPECT_TRUE(swap->close().has_value());
  swap.reset();
  EXPECT_TRUE(fs::is_empty(directory.path()));
  EXPECT_LE(test_support::Baseline::settled(before), before);
}

TEST(SwapFile, ExtentsFollowEachOtherUntilTheFileIsFull) {
  const TemporaryDirectory directory;
  auto swap = created({.directory = directory.path(), .run_id = 1, .bytes = 5 * 4096});
  const auto first = swap->allocate(1).value();
  const auto second = swap->allocate(4097).value();
  EXPECT_EQ(first.offset, superblock_region_size);
  EXPECT_EQ(first.length, 4096u);
  EXPECT_EQ(second.offset, first.offset + first.length);
  EXPECT_EQ(second.length, 8192u);
  EXPECT_EQ(swap->bytes_used(), 3 * 4096u);
  for (const std::uint64_t bytes : {std::uint64_t{2 * 4096 + 1}, ~std::uint64_t{0}}) {
    const auto refused = swap->allocate(bytes);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  }
  EXPECT_EQ(swap->allocate(2 * 4096).value().offset, second.offset + second.length);
  EXPECT_FALSE(swap->allocate(1).has_value());
  EXPECT_TRUE(swap->close().has_value());
}

TEST(SwapFile, MakesAMissingDirectoryAndRemovesIt) {
  const TemporaryDirectory parent;
  for (const std::string name : {"nvme", "nvme/", "nvme//"}) {
    auto swap = created({.directory = parent.file(name), .run_id = 1, .bytes = 4096});
    EXPECT_EQ(mode_of(parent.file("nvme")), 0700u);
    EXPECT_TRUE(swap->close().has_value());
    EXPECT_TRUE(fs::is_empty(parent.path())) << name;
  }
}

TEST(SwapFile, TheLastRankRemovesADirectoryThatTheFirstMade) {
  const TemporaryDirectory parent;
  auto first = created({.directory = parent.file("nvme"), .rank = 0, .run_id = 1, .bytes = 1});
  auto second = created({.directory = parent.file("nvme"), .rank = 1, .run_id = 1, .bytes = 1});
  EXPECT_TRUE(first->close().has_value());
  EXPECT_TRUE(fs::exists(second->file().path()));
  EXPECT_TRUE(second->close().has_value());
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

TEST(SwapFile, KeepsADirectoryThatTheUserPutSomethingInto) {
  const TemporaryDirectory parent;
  auto swap = created({.directory = parent.file("nvme"), .run_id = 1, .bytes = 1});
  std::ofstream(parent.file("nvme/notes.txt")) << "mine";
  EXPECT_TRUE(swap->close().has_value());
  EXPECT_TRUE(fs::exists(parent.file("nvme/notes.txt")));
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.file("nvme")), {}), 1);
}

TEST(SwapFile, OwnerOnlyUnderEveryUmask) {
  for (const mode_t mask : {mode_t{000}, mode_t{077}}) {
    const TemporaryDirectory parent;
    const mode_t before = umask(mask);
    auto swap = created({.directory = parent.file("nvme"), .run_id = 1, .bytes = 1});
    umask(before);
    EXPECT_EQ(mode_of(parent.file("nvme")), 0700u);
    for (const auto& entry : fs::directory_iterator(parent.file("nvme"))) {
      EXPECT_EQ(mode_of(entry.path()), 0600u) << entry.path();
    }
    EXPECT_TRUE(swap->close().has_value());
  }
}

/// The flags with which this process has the file open, from /proc/self/fdinfo; 0 if it has not.
unsigned long open_flags(const std::string& path) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) != path) continue;
    std::ifstream info("/proc/self/fdinfo/" + entry.path().filename().string());
    for (std::string line; std::getline(info, line);) {
      if (line.rfind("flags:", 0) == 0) return std::stoul(line.substr(6), nullptr, 8);
    }
  }
  return 0;
}

// O_EXCL leaves no trace in the flags: RefusesPlantedNames is its proof.
TEST(SwapFile, DescriptorsAreNotInheritedAndLinksNotFollowed) {
  const TemporaryDirectory directory;
  auto swap = created({.directory = directory.path(), .run_id = 3, .bytes = 1});
  for (const std::string& path : {swap->file().path(), directory.file(lock_file_name(0))}) {
    const unsigned long flags = open_flags(path);
    EXPECT_NE(flags & O_CLOEXEC, 0u) << path;
    EXPECT_NE(flags & O_NOFOLLOW, 0u) << path;
  }
  EXPECT_TRUE(swap->close().has_value());
}

TEST(SwapFile, WhatDeadRunsLeftIsCountedAndLeftThere) {
  const TemporaryDirectory directory;
  const auto left = [&] { return stale_swap_bytes(directory.path(), system_files()); };
  EXPECT_EQ(left(), 0u);
  directory.write(swap_file_name(1, 0), std::string(1000, 'a'));
  directory.write(swap_file_name(2, 3), std::string(200, 'a'));
  directory.write("artesian-of-somebody.swap", std::string(50, 'a'));
  fs::create_symlink(directory.file("artesian-of-somebody.swap"),
                     directory.file(swap_file_name(4, 0)));
  EXPECT_EQ(left(), 1200u);
  auto held = SwapLock::acquire(directory.path(), 3, 2, system_files());
  ASSERT_TRUE(held.has_value()) << held.error().to_string();
  EXPECT_EQ(left(), 1000u);  // of a run that lives
  EXPECT_TRUE(held->release().has_value());
  directory.write(lock_file_name(3), "of a run that was killed");
  EXPECT_EQ(left(), 1200u);
  EXPECT_TRUE(fs::exists(directory.file(lock_file_name(3))));
  EXPECT_TRUE(fs::exists(directory.file(swap_file_name(1, 0))));
  auto swap = created({.directory = directory.path(), .run_id = 9, .bytes = 4096});
  EXPECT_EQ(left(), 0u);  // it has removed them, and its own is in use
  EXPECT_TRUE(swap->close().has_value());
}

TEST(SwapFile, RefusesUnusableDirectories) {
  const TemporaryDirectory parent;
  std::ofstream(parent.file("file")) << "foreign";
  fs::create_symlink(parent.file("nowhere"), parent.file("link"));
  for (const std::string& path :
       {std::string(), parent.file("file"), parent.file("file/below"), parent.file("missing/nvme"),
        parent.file("link"), parent.file(std::string(300, 'x'))}) {
    const Error error = refusal({.directory = path, .run_id = 1, .bytes = 4096});
    EXPECT_EQ(error.code, ErrorCode::Invalid) << path;
    EXPECT_EQ(error.file, path);
    EXPECT_EQ(error.message.rfind("nvme directory ", 0), 0u) << error.to_string();
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 2);  // as before
}

TEST(SwapFile, RefusesADirectoryThatThisUserMayNotWriteTo) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const TemporaryDirectory outer("/tmp");  // the build folder may not be open to other users
  chmod(outer.path().c_str(), 0755);
  const int status = test_support::run_in_child([&outer] {
    if (setresuid(65534, 65534, 65534) != 0) return 2;
    const auto existing = SwapFile::create({.directory = outer.path(), .bytes = 1}, system_files());
    const auto missing =
        SwapFile::create({.directory = outer.file("nvme"), .bytes = 1}, system_files());
    if (existing.has_value() || existing.error().code != ErrorCode::Invalid) return 3;
    if (missing.has_value() || missing.error().code != ErrorCode::Invalid) return 4;
    return existing.error().to_string().find("cannot be written") != std::string::npos ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::is_empty(outer.path()));
}

TEST(SwapFile, RefusesPlantedNames) {
  const SwapFileOptions options{.directory = "", .rank = 0, .run_id = 5, .bytes = 4096};
  for (const std::string& name : {swap_file_name(5, 0), lock_file_name(0)}) {
    const TemporaryDirectory directory;
    std::ofstream(directory.file("target")) << "precious";
    fs::create_symlink(directory.file("target"), directory.file(name));
    SwapFileOptions here = options;
    here.directory = directory.path();
    EXPECT_EQ(refusal(here).code, ErrorCode::Invalid) << name;
    EXPECT_TRUE(fs::is_symlink(directory.file(name)));
    EXPECT_EQ(fs::file_size(directory.file("target")), 8u);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 2);

    fs::remove(directory.file(name));
    fs::create_directory(directory.file(name));
    EXPECT_EQ(refusal(here).code, ErrorCode::Invalid) << name;
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 2);
    if (getuid() != 0) continue;

    fs::remove(directory.file(name));
    std::ofstream(directory.file(name)) << "another user's";
    ASSERT_EQ(chown(directory.file(name).c_str(), 65534, 65534), 0);
    EXPECT_EQ(refusal(here).code, ErrorCode::Invalid) << name;
    EXPECT_EQ(fs::file_size(directory.file(name)), 14u);
  }
}

// A 64 MiB ext4 file system in a file; empty path where that is not allowed.
class SmallDisk {
 public:
  SmallDisk() {
    if (getuid() != 0) return;
    const std::string image = directory_.file("image");
    const std::string mount_point = directory_.file("mount");
    fs::create_directory(mount_point);
    const std::string command = "truncate -s 64M " + image + " && mkfs.ext4 -q -m 0 " + image +
                                " && mount -o loop " + image + " " + mount_point;
    if (std::system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0) path_ = mount_point;
  }
  ~SmallDisk() {
    if (path_.empty()) return;
    EXPECT_EQ(std::system(("umount " + path_).c_str()), 0);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory directory_;
  std::string path_;
};

TEST(SwapFile, AFullDiskIsRefusedBeforeTheFirstStep) {
  const SmallDisk disk;
  if (disk.path().empty()) GTEST_SKIP() << "needs root and loop devices";
  const auto free_before = system_files().free_bytes(disk.path()).value();
  for (const std::string& directory : {disk.path(), disk.path() + "/nvme"}) {
    const Error error = refusal({.directory = directory, .run_id = 1, .bytes = 100ull << 20});
    EXPECT_EQ(error.code, ErrorCode::NoSpace) << error.to_string();
    EXPECT_EQ(error.file, directory);
    const std::string needed = std::to_string((100ull << 20) + superblock_region_size) + " bytes";
    EXPECT_NE(error.message.find(needed), std::string::npos) << error.to_string();
    EXPECT_NE(error.message.find(std::to_string(free_before) + " bytes"), std::string::npos)
        << error.to_string() << free_before;
    EXPECT_EQ(system_files().list(disk.path()).value(), std::vector<std::string>{"lost+found"});
    EXPECT_EQ(system_files().free_bytes(disk.path()).value(), free_before);
  }
  auto fits = created({.directory = disk.path(), .run_id = 1, .bytes = 40ull << 20});
  EXPECT_TRUE(fits->close().has_value());
}

TEST(SwapFile, ReservedSpaceCanBeWrittenOnADiskThatHasBecomeFull) {
  const SmallDisk disk;
  if (disk.path().empty()) GTEST_SKIP() << "needs root and loop devices";
  auto swap = created({.directory = disk.path(), .run_id = 1, .bytes = 32ull << 20});
  std::ofstream other(disk.path() + "/other", std::ios::binary);
  const std::vector<char> bytes(1 << 20, 'x');
  while (other.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush()) continue;
  EXPECT_LT(system_files().free_bytes(disk.path()).value(), 1u << 20);
  const auto extent = swap->allocate(32ull << 20).value();
  for (std::uint64_t done = 0; done < extent.length; done += bytes.size()) {
    const auto written = swap->file().write_at(bytes.data(), bytes.size(), extent.offset + done);
    ASSERT_TRUE(written.has_value()) << done << ": " << written.error().to_string();
  }
  EXPECT_TRUE(swap->file().sync().has_value());
  EXPECT_TRUE(swap->close().has_value());
}

TEST(SwapFile, AnImpossibleSizeIsRefused) {
  const TemporaryDirectory directory;
  for (const std::uint64_t bytes : {1ull << 50, 1ull << 61, ~0ull}) {
    const Error error = refusal({.directory = directory.path(), .run_id = 1, .bytes = bytes});
    EXPECT_TRUE(error.code == ErrorCode::NoSpace || error.code == ErrorCode::Invalid)
        << error.to_string();
    EXPECT_TRUE(fs::is_empty(directory.path()));
  }
}

TEST(SwapFileDeathTest, DyingWithoutCloseAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // In memory: the child that dies would leave a directory of its own behind.
  test_support::MemoryFiles files(1 << 20);
  EXPECT_DEATH((void)SwapFile::create({.directory = "/disk", .bytes = 1}, files).has_value(),
               "CHECK failed: closed_");
}

}  // namespace
}  // namespace artesian::tiering
