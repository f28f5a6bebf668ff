// Proves that files are registered with a ring exactly while blocks of them are in flight: once
// their completions are ready, their locks are free and their descriptors may be reused, also after
// transfers were abandoned. Without room in the table, or if the kernel refuses it, the same bytes
// arrive. The refusals are real, by seccomp filters.
#include "aio/file_slots.h"

#include <filesystem>
#include <fstream>

#include "tests/aio/engine_fixture.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"

namespace artesian::aio {
namespace {

using test_support::refuse_call;
using test_support::run_in_child;

constexpr std::uint64_t block = 4096;
constexpr std::uint64_t blocks = 32;
// Bits of io_uring_register's second argument: the calls of this kind have them.
constexpr std::size_t kind_of_call = 1;
constexpr std::uint32_t making_a_table = 2;  // 2, and 6 as well
constexpr std::uint32_t changing_it = 4;     // 6

class FileSlotsTest : public EngineFixture {
 protected:
  /// Returns whether all blocks of a file that is `filled` are read right. Without gtest, for child
  /// processes.
  bool reads_right(Engine& engine, File& file) {
    Completion read;
    read.prepare({.file = &file, .length = blocks * block}, read_lease(blocks * block));
    submit(engine, read);
    return engine.wait(read, Deadline::after_seconds(patience_s)) && read.result() &&
           filled_right(read.take_buffer(), 0, blocks * block);
  }
  /// Submits reads of eight bytes of a file that does not answer.
  void submit_all(Engine& engine, StalledFile& stalled, std::deque<Completion>& reads) {
    std::vector<Completion*> all;
    for (Completion& read : reads) {
      read.prepare({.file = &stalled, .length = 8}, read_lease(8));
      all.push_back(&read);
    }
    engine.submit(all);
  }
  /// Returns once the progress thread has prepared what was submitted before.
  bool prepared(Engine& engine, File& file) {
    Completion read;
    read.prepare({.file = &file, .length = 1}, read_lease(1));
    submit(engine, read);
    return engine.wait(read, Deadline::after_seconds(patience_s)) && read.result();
  }
  static std::uint64_t registered(Engine& engine) {
    return engine.statistics().blocks_of_registered_files;
  }
};
INSTANTIATE_TEST_SUITE_P(Only, FileSlotsTest, testing::Values(Tested::IoUring), engine_name);

/// A child's exit status: 77 skips.
#define ARTESIAN_EXPECT_CHILD(status)                                           \
  if ((status) == 77) GTEST_SKIP() << "no seccomp filters or no io_uring here"; \
  EXPECT_EQ(status, 0)

TEST_P(FileSlotsTest, AFileIsRegisteredWhileItsBlocksStream) {
  const auto file = filled("file", blocks * block);
  const auto engine = make({.block_size = block, .queue_depth = 16});
  EXPECT_TRUE(reads_right(*engine, *file));
  EXPECT_GE(registered(*engine), 16 - FileSlots::pending_min + 1);
  EXPECT_LE(registered(*engine), blocks);
  const auto shallow = make({.block_size = block, .queue_depth = FileSlots::pending_min - 1});
  EXPECT_TRUE(reads_right(*shallow, *file));
  EXPECT_EQ(registered(*shallow), 0u);
}

TEST_P(FileSlotsTest, AfterwardsItsLockIsFreeAndItsNumberAnothers) {
  const auto engine = make({.block_size = block, .queue_depth = 16});
  int number = -1;
  for (int round = 0; round < 20; ++round) {
    const std::string name = "file" + std::to_string(round);
    // Other bytes each time, so that stale ones would be noticed.
    auto file = create(name);
    const BufferLease bytes = write_lease(static_cast<std::uint64_t>(round), blocks * block);
    ASSERT_TRUE(file->write_at(bytes.data(), blocks * block, 0));
    ASSERT_TRUE(file->lock());
    if (round == 0) number = file->descriptor();
    EXPECT_EQ(file->descriptor(), number);
    Completion read;
    read.prepare({.file = file.get(), .length = blocks * block}, read_lease(blocks * block));
    run(*engine, read);
    expect_moved(read);
    file.reset();
    EXPECT_TRUE(
        filled_right(read.take_buffer(), static_cast<std::uint64_t>(round), blocks * block));
    EXPECT_TRUE(open(directory_.file(name), {.direct = Direct::Never})->lock());
  }
  EXPECT_GT(registered(*engine), 0u);
}

TEST_P(FileSlotsTest, MoreFilesThanThereIsRoomForMoveAsWell) {
  constexpr std::uint64_t files = 12;
  const auto engine = make({.block_size = block, .queue_depth = files * blocks});
  std::vector<std::unique_ptr<File>> opened;
  std::deque<Completion> reads(files);
  std::vector<Completion*> all;
  for (std::uint64_t index = 0; index < files; ++index) {
    opened.push_back(filled("file" + std::to_string(index), blocks * block));
    reads[index].prepare({.file = opened.back().get(), .length = blocks * block},
                         read_lease(blocks * block));
    all.push_back(&reads[index]);
  }
  engine->submit(all);
  for (Completion& read : reads) {
    await(*engine, read);
    expect_moved(read);
    EXPECT_TRUE(filled_right(read.take_buffer(), 0, blocks * block));
  }
  EXPECT_GT(registered(*engine), 0u);
  EXPECT_LT(registered(*engine), files * blocks);
}

TEST_P(FileSlotsTest, WhereTheKernelRefusesTheSameBytesCome) {
  const auto file = filled("file", blocks * block);
  for (const std::uint32_t refused : {making_a_table, changing_it}) {
    const int status = run_in_child([&] {
      if (!refuse_call(__NR_io_uring_register, EMFILE, kind_of_call, refused)) return 77;
      static int warnings = 0;
      set_log_sink([](LogLevel, std::string_view line) {
        warnings += line.find("cannot register files") != line.npos ? 1 : 0;
      });
      for (int round = 0; round < 2; ++round) {
        auto engine = make_io_uring({.block_size = block, .queue_depth = 16});
        if (!engine) return 77;
        if (!reads_right(**engine, *file) || !reads_right(**engine, *file)) return 1;
        if (registered(**engine) != 0) return 2;
      }
      return warnings == (refused == making_a_table ? 1 : 0) ? 0 : 3;
    });
    ARTESIAN_EXPECT_CHILD(status) << refused;
  }
}

/// Entries in the tables of this process's rings, as /proc shows them; -1 if it does not.
int places() {
  int count = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("UserFiles:")) count = std::max(count, 0) + std::atoi(line.c_str() + 10);
    }
  }
  return count;
}

// The table is given up then: the file must not stay open in it.
TEST_P(FileSlotsTest, WhereAFileCannotBeTakenOutThereIsNoTableAnyMore) {
  const auto file = filled("file", blocks * block);
  const int status = run_in_child([&] {
    auto engine = make_io_uring({.block_size = block, .queue_depth = 16});
    if (!engine) return 77;
    StalledFile stalled;
    std::deque<Completion> reads(FileSlots::pending_min);
    submit_all(**engine, stalled, reads);
    if (!prepared(**engine, *file)) return 1;
    if (places() < 1) return 77;  // the kernel does not show it
    if (!refuse_call(__NR_io_uring_register, EPERM, kind_of_call, changing_it, true)) return 77;
    stalled.release(reads.size());
    if (!(*engine)->drain(Deadline::after_seconds(patience_s))) return 2;
    if (registered(**engine) != 1 || places() != 0) return 3;
    if (!reads_right(**engine, *file)) return 4;
    return registered(**engine) == 1 ? 0 : 5;
  });
  ARTESIAN_EXPECT_CHILD(status);
}

TEST_P(FileSlotsTest, AbandonedTransfersDoNotPassTheirFileOnToTheNextOfItsNumber) {
  const auto file = filled("file", blocks * block);
  const int status = run_in_child([&] {
    auto engine = make_io_uring({.block_size = block, .queue_depth = 40});
    if (!engine) return 77;
    std::deque<Completion> reads(FileSlots::pending_min);
    int released_by = -1;
    int number = -1;
    {
      StalledFile stalled;
      number = stalled.descriptor();
      released_by = dup(number);
      submit_all(**engine, stalled, reads);
      if (!prepared(**engine, *file)) return 1;
      for (Completion& read : reads) (*engine)->abandon(read);
    }
    const auto next = open(file->path(), {.direct = Direct::Never});
    if (next->descriptor() != number) return 2;
    if (!reads_right(**engine, *next)) return 3;
    const std::uint64_t count = reads.size();
    if (write(released_by, &count, sizeof count) != sizeof count) return 4;
    engine->reset();
    return 0;
  });
  ARTESIAN_EXPECT_CHILD(status);
}

}  // namespace
}  // namespace artesian::aio
