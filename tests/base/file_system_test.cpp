// Proves the promises of the kernel's file system: what an open refuses and creates, when transfers
// are direct, that small transfers move every byte at any alignment, that a full disk is an error
// with figures, and that errors name file, offset, length and errno.
#include "base/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>

#include "base/log.h"
#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

using test_support::TemporaryDirectory;

std::unique_ptr<File> created(const std::string& path, Direct direct = Direct::Never) {
  auto file = system_files().open(path, {.create = Create::Exclusive, .direct = direct});
  if (!file) ADD_FAILURE() << file.error().to_string();
  return std::move(*file);
}

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(FileSystem, CreatesOwnerOnlyFilesUnderAnyUmask) {
  const TemporaryDirectory directory;
  int number = 0;
  for (const mode_t mask : {mode_t{000}, mode_t{077}, mode_t{0777}}) {
    const mode_t before = umask(mask);
    const auto name = directory.file("file" + std::to_string(++number));
    const auto file = created(name);
    const auto folder = directory.file("folder" + std::to_string(number));
    const bool made = system_files().make_directory(folder).has_value();
    umask(before);
    EXPECT_TRUE(made);
    struct stat status {};
    ASSERT_EQ(stat(name.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0600u);
    ASSERT_EQ(stat(folder.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0700u);
    EXPECT_NE(fcntl(file->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(FileSystem, RefusesExistingFilesAndSymlinks) {
  const TemporaryDirectory directory;
  created(directory.file("file"));
  auto again = system_files().open(directory.file("file"), {.create = Create::Exclusive});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().system_error, EEXIST);
  EXPECT_EQ(again.error().file, directory.file("file"));

  ASSERT_EQ(symlink("file", directory.file("link").c_str()), 0);
  auto followed = system_files().open(directory.file("link"), {});
  ASSERT_FALSE(followed);
  EXPECT_EQ(followed.error().code, ErrorCode::Io);
  EXPECT_EQ(followed.error().system_error, ELOOP);
}

TEST(FileSystem, AbsentFileIsAnErrorThatNamesIt) {
  auto file = system_files().open("does/not/exist", {});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().to_string(),
            "cannot open a file: does/not/exist: No such file or directory");
  EXPECT_FALSE(system_files().exists("does/not/exist"));
}

TEST(FileSystem, DirectOnlyWhereTheKernelStatesAnAlignment) {
  const TemporaryDirectory directory;
  const auto file = created(directory.file("file"), Direct::IfAligned);
  const bool flag = (fcntl(file->descriptor(), F_GETFL) & O_DIRECT) != 0;
  EXPECT_EQ(file->direct(), flag);
  EXPECT_EQ(file->alignment() > 1, flag);
  const auto buffered = created(directory.file("buffered"), Direct::Never);
  EXPECT_FALSE(buffered->direct());
  EXPECT_EQ(buffered->alignment(), 1u);
}

TEST(FileSystem, TmpfsIsBufferedWithOneWarningOrRefused) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no writable /dev/shm";
  const TemporaryDirectory directory("/dev/shm");
  int warnings = 0;
  set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::Warning; });
  const auto first = created(directory.file("first"), Direct::IfAligned);
  const auto second = created(directory.file("second"), Direct::IfAligned);
  set_log_sink({});
  EXPECT_FALSE(first->direct());
  EXPECT_EQ(warnings, 1);
  auto refused = system_files().open(directory.file("third"),
                                     {.create = Create::Exclusive, .direct = Direct::Required});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_error, EINVAL);
  EXPECT_FALSE(system_files().exists(directory.file("third"))) << "left behind";
}

// Real refusals: the kernel answers EINVAL to O_DIRECT for both files.
TEST(FileSystem, RefusedDirectIsBufferedWithOneWarningOrRefused) {
  for (const char* path : {"/dev/zero", "/proc/self/comm"}) {
    int warnings = 0;
    set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::Warning; });
    for (int round = 0; round < 2; ++round) {
      auto file = system_files().open(path, {.direct = Direct::IfAligned});
      ASSERT_TRUE(file) << path;
      EXPECT_FALSE((*file)->direct()) << path;
      EXPECT_EQ((*file)->alignment(), 1u);
      char byte = 'x';
      EXPECT_TRUE((*file)->read_at(&byte, 1, 0)) << path;
    }
    set_log_sink({});
    EXPECT_EQ(warnings, 1) << path;
    auto refused = system_files().open(path, {.direct = Direct::Required});
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().system_error, EINVAL);
  }
}

TEST(FileSystem, SmallTransfersMoveEveryByteAtAnyAlignment) {
  const TemporaryDirectory directory;
  for (const Direct direct : {Direct::Never, Direct::IfAligned}) {
    const std::string path = directory.file(direct == Direct::Never ? "buffered" : "direct");
    const auto file = created(path, direct);
    std::string expected(20000, '\0');
    std::string piece(9001, '\0');
    std::iota(piece.begin(), piece.end(), 'a');
    for (const std::size_t offset : {0u, 1u, 511u, 512u, 4096u, 5000u, 10999u}) {
      for (const std::size_t length : {1u, 17u, 512u, 4096u, 9001u}) {
        ASSERT_TRUE(file->write_at(piece.data(), length, offset));
        std::memcpy(expected.data() + offset, piece.data(), length);
        std::string back(length, '\0');
        ASSERT_TRUE(file->read_at(back.data(), length, offset));
        EXPECT_EQ(back, piece.substr(0, length)) << offset << " " << length;
      }
    }
    EXPECT_EQ(bytes_of(path), expected) << "the file must end with the last byte written";
  }
}

TEST(FileSystem, ReadPastTheEndNamesOffsetAndLength) {
  const TemporaryDirectory directory;
  for (const Direct direct : {Direct::Never, Direct::IfAligned}) {
    const auto file = created(directory.file(direct == Direct::Never ? "a" : "b"), direct);
    const std::string text(5000, 'x');
    ASSERT_TRUE(file->write_at(text.data(), text.size(), 0));
    std::string back(8192, '\0');
    auto read = file->read_at(back.data(), back.size(), 0);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::Io);
    EXPECT_EQ(read.error().offset, 5000u);
    EXPECT_EQ(read.error().length, 3192u);
    EXPECT_NE(read.error().to_string().find("end of file: " + file->path()), std::string::npos);
    EXPECT_FALSE(file->read_at(back.data(), 10, 6000));
  }
}

TEST(FileSystem, AllocateReservesAndNeverShrinks) {
  const TemporaryDirectory directory;
  const auto file = created(directory.file("file"));
  ASSERT_TRUE(file->allocate(1 << 20));
  ASSERT_TRUE(file->allocate(4096));
  EXPECT_EQ(*file->size(), 1u << 20);
}

TEST(FileSystem, AllocateMoreThanFreeNamesNeededAndFreeBytes) {
  const TemporaryDirectory directory;
  const auto file = created(directory.file("file"));
  auto available = system_files().free_bytes(directory.path());
  ASSERT_TRUE(available);
  const std::uint64_t needed = *available + (std::uint64_t{1} << 40);
  if (needed > std::uint64_t{8} << 40) GTEST_SKIP() << "the disk is larger than a file may be";
  auto result = file->allocate(needed);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::NoSpace);
  EXPECT_NE(result.error().message.find(std::to_string(needed)), std::string::npos);
  EXPECT_NE(result.error().message.find("free are"), std::string::npos);
}

TEST(FileSystem, FullDeviceIsNoSpace) {
  auto file = system_files().open("/dev/full", {.direct = Direct::Never});
  ASSERT_TRUE(file);
  auto written = (*file)->write_at("abcd", 4, 0);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(written.error().system_error, ENOSPC);
}

TEST(FileSystem, ShortWriteIsContinuedThenFailsWithItsOffset) {
  const TemporaryDirectory directory;
  const auto file = created(directory.file("file"));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 5000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string text(8192, 'x');
  auto written = file->write_at(text.data(), text.size(), 0);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().system_error, EFBIG);
  EXPECT_EQ(written.error().offset, 5000u);
  EXPECT_EQ(*file->size(), 5000u);
}

TEST(FileSystem, SecondLockIsBusyUntilTheFirstFileIsClosed) {
  const TemporaryDirectory directory;
  auto first = created(directory.file("lock"));
  ASSERT_TRUE(first->lock());
  auto second = system_files().open(directory.file("lock"), {.direct = Direct::Never});
  ASSERT_TRUE(second);
  auto refused = (*second)->lock();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::Busy);
  first.reset();
  EXPECT_TRUE((*second)->lock());
}

TEST(FileSystem, ListsRenamesAndRemoves) {
  const TemporaryDirectory directory;
  FileSystem& files = system_files();
  created(directory.file("b"));
  created(directory.file("a"));
  ASSERT_TRUE(files.rename(directory.file("b"), directory.file("c")));
  ASSERT_TRUE(files.sync_directory(directory.path()));
  auto names = files.list(directory.path());
  ASSERT_TRUE(names);
  EXPECT_EQ(*names, (std::vector<std::string>{"a", "c"}));
  auto full = files.remove_directory(directory.path());
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().system_error, ENOTEMPTY);
  EXPECT_TRUE(files.remove(directory.file("a")));
  EXPECT_TRUE(files.remove(directory.file("c")));
  EXPECT_FALSE(files.remove(directory.file("c")));
  EXPECT_TRUE(files.remove_directory(directory.path()));
}

TEST(FileSystem, ReadOnlyFileRefusesWrites) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(created(directory.file("file"))->write_at("abcd", 4, 0));
  auto file = system_files().open(directory.file("file"), {.read_only = true});
  ASSERT_TRUE(file);
  char back[4];
  EXPECT_TRUE((*file)->read_at(back, 4, 0));
  auto written = (*file)->write_at("efgh", 4, 0);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().system_error, EBADF);
}

}  // namespace
}  // namespace artesian
