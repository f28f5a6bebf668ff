// Proves that the first failed write or sync of an open file sticks: every later call on it fails
// with that cause (reliability.md test 4). The faults are the kernel's own: a device that is full,
// a file that cannot be synced, and a block device that loses what is written to it, where a second
// fsync succeeds although the bytes are gone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "tests/support/disks.h"
#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

using test_support::TemporaryDirectory;

std::unique_ptr<File> must_open(const std::string& path, Direct direct = Direct::Never) {
  auto file = system_files().open(path, {.direct = direct});
  if (!file) ADD_FAILURE() << file.error().to_string();
  return std::move(*file);
}

/// Each call a hundred times: 100% fail, with the first cause.
void expect_poisoned(File& file, const Error& first) {
  ASSERT_NE(file.poison(), nullptr);
  char bytes[512] = {};
  for (int round = 0; round < 100; ++round) {
    for (auto& result : {file.sync(), file.write_at(bytes, 512, 0), file.read_at(bytes, 512, 0),
                         file.allocate(4096), file.write_at(bytes, 1, 77)}) {
      ASSERT_FALSE(result);
      ASSERT_EQ(result.error().to_string(), first.to_string());
      ASSERT_EQ(result.error().code, first.code);
      ASSERT_EQ(result.error().system_error, first.system_error);
    }
  }
}

TEST(FilePoison, AFailedWriteSticks) {
  const auto file = must_open("/dev/full");
  char bytes[16] = {};
  ASSERT_TRUE(file->read_at(bytes, 16, 0)) << "reads of it give zeros";
  auto written = file->write_at(bytes, 16, 0);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().system_error, ENOSPC);
  expect_poisoned(*file, written.error());
  EXPECT_TRUE(must_open("/dev/full")->read_at(bytes, 16, 0)) << "another open file is another file";
}

TEST(FilePoison, AFailedSyncSticks) {
  const auto file = must_open("/dev/zero");  // has no fsync
  char bytes[16] = {};
  ASSERT_TRUE(file->write_at(bytes, 16, 0));
  auto synced = file->sync();
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error().system_error, EINVAL);
  expect_poisoned(*file, synced.error());
}

TEST(FilePoison, AFailedReadDoesNotStick) {
  const auto file = must_open("/dev/null");
  char bytes[16] = {};
  EXPECT_FALSE(file->read_at(bytes, 16, 0));
  EXPECT_EQ(file->poison(), nullptr);
  EXPECT_TRUE(file->write_at(bytes, 16, 0));
}

TEST(FilePoison, LostWritesAreNotForgottenByTheSecondSync) {
  const TemporaryDirectory directory;
  const auto device = test_support::LosingDevice::make(directory.path());
  if (device == nullptr) GTEST_SKIP() << "cannot make a loop device here";
  const auto file = must_open(device->path());
  const std::vector<std::byte> bytes(4 << 20, std::byte{7});
  ASSERT_TRUE(file->write_at(bytes.data(), bytes.size(), 0)) << "into the page cache";
  auto synced = file->sync();
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error().system_error, EIO);
  EXPECT_EQ(fsync(file->descriptor()), 0) << "the kernel itself has forgotten";
  expect_poisoned(*file, synced.error());
}

TEST(FilePoison, ManyThreadsAgreeOnTheFirstCause) {
  for (int round = 0; round < 200; ++round) {
    const auto file = must_open("/dev/null");
    std::atomic<int> ready = 0;
    std::vector<std::string> seen(4);
    std::vector<std::thread> threads;
    for (std::size_t id = 0; id < seen.size(); ++id) {
      threads.emplace_back([&, id] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        seen[id] = file->poison_with(make_error(ErrorCode::Io, std::to_string(id))).message;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& each : seen) ASSERT_EQ(each, file->poison()->message);
  }
}

}  // namespace
}  // namespace artesian
