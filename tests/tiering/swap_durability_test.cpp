// Proves how a swap file and its lock behave if the kernel refuses a call. A file or a lock that
// cannot be removed is an error and blocks nobody. Refused space leaves nothing. A lock's name that
// leads to another file meanwhile is neither taken for ours nor removed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "tests/support/baseline.h"
#include "tests/support/diverted_files.h"
#include "tests/support/temporary_directory.h"
#include "tiering/swap_file.h"
#include "tiering/swap_lock.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

namespace fs = std::filesystem;
using test_support::DivertedFiles;
using test_support::ForwardingFile;
using test_support::TemporaryDirectory;

Error refusal(int system_error, const std::string& path) {
  const bool full = system_error == ENOSPC;
  Error error = make_error(full ? ErrorCode::NoSpace : ErrorCode::Io, "refused", system_error);
  error.file = path;
  return error;
}

/// Space is refused late, when half of it has been reserved.
class RefusedRoomFile final : public ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  Result<void> allocate(std::uint64_t bytes) noexcept override {
    EXPECT_TRUE(ForwardingFile::allocate(bytes / 2).has_value());
    return refusal(ENOSPC, path());
  }
};

class RefusedWriteFile final : public ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  Result<void> write_at(const void*, std::uint64_t, std::uint64_t) noexcept override {
    return refusal(EIO, path());
  }
};

/// The kernel's files, except for the calls that a test refuses.
class RefusingFiles final : public DivertedFiles {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    ARTESIAN_TRY(file, DivertedFiles::open(path, options));
    if (wrap) return wrap(std::move(file));
    return file;
  }
  Result<void> remove(const std::string& path) noexcept override {
    if (path.ends_with(keeps)) return refusal(EIO, path);
    return DivertedFiles::remove(path);
  }
  Result<FileStatus> status(const std::string& path) noexcept override {
    if (before_status) before_status(path);
    return DivertedFiles::status(path);
  }

  std::string keeps = "\n";  // names that end so cannot be removed
  std::function<std::unique_ptr<File>(std::unique_ptr<File>)> wrap;
  std::function<void(const std::string&)> before_status;
};

class SwapDurability : public testing::Test {
 protected:
  SwapFileOptions options(std::uint64_t run_id = 1) const {
    SwapFileOptions options;
    options.directory = folder_.path();
    options.run_id = run_id;
    options.bytes = 1 << 20;
    return options;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string lock_name() const { return folder_.path() + "/" + lock_file_name(0); }
  /// Another process can have the folder, and leaves it empty.
  void expect_free() {
    auto next = SwapFile::create(options(2), system_files());
    ASSERT_TRUE(next.has_value()) << next.error().to_string();
    EXPECT_EQ(names(), (std::vector<std::string>{swap_file_name(2, 0), lock_file_name(0)}));
    EXPECT_TRUE((*next)->close().has_value());
    EXPECT_EQ(names(), std::vector<std::string>());
  }
  /// Puts another file under the lock's name.
  void replace_lock() const {
    fs::remove(lock_name());
    ASSERT_TRUE(system_files().open(lock_name(), {.create = Create::Exclusive}).has_value());
  }

  const TemporaryDirectory folder_;
  RefusingFiles files_;
};

TEST_F(SwapDurability, AFileThatCannotBeRemovedIsAnErrorAndHoldsNobodyUp) {
  for (const char* ending : {".swap", ".lock"}) {
    SCOPED_TRACE(ending);
    const auto before = test_support::Baseline::now();
    files_.keeps = ending;
    auto swap = SwapFile::create(options(), files_).value();
    const auto closed = swap->close();
    ASSERT_FALSE(closed.has_value());
    EXPECT_EQ(closed.error().system_error, EIO);
    EXPECT_TRUE(closed.error().file.ends_with(ending)) << closed.error().to_string();
    EXPECT_EQ(names().size(), 1u);  // the file that cannot be removed, and no more
    expect_free();
    swap.reset();
    EXPECT_TRUE(test_support::Baseline::settled(before) <= before);
  }
}

TEST_F(SwapDurability, RoomThatIsRefusedLateIsGivenBack) {
  files_.wrap = [](std::unique_ptr<File> file) -> std::unique_ptr<File> {
    if (!file->path().ends_with(".swap")) return file;
    return std::make_unique<RefusedRoomFile>(std::move(file));
  };
  const auto refused = SwapFile::create(options(), files_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(names(), std::vector<std::string>());
  expect_free();
}

TEST_F(SwapDurability, ALockWithoutARecordIsGivenBack) {
  files_.wrap = [](std::unique_ptr<File> file) -> std::unique_ptr<File> {
    return std::make_unique<RefusedWriteFile>(std::move(file));
  };
  const auto lock = SwapLock::acquire(folder_.path(), 0, 1, files_);
  ASSERT_FALSE(lock.has_value());
  EXPECT_EQ(lock.error().system_error, EIO);
  EXPECT_EQ(names(), std::vector<std::string>());
  expect_free();
}

TEST_F(SwapDurability, ALockWhoseNameIsAnothersIsNotRemoved) {
  auto lock = SwapLock::acquire(folder_.path(), 0, 1, files_).value();
  replace_lock();
  EXPECT_TRUE(lock.release().has_value());
  EXPECT_EQ(names(), std::vector<std::string>{lock_file_name(0)});
  fs::remove(lock_name());
  expect_free();
}

/// Between the lock and the check of its name: a later process locks the file that has the name.
TEST_F(SwapDurability, ALockWhoseNameWasReplacedMeanwhileIsTakenAgain) {
  int looks = 0;
  files_.before_status = [&](const std::string&) {
    if (++looks == 1) replace_lock();
  };
  auto lock = SwapLock::acquire(folder_.path(), 0, 1, files_);
  ASSERT_TRUE(lock.has_value()) << lock.error().to_string();
  EXPECT_GE(looks, 2);
  auto named = system_files().open(lock_name(), {}).value();
  EXPECT_EQ(named->lock().error().code, ErrorCode::Busy);
  EXPECT_TRUE(lock->release().has_value());
  EXPECT_EQ(names(), std::vector<std::string>());
}

TEST_F(SwapDurability, WhatADeadRunLeftIsNotTakenOverOnceItsNameIsAnothers) {
  ASSERT_TRUE(system_files().open(lock_name(), {.create = Create::Exclusive}).has_value());
  int looks = 0;
  files_.before_status = [&](const std::string&) {
    if (++looks == 2) replace_lock();  // after it was locked
  };
  EXPECT_FALSE(SwapLock::take_over(folder_.path(), 0, files_).has_value());
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(names(), std::vector<std::string>{lock_file_name(0)});
}

}  // namespace
}  // namespace artesian::tiering
