// Proves that a folder is addressed by its descriptor. Names that are paths are refused, links are
// not followed, only owners may read, and the folder stays the one that was opened when its name is
// moved. Each kind of rename does what it promises. Small files are replaced whole. A lock excludes
// another process and ends with its holder.
#include "base/durable_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "base/lock_record.h"
#include "base/log.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace artesian {
namespace {

using test_support::TemporaryDirectory;

const OpenOptions make{.create = Create::Exclusive, .direct = Direct::Never, .read_only = false};

std::unique_ptr<Folder> open(const std::string& path) {
  auto folder = system_files().open_folder(path);
  EXPECT_TRUE(folder.has_value());
  return std::move(folder).value();
}

unsigned mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0);
  return status.st_mode & 07777u;
}

TEST(DurableFolder, NamesThatAreNoComponentsAreRefused) {
  const TemporaryDirectory directory;
  const auto folder = open(directory.path());
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("/a"),
        std::string("../a"), std::string("a\0b", 3), std::string(256, 'a')}) {
    EXPECT_FALSE(is_component(name));
    const auto opened = folder->open(name, make);
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::Invalid);
    EXPECT_FALSE(folder->make_folder(name).has_value());
    EXPECT_FALSE(folder->remove(name).has_value());
    EXPECT_FALSE(folder->rename(name, *folder, "b", Existing::Refuse).has_value());
    EXPECT_FALSE(folder->rename("b", *folder, name, Existing::Refuse).has_value());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(DurableFolder, BufferedWritesOfLargeFilesAreDurableAsTheyReturn) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no writable /dev/shm";
  const TemporaryDirectory in_memory("/dev/shm");
  const auto folder = open(in_memory.path());
  set_log_sink([](LogLevel, std::string_view) {});
  const auto file = folder->open("a", {.create = Create::Exclusive}).value();
  set_log_sink({});
  ASSERT_FALSE(file->direct());
  EXPECT_NE(fcntl(file->descriptor(), F_GETFL) & O_DSYNC, 0);
  EXPECT_NE(fcntl(file->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(file->write_at("abc", 3, 0).has_value());
  EXPECT_EQ(in_memory.read("a"), "abc");
  const auto small = folder->open("b", make).value();
  EXPECT_EQ(fcntl(small->descriptor(), F_GETFL) & O_DSYNC, 0) << "who writes it syncs it";
}

TEST(DurableFolder, OwnersAloneMayReadUnderAnyMask) {
  const TemporaryDirectory directory;
  const auto folder = open(directory.path());
  for (const mode_t mask : {mode_t{0}, mode_t{077}, mode_t{0277}}) {
    const mode_t before = umask(mask);
    const std::string name = "a" + std::to_string(mask);
    EXPECT_TRUE(folder->open(name, make).has_value());
    EXPECT_TRUE(folder->make_folder(name + "f").has_value());
    umask(before);
    EXPECT_EQ(mode_of(directory.file(name)), 0600u);
    EXPECT_EQ(mode_of(directory.file(name + "f")), 0700u);
  }
}

TEST(DurableFolder, LinksAreNotFollowed) {
  const TemporaryDirectory directory;
  const TemporaryDirectory elsewhere;
  elsewhere.write("secret", "untouched");
  std::filesystem::create_symlink(elsewhere.file("secret"), directory.file("file"));
  std::filesystem::create_symlink(elsewhere.path(), directory.file("folder"));
  const auto folder = open(directory.path());
  EXPECT_FALSE(folder->open("file", {}).has_value());
  EXPECT_FALSE(folder->open("file", make).has_value());
  EXPECT_FALSE(folder->open_folder("folder").has_value());
  const auto found = folder->status("file");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, FileStatus::Kind::Link);
  EXPECT_FALSE(read_whole_file(*folder, "file", 100).has_value());
  EXPECT_TRUE(replace_durable_file(*folder, "file", ".t", "mine").has_value());  // the link itself
  EXPECT_EQ(elsewhere.read("secret"), "untouched");
  EXPECT_EQ(directory.read("file"), "mine");
}

TEST(DurableFolder, ItStaysTheOneThatWasOpened) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.file("a"));
  const auto folder = open(directory.file("a"));
  std::filesystem::rename(directory.file("a"), directory.file("b"));
  std::filesystem::create_directory(directory.file("a"));
  EXPECT_TRUE(write_durable_file(*folder, "x", "1").has_value());
  EXPECT_TRUE(folder->sync().has_value());
  EXPECT_EQ(directory.read("b/x"), "1");
  EXPECT_FALSE(std::filesystem::exists(directory.file("a/x")));
}

TEST(DurableFolder, RenamesRefuseReplaceOrExchange) {
  const TemporaryDirectory directory;
  directory.write("new/x", "new");
  directory.write("old/x", "old");
  const auto folder = open(directory.path());
  const auto refused = folder->rename("new", *folder, "old", Existing::Refuse);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().system_error, EEXIST);
  ASSERT_TRUE(folder->rename("new", *folder, "old", Existing::Exchange).has_value());
  EXPECT_EQ(directory.read("old/x"), "new");
  EXPECT_EQ(directory.read("new/x"), "old");
  const auto inner = folder->open_folder("new");
  ASSERT_TRUE(inner.has_value());
  ASSERT_TRUE((*inner)->rename("x", *folder, "y", Existing::Refuse).has_value());
  EXPECT_EQ(directory.read("y"), "old");
  ASSERT_TRUE(folder->link("y", **inner, "z").has_value());
  const auto found = (*inner)->status("z");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->links, 2u);
}

TEST(DurableFolder, AFolderGoesWithAllThatIsInIt) {
  const TemporaryDirectory directory;
  directory.write("a/b/c", "1");
  directory.write("a/d", "1");
  directory.write("kept/d", "1");
  std::filesystem::create_symlink(directory.file("kept"), directory.file("a/link"));
  const auto folder = open(directory.path());
  EXPECT_TRUE(remove_folder_with_files(*folder, "a", "d").has_value());
  EXPECT_FALSE(std::filesystem::exists(directory.file("a")));
  EXPECT_EQ(directory.read("kept/d"), "1");
}

TEST(DurableFolder, LongFilesAreRefusedUnread) {
  const TemporaryDirectory directory;
  directory.write("a", std::string(101, 'x'));
  const auto folder = open(directory.path());
  const auto read = read_whole_file(*folder, "a", 100);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::Corrupt);
  const auto whole = read_whole_file(*folder, "a", 101);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(*whole, std::string(101, 'x'));
}

TEST(DurableFolder, ALockHoldsAgainstOthersAndFallsWithItsHolder) {
  const TemporaryDirectory directory;
  const auto folder = open(directory.path());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    auto lock = FolderLock::acquire(*folder, ".lock", holder_record(7));
    const char told = lock.has_value() ? 'y' : 'n';
    if (write(ends[1], &told, 1) == 1) pause();
    _exit(1);
  }
  char told = 0;
  ASSERT_EQ(read(ends[0], &told, 1), 1);
  EXPECT_EQ(told, 'y');
  const auto refused = FolderLock::acquire(*folder, ".lock", holder_record(8));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Busy);
  EXPECT_NE(refused.error().message.find("pid " + std::to_string(child)), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("run 0000000000000007"), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(FolderLock::acquire(*folder, ".lock", holder_record(8)).has_value());
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace artesian
