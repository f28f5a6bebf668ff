// Proves that a file frees the space of a refused reservation, and that calls which make files
// durable are made and their failures reported. Each call is watched, and refused in turn.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <vector>

#include "base/durable_folder.h"
#include "base/file_system.h"
#include "base/log.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_calls.h"

namespace artesian {
namespace {

using test_support::TemporaryDirectory;
using test_support::WatchedCall;
using test_support::WatchedCalls;
using Kind = WatchedCall::Kind;

std::uint64_t bytes_on_disk(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

class FileDurability : public testing::Test {
 protected:
  ~FileDurability() override { WatchedCalls::all().end(); }
  const TemporaryDirectory folder_;
  const std::string path_ = folder_.path() + "/file";
  const std::unique_ptr<File> file_ =
      system_files().open(path_, {.create = Create::Exclusive}).value();
};

TEST_F(FileDurability, ARefusedReservationGivesBackWhatItTook) {
  ASSERT_TRUE(file_->allocate(1 << 20).has_value());
  const std::uint64_t before = bytes_on_disk(path_);
  WatchedCalls::all().begin({{Kind::Reserve, 0, ENOSPC}});
  const auto refused = file_->allocate(16 << 20);
  WatchedCalls::all().end();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(file_->size().value(), std::uint64_t{1} << 20);
  EXPECT_EQ(bytes_on_disk(path_), before);
}

constexpr int lacking[] = {EINVAL, ENOSYS, EOPNOTSUPP, EPERM};

TEST_F(FileDurability, AFileSystemThatReservesNothingGrowsTheFile) {
  std::uint64_t bytes = 8 << 20;
  for (const int refusal : lacking) {
    WatchedCalls::all().begin({{Kind::Reserve, 0, refusal}});
    EXPECT_TRUE(file_->allocate(bytes += 1 << 20).has_value()) << refusal;
    EXPECT_EQ(file_->size().value(), bytes);
  }
  WatchedCalls::all().begin({{Kind::Reserve, 0, EIO}});
  const auto failed = file_->allocate(32 << 20);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().system_error, EIO);
}

TEST_F(FileDurability, SyncsReachTheKernelAndTheirFailuresTheCaller) {
  WatchedCalls::all().begin();
  ASSERT_TRUE(file_->sync().has_value());
  ASSERT_TRUE(system_files().sync_directory(folder_.path()).has_value());
  ASSERT_TRUE(system_files().rename(path_, path_ + "2").has_value());
  const auto& calls = WatchedCalls::all().list();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].path, path_);
  EXPECT_EQ(calls[1].path, folder_.path());
  EXPECT_EQ(calls[2].path, path_ + "2");
  WatchedCalls::all().begin(
      {{Kind::Sync, 0, EIO}, {Kind::Sync, 1, ENOSPC}, {Kind::Rename, 0, EIO}});
  EXPECT_EQ(system_files().sync_directory(folder_.path()).error().code, ErrorCode::Io);
  EXPECT_EQ(file_->sync().error().code, ErrorCode::NoSpace);
  EXPECT_EQ(file_->sync().error().code, ErrorCode::NoSpace);  // for good: Note [Poison]
  EXPECT_EQ(system_files().rename(path_ + "2", path_).error().code, ErrorCode::Io);
}

TEST_F(FileDurability, AFolderThatCannotBeSyncedIsAWarning) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  const auto folder = system_files().open_folder(folder_.path()).value();
  for (const int refusal : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    WatchedCalls::all().begin({{Kind::Sync, 0, refusal}, {Kind::Sync, 1, refusal}});
    EXPECT_TRUE(folder->sync().has_value()) << refusal;
    EXPECT_TRUE(system_files().sync_directory(folder_.path()).has_value()) << refusal;
  }
  WatchedCalls::all().begin({{Kind::Sync, 0, EPERM}, {Kind::Sync, 1, EINVAL}});
  EXPECT_FALSE(folder->sync().has_value());
  EXPECT_FALSE(file_->sync().has_value()) << "a file's bytes must be durable";
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find(folder_.path() + " cannot sync a folder"), std::string::npos);
}

TEST_F(FileDurability, ARenameToANewNameNeedsNoFlags) {
  const auto folder = system_files().open_folder(folder_.path()).value();
  ASSERT_TRUE(write_durable_file(*folder, "taken", "1").has_value());
  for (const int refusal : lacking) {
    WatchedCalls::all().begin({{Kind::Rename, 0, refusal}});
    EXPECT_TRUE(rename_to_new(*folder, "file", *folder, "other").has_value()) << refusal;
    WatchedCalls::all().begin({{Kind::Rename, 0, refusal}});
    EXPECT_EQ(rename_to_new(*folder, "other", *folder, "taken").error().system_error, EEXIST);
    WatchedCalls::all().begin({{Kind::Rename, 0, refusal}, {Kind::Rename, 1, EIO}});
    EXPECT_EQ(rename_to_new(*folder, "other", *folder, "file").error().system_error, EIO);
    WatchedCalls::all().begin({{Kind::Rename, 0, refusal}});
    EXPECT_EQ(folder->rename("other", *folder, "file", Existing::Refuse).error().code,
              ErrorCode::Unsupported);
    WatchedCalls::all().begin({});
    EXPECT_TRUE(rename_to_new(*folder, "other", *folder, "file").has_value());
  }
}

}  // namespace
}  // namespace artesian
