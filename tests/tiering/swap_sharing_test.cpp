// Proves that one directory never serves two runs at once, and that dead runs cause no trouble:
// with real processes, locks and SIGKILL. It shows what the second process is told, what it may
// remove, and that racing processes never hold the directory together.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <vector>

#include "aio/threads.h"
#include "pinned/pool.h"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"
#include "tiering/swap_file.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

namespace fs = std::filesystem;
using test_support::TemporaryDirectory;

constexpr std::uint64_t payload_offset = 4 * 4096;  // after the superblocks
constexpr std::uint64_t writes_in_flight = 32;      // of 1 MiB

/// The work of a process that holds the folder until it is killed.
enum class Busyness : std::uint8_t { Idle, Writing, WithChild };

/// Never ends. The whole payload is in flight all the time, or a child process outlives it.
[[noreturn]] void hold_busily(SwapFile& swap, Busyness busyness, int ready) {
  const auto engine = aio::make_threads({.block_size = 1 << 20, .queue_depth = 8}).value();
  std::deque<aio::Completion> writes(writes_in_flight);
  const auto pool =
      pinned::Pool::create({.bytes = writes.size() << 20, .lock = pinned::Lock::Never}).value();
  if (busyness == Busyness::WithChild && fork() == 0) {
    for (;;) sleep(1);
  }
  for (std::uint64_t turn = 0;; ++turn) {
    if (turn == 1) (void)!write(ready, "y", 1);
    if (busyness != Busyness::Writing && turn > 1) pause();
    for (std::uint64_t i = 0; i < writes.size(); ++i) {
      if (turn > 0) (void)engine->wait(writes[i], Deadline{}).has_value();
      const aio::Request request{.operation = aio::Operation::Write,
                                 .file = &swap.file(),
                                 .offset = payload_offset + (i << 20),
                                 .length = 1 << 20};
      writes[i].prepare(request, turn > 0 ? writes[i].take_buffer() : pool->lease(1 << 20).value());
      aio::Completion* const list[] = {&writes[i]};
      engine->submit(list);
    }
  }
}

/// A child that holds a swap file until it is killed.
class Holder {
 public:
  explicit Holder(const SwapFileOptions& options, Busyness busyness = Busyness::Idle) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      auto swap = SwapFile::create(options, system_files());
      if (swap.has_value() && busyness != Busyness::Idle) hold_busily(**swap, busyness, ends[1]);
      const char held = swap.has_value() ? 'y' : 'n';
      (void)!write(ends[1], &held, 1);
      for (;;) pause();
    }
    close(ends[1]);
    char held = 0;
    EXPECT_EQ(read(ends[0], &held, 1), 1);
    EXPECT_EQ(held, 'y');
    close(ends[0]);
  }
  ~Holder() { kill_now(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  pid_t pid() const { return pid_; }
  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

/// Prints how long the calls took so far, since a busy machine may be slow.
void print_seconds_since(std::chrono::steady_clock::time_point start, const char* what) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s after %.3f s\n", what, seconds.count());
}

std::vector<std::string> names_in(const std::string& directory) {
  return system_files().list(directory).value();
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SwapSharing, TheSecondProcessIsToldWhoHoldsThePath) {
  const TemporaryDirectory directory;
  const SwapFileOptions first{.directory = directory.path(), .run_id = 1, .bytes = 1 << 20};
  const Holder holder(first);
  char host[65] = "";
  gethostname(host, sizeof(host) - 1);
  SwapFileOptions second = first;
  second.run_id = 2;
  const auto names = names_in(directory.path());
  const std::string held = directory.file(swap_file_name(1, 0));
  std::ofstream(held, std::ios::in | std::ios::binary).write("bytes of the first", 18);
  const auto bytes = bytes_of(held);
  const auto lock_bytes = bytes_of(directory.file(lock_file_name(0)));
  const auto start = std::chrono::steady_clock::now();
  const auto refused = SwapFile::create(second, system_files());
  print_seconds_since(start, "refused");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Busy);
  const std::string text = refused.error().to_string();
  EXPECT_NE(text.find("pid " + std::to_string(holder.pid()) + " on host " + host), text.npos)
      << text;
  EXPECT_EQ(names_in(directory.path()), names);
  EXPECT_EQ(bytes_of(held), bytes);
  EXPECT_EQ(bytes_of(directory.file(lock_file_name(0))), lock_bytes);
}

TEST(SwapSharing, TheSecondOfOneProcessIsRefusedToo) {
  const TemporaryDirectory directory;
  const SwapFileOptions options{.directory = directory.path(), .run_id = 1, .bytes = 1};
  auto first = SwapFile::create(options, system_files());
  ASSERT_TRUE(first.has_value());
  const auto second = SwapFile::create(options, system_files());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::Busy);
  EXPECT_TRUE((*first)->close().has_value());
  EXPECT_TRUE(names_in(directory.path()).empty());
}

TEST(SwapSharing, AKilledHolderFreesThePath) {
  const TemporaryDirectory parent;
  const std::string directory = parent.file("nvme");  // made by the run that is killed
  for (std::uint64_t run = 1; run <= 10; ++run) {
    Holder holder({.directory = directory, .run_id = run, .bytes = 1 << 20});
    holder.kill_now();
  }
  EXPECT_TRUE(fs::exists(directory + "/" + swap_file_name(10, 0)));
  const auto start = std::chrono::steady_clock::now();
  auto next = SwapFile::create({.directory = directory, .run_id = 99, .bytes = 1}, system_files());
  print_seconds_since(start, "taken");
  ASSERT_TRUE(next.has_value()) << next.error().to_string();
  EXPECT_FALSE(fs::exists(directory + "/" + swap_file_name(10, 0)));
  EXPECT_TRUE((*next)->close().has_value());
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

TEST(SwapSharing, AHolderKilledWithWritesInFlightFreesThePath) {
  const TemporaryDirectory directory;
  for (std::uint64_t run = 1; run <= 5; ++run) {
    Holder holder({.directory = directory.path(), .run_id = run, .bytes = writes_in_flight << 20},
                  Busyness::Writing);
    const auto start = std::chrono::steady_clock::now();
    ::kill(holder.pid(), SIGKILL);  // not waited for: the kernel still ends its writes
    const SwapFileOptions options{.directory = directory.path(), .run_id = 99, .bytes = 1};
    auto next = SwapFile::create(options, system_files());
    // It waits for a holder that is ending, but not long enough for one that ends late on a busy
    // machine.
    while (!next.has_value() && next.error().code == ErrorCode::Busy &&
           std::chrono::steady_clock::now() < start + std::chrono::seconds(60)) {
      next = SwapFile::create(options, system_files());
    }
    print_seconds_since(start, "taken");
    ASSERT_TRUE(next.has_value()) << next.error().to_string();
    EXPECT_FALSE(fs::exists(directory.file(swap_file_name(run, 0))));
    EXPECT_TRUE((*next)->close().has_value());
  }
  EXPECT_TRUE(names_in(directory.path()).empty());
}

TEST(SwapSharing, AChildOfAKilledHolderDoesNotKeepThePath) {
  // Makes the grandchild ours to end, whatever happens.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const TemporaryDirectory directory;
  Holder holder({.directory = directory.path(), .run_id = 1, .bytes = writes_in_flight << 20},
                Busyness::WithChild);
  const std::string children = "/proc/" + std::to_string(holder.pid()) + "/task/" +
                               std::to_string(holder.pid()) + "/children";
  pid_t grandchild = 0;
  std::ifstream(children) >> grandchild;
  ASSERT_GT(grandchild, 0);
  holder.kill_now();
  const auto next =
      SwapFile::create({.directory = directory.path(), .run_id = 99, .bytes = 1}, system_files());
  EXPECT_EQ(::kill(grandchild, 0), 0);  // still there
  ::kill(grandchild, SIGKILL);
  EXPECT_EQ(waitpid(grandchild, nullptr, 0), grandchild);
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
  ASSERT_TRUE(next.has_value()) << next.error().to_string();
  EXPECT_TRUE((*next)->close().has_value());
}

TEST(SwapSharing, OnlyOwnUnlockedLeftoversAreRemoved) {
  const TemporaryDirectory directory;
  const auto plant = [&directory](const std::string& name) {
    std::ofstream(directory.file(name)) << "bytes of " << name;
  };
  for (std::uint64_t run = 1; run <= 10;
       ++run) {  // dead runs of ranks 0 to 4, with and without lock
    plant(swap_file_name(run, static_cast<std::uint32_t>(run % 5)));
  }
  plant(lock_file_name(1));
  plant(lock_file_name(4));
  std::vector<std::string> kept = {"notes.txt",
                                   "artesian-0000000000000001-rank0.swap.bak",
                                   "artesian-1-rank0.swap",
                                   "artesian-00000000000000AB-rank0.swap",
                                   "artesian.lock",
                                   "model.safetensors"};
  for (const auto& name : kept) plant(name);
  kept.push_back(swap_file_name(50, 0));  // a link under a name of ours
  fs::create_symlink(directory.file("notes.txt"), directory.file(kept.back()));
  kept.push_back(swap_file_name(51, 0));  // a folder under a name of ours
  fs::create_directory(directory.file(kept.back()));
  if (getuid() == 0) {
    kept.push_back(swap_file_name(52, 0));  // another user's
    plant(kept.back());
    ASSERT_EQ(chown(directory.file(kept.back()).c_str(), 65534, 65534), 0);
  }
  const Holder alive({.directory = directory.path(), .rank = 7, .run_id = 77, .bytes = 4096});
  plant(swap_file_name(60, 3));  // dead, left after the holder had cleaned up
  auto swap = SwapFile::create({.directory = directory.path(), .run_id = 99, .bytes = 4096},
                               system_files());
  ASSERT_TRUE(swap.has_value());
  EXPECT_TRUE((*swap)->close().has_value());
  kept.push_back(swap_file_name(77, 7));
  kept.push_back(lock_file_name(7));
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(names_in(directory.path()), kept);
  EXPECT_EQ(fs::file_size(directory.file("notes.txt")), 18u);
}

// Takes and leaves the directory `rounds` times. Inside, a token file must not exist. Returns 0 if
// all was right.
int race_child(const std::string& directory, const std::string& token, std::uint64_t run) {
  for (int round = 0; round < 25;) {
    auto swap =
        SwapFile::create({.directory = directory, .run_id = run, .bytes = 1}, system_files());
    if (!swap.has_value()) {
      if (swap.error().code != ErrorCode::Busy) return 2;
      continue;
    }
    const int descriptor = open(token.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor < 0) return 3;  // somebody else is inside
    close(descriptor);
    if (unlink(token.c_str()) != 0) return 4;
    if (!(*swap)->close().has_value()) return 5;
    ++round;
  }
  return 0;
}

TEST(SwapSharing, RacingProcessesNeverHoldThePathTogether) {
  const TemporaryDirectory parent;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (std::uint64_t run = 1; run <= 4; ++run) {
    const pid_t child = fork();
    if (child == 0) _exit(race_child(parent.file("nvme"), parent.file("token"), run));
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  }
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

}  // namespace
}  // namespace artesian::tiering
