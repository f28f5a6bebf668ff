// Proves on every engine how a failing disk is handled. A read that fails is tried once more and
// then reported with file and offset, 10,000 of 10,000 (reliability.md test 3). A failed write is
// never tried again and poisons its file with the first cause (test 4). A full disk is an error
// with figures (test 5). A process that is interrupted a thousand times a second, or stopped and
// continued, loses nothing (test 2).
#include <fcntl.h>
#include <sys/time.h>

#include <csignal>

#include "tests/aio/engine_fixture.h"
#include "tests/support/disks.h"
#include "tests/support/process.h"

namespace artesian::aio {
namespace {

class EngineFaults : public EngineFixture {
 protected:
  static void SetUpTestSuite() {
    set_log_sink([](LogLevel level, std::string_view line) {
      if (level == LogLevel::Warning) warnings_.emplace_back(line);
    });
  }
  static void TearDownTestSuite() { set_log_sink({}); }
  void SetUp() override { warnings_.clear(); }
  static inline std::vector<std::string> warnings_;
};
ARTESIAN_EVERY_ENGINE(EngineFaults);

TEST_P(EngineFaults, EachOf10000FailedReadsIsTriedOnceMoreAndReported) {
  constexpr std::uint64_t sector = 512;
  constexpr std::uint64_t failures_wanted = 10'000;
  FailingSectors failing;
  failing.every = 3 * sector;
  auto engine = make({.block_size = 4096, .queue_depth = 8}, &failing);
  constexpr std::uint64_t count = 3 * failures_wanted;
  const auto file = filled("file", count * sector);
  std::deque<Completion> reads(count);
  std::vector<Completion*> list;
  for (std::uint64_t index = 0; index < count; ++index) {
    reads[index].prepare({.file = file.get(), .offset = index * sector, .length = sector},
                         read_lease(sector));
    list.push_back(&reads[index]);
  }
  engine->submit(list);
  std::uint64_t failures = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    await(*engine, reads[index]);
    if (index % 3 != 0) {
      expect_moved(reads[index]);
      ASSERT_TRUE(filled_right(reads[index].take_buffer(), index * sector, sector)) << index;
      continue;
    }
    ++failures;
    const Error error = error_of(reads[index]);
    ASSERT_EQ(error.code, ErrorCode::Io);
    ASSERT_EQ(error.system_error, EIO);
    ASSERT_EQ(error.file, file->path());
    ASSERT_EQ(error.offset, index * sector);
    ASSERT_EQ(error.length, sector);
  }
  EXPECT_EQ(failures, failures_wanted);
  EXPECT_EQ(failing.failures, 2 * failures_wanted) << "tried once more, not more often";
  EXPECT_EQ(engine->statistics().read_retries, failures_wanted);
  EXPECT_EQ(file->poison(), nullptr) << "a failed read leaves the file as it was";
}

TEST_P(EngineFaults, AReadThatFailsOnceGoesWellWithAWarning) {
  FailingOnce failing;
  auto engine = make({.block_size = 8192, .queue_depth = 2}, &failing);
  const auto file = filled("file", 10 * 8192);
  for (int round = 0; round < 2; ++round) {
    Completion read;
    read.prepare({.file = file.get(), .length = 10 * 8192}, read_lease(10 * 8192));
    run(*engine, read);
    expect_moved(read);
    EXPECT_TRUE(filled_right(read.take_buffer(), 0, 10 * 8192));
  }
  EXPECT_EQ(engine->statistics().read_retries, 20u);
  engine.reset();  // warnings are written after completions
  ASSERT_EQ(warnings_.size(), 1u) << "once for each file";
  EXPECT_NE(warnings_[0].find(file->path()), std::string::npos);
  EXPECT_NE(warnings_[0].find("check the disk"), std::string::npos);
}

/// Returns the errors of every way to use a file, through an engine and directly.
std::vector<Error> errors_of_every_use(Engine& engine, File& file, CountedBuffers& buffers) {
  std::vector<Error> errors;
  for (const Operation operation : {Operation::Read, Operation::Write}) {
    for (const std::uint64_t offset : {0u, 1u, 8192u}) {  // aligned and not
      Completion completion;
      completion.prepare({.operation = operation, .file = &file, .offset = offset, .length = 4096},
                         buffers.lease(4096));
      Completion* const list[] = {&completion};
      engine.submit(list);
      const bool in_time = engine.wait(completion, Deadline::after_seconds(60)).has_value();
      ARTESIAN_CHECK(in_time);
      auto result = completion.result();
      errors.push_back(result ? Error{} : result.error());
    }
  }
  char bytes[16] = {};
  for (auto& result : {file.read_at(bytes, 16, 0), file.write_at(bytes, 16, 0), file.sync(),
                       file.allocate(1 << 20)}) {
    errors.push_back(result ? Error{} : result.error());
  }
  return errors;
}

TEST_P(EngineFaults, AFailedWriteIsNotTriedAgainAndPoisonsItsFile) {
  FailingOnce failing;
  failing.operation = Operation::Write;
  auto engine = make({.block_size = 4096, .queue_depth = 1}, &failing);
  const auto file = filled("file", 65536, Direct::IfAligned);
  const auto other = filled("other", 65536);
  Completion write;
  write.prepare({.operation = Operation::Write, .file = file.get(), .offset = 8192, .length = 4096},
                write_lease(0, 4096));
  run(*engine, write);
  const Error first = error_of(write);
  EXPECT_EQ(first.code, ErrorCode::Io);
  EXPECT_EQ(first.system_error, EIO);
  EXPECT_EQ(failing.failures, 1u) << "a second try would have gone well";
  EXPECT_EQ(engine->statistics().continued, 0u);
  std::uint64_t uses = 0;
  for (int round = 0; round < 100; ++round) {
    for (const Error& error : errors_of_every_use(*engine, *file, buffers_)) {
      ++uses;
      ASSERT_EQ(error.to_string(), first.to_string());
      ASSERT_EQ(error.code, first.code);
    }
  }
  EXPECT_EQ(uses, 1000u);
  EXPECT_EQ(engine->statistics().blocks, 1u) << "nothing was handed to the kernel any more";
  EXPECT_TRUE(file->size()) << "what touches no bytes still works";
  Completion read;
  read.prepare({.file = other.get(), .length = 4096}, read_lease(4096));
  run(*engine, read);
  expect_moved(read);
  const auto again = open(file->path(), {});
  EXPECT_EQ(again->poison(), nullptr);
  Completion retry;
  retry.prepare({.file = again.get(), .length = 4096}, read_lease(4096));
  run(*engine, retry);
  expect_moved(retry);
}

TEST_P(EngineFaults, TheFirstOfManyFailedWritesSticks) {
  const auto file = open("/dev/full", {.direct = Direct::Never});
  auto engine = make({.block_size = 4096, .queue_depth = 8});
  std::deque<Completion> writes(64);
  std::vector<Completion*> list;
  for (Completion& write : writes) {
    write.prepare({.operation = Operation::Write,
                   .file = file.get(),
                   .offset = 4096 * list.size(),
                   .length = 4096},
                  read_lease(4096));
    list.push_back(&write);
  }
  engine->submit(list);
  for (Completion& write : writes) {
    await(*engine, write);
    EXPECT_EQ(error_of(write).code, ErrorCode::NoSpace);
  }
  ASSERT_NE(file->poison(), nullptr);
  const std::string first = file->poison()->to_string();
  for (const Error& error : errors_of_every_use(*engine, *file, buffers_)) {
    EXPECT_EQ(error.to_string(), first);
  }
}

// Test 5: a request that cannot fit is refused before any byte. A write that reaches the end of the
// disk keeps the bytes that it moved and reports where they end.
TEST_P(EngineFaults, AFullDiskIsNoSpaceWithFigures) {
  const auto disk = test_support::MountedImage::make(directory_.path(), 16 << 20);
  if (disk == nullptr) GTEST_SKIP() << "cannot mount an ext4 image here";
  constexpr std::uint64_t length = 32 << 20;
  const auto file = open(disk->path() + "/file", {.create = Create::Exclusive});
  const std::uint64_t available = system_files().free_bytes(disk->path()).value();
  auto allocated = file->allocate(length);
  ASSERT_FALSE(allocated);
  EXPECT_EQ(allocated.error().code, ErrorCode::NoSpace);
  for (const std::uint64_t figure : {length, available}) {
    EXPECT_NE(allocated.error().message.find(std::to_string(figure) + " bytes"), std::string::npos)
        << allocated.error().message;
  }
  EXPECT_EQ(*file->size(), 0u);
  EXPECT_EQ(system_files().free_bytes(disk->path()).value(), available);
  EXPECT_EQ(file->poison(), nullptr) << "nothing was written";

  auto engine = make({.block_size = 1 << 20, .queue_depth = 1});
  const auto other = open(disk->path() + "/other", {.create = Create::Exclusive});
  Completion write;
  write.prepare({.operation = Operation::Write, .file = other.get(), .length = length},
                write_lease(0, length));
  run(*engine, write);
  const Error error = error_of(write);
  EXPECT_EQ(error.code, ErrorCode::NoSpace);
  EXPECT_EQ(error.system_error, ENOSPC);
  EXPECT_EQ(error.file, other->path());
  EXPECT_LT(error.offset, length);
  EXPECT_EQ(error.offset, engine->statistics().bytes_written);
}

/// Writes, reads and compares `bytes` in all, in a file of at most 256 MiB that is reused. Returns
/// how many bytes were right. Works in child processes, too: it has no assertions.
std::uint64_t move_and_compare(Engine& engine, File& file, std::uint64_t bytes) {
  constexpr std::uint64_t piece = 1 << 20;
  const std::uint64_t pieces = std::min<std::uint64_t>(bytes / 2, 256 << 20) / piece;
  CountedBuffers buffers;
  std::uint64_t right = 0;
  const auto word_at = [](std::uint64_t pass, std::uint64_t place) {
    return (pass << 48) ^ (place * 0x9e3779b97f4a7c15u);
  };
  for (std::uint64_t pass = 1; pass * pieces * piece * 2 <= bytes; ++pass) {
    for (const Operation operation : {Operation::Write, Operation::Read}) {
      std::deque<Completion> slots(8);
      for (std::uint64_t at = 0; at < pieces + slots.size(); ++at) {
        Completion& slot = slots[at % slots.size()];
        if (at >= slots.size()) {
          if (!engine.wait(slot, Deadline::after_seconds(60)) || !slot.result()) return 0;
          const BufferLease back = slot.take_buffer();
          const auto* words = reinterpret_cast<const std::uint64_t*>(back.data());
          const std::uint64_t place = slot.request().offset / 8;
          bool same = true;
          for (std::uint64_t i = 0; i < piece / 8; ++i)
            same &= words[i] == word_at(pass, place + i);
          right += same ? piece : 0;
        }
        if (at >= pieces) continue;
        BufferLease lease = buffers.lease(piece);
        auto* words = reinterpret_cast<std::uint64_t*>(lease.data());
        const bool writes = operation == Operation::Write;
        for (std::uint64_t i = 0; i < piece / 8; ++i) {
          words[i] = writes ? word_at(pass, at * piece / 8 + i) : 0;
        }
        slot.prepare({.operation = operation, .file = &file, .offset = at * piece, .length = piece},
                     std::move(lease));
        Completion* const list[] = {&slot};
        engine.submit(list);
      }
    }
  }
  return right;
}

std::uint64_t bytes_to_move() {
  return test_support::soaking() ? std::uint64_t{4} << 30 : std::uint64_t{1} << 30;
}

std::atomic<std::uint64_t> signals = 0;

TEST_P(EngineFaults, ASignalAThousandTimesASecondLosesNothing) {
  struct sigaction action {};
  struct sigaction action_before {};
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART: calls do end with EINTR
  ASSERT_EQ(sigaction(SIGALRM, &action, &action_before), 0);
  auto engine = make({.queue_depth = 8, .threads = 2});
  const auto file = create("file", Direct::IfAligned);
  const itimerval every_ms{.it_interval = {.tv_sec = 0, .tv_usec = 1000},
                           .it_value = {.tv_sec = 0, .tv_usec = 1000}};
  signals = 0;
  ASSERT_EQ(setitimer(ITIMER_REAL, &every_ms, nullptr), 0);
  const std::uint64_t right = move_and_compare(*engine, *file, bytes_to_move());
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &action_before, nullptr);
  EXPECT_EQ(right, bytes_to_move());
  EXPECT_GT(signals, 0u);
  std::printf("%llu MiB, %llu signals\n", static_cast<unsigned long long>(right >> 20),
              static_cast<unsigned long long>(signals));
}

// Progress threads block signals, but not this one, which interrupts any sleep of a thread.
TEST_P(EngineFaults, StoppingAndContinuingLosesNothing) {
  const auto file = create("file", Direct::IfAligned);
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto engine = make({.queue_depth = 8, .threads = 2});
    const std::uint64_t right = move_and_compare(*engine, *file, bytes_to_move() / 2);
    engine.reset();
    _exit(right == bytes_to_move() / 2 ? 0 : 1);
  }
  int status = 0;
  int stops = 0;
  const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
  while (waitpid(child, &status, WNOHANG) == 0) {
    kill(child, SIGSTOP);
    kill(child, SIGCONT);
    ++stops;
    nanosleep(&pause, nullptr);  // gives the child time to run
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_GT(stops, 0);
}

}  // namespace
}  // namespace artesian::aio
