// Proves on every engine that transfers are complete wherever requests are cut, that the options
// have their effect, and that every failure becomes an error with file, offset, length and errno.
// Faults are the kernel's own where possible, else fakes (reliability.md tests 1, 2, 3, 8).
#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/aio/engine_fixture.h"
#include "tests/support/process.h"

namespace artesian::aio {
namespace {

class EngineContract : public EngineFixture {};
ARTESIAN_EVERY_ENGINE(EngineContract);

TEST_P(EngineContract, RoundTripsOddOffsetsAndLengths) {
  auto engine = make({.block_size = 4096, .queue_depth = 4});
  const auto file = create("file");
  for (const std::uint64_t offset : {0u, 1u, 511u, 4095u, 4097u, 70001u}) {
    for (const std::uint64_t length : {1u, 17u, 4095u, 4096u, 4097u, 50000u}) {
      Completion write;
      write.prepare(
          {.operation = Operation::Write, .file = file.get(), .offset = offset, .length = length},
          write_lease(offset, length));
      run(*engine, write);
      expect_moved(write);
      Completion read;
      read.prepare({.file = file.get(), .offset = offset, .length = length}, read_lease(length));
      run(*engine, read);
      expect_moved(read);
      EXPECT_TRUE(filled_right(read.take_buffer(), offset, length)) << offset << " " << length;
      EXPECT_GE(read.finished_ns(), read.submitted_ns());
    }
  }
}

TEST_P(EngineContract, RoundTripsDirect) {
  auto engine = make({.block_size = 16384, .queue_depth = 4});
  const auto file = create("file", Direct::IfAligned);
  const std::uint64_t step = file->alignment();
  for (const std::uint64_t offset : {std::uint64_t{0}, step, 3 * step, std::uint64_t{16384}}) {
    for (const std::uint64_t length : {step, 5 * step, 32 * step, 300 * step}) {
      Completion write;
      write.prepare(
          {.operation = Operation::Write, .file = file.get(), .offset = offset, .length = length},
          write_lease(offset, length));
      run(*engine, write);
      expect_moved(write);
      Completion read;
      read.prepare({.file = file.get(), .offset = offset, .length = length}, read_lease(length));
      run(*engine, read);
      expect_moved(read);
      EXPECT_TRUE(filled_right(read.take_buffer(), offset, length)) << offset << " " << length;
    }
  }
}

TEST_P(EngineContract, SplitsAtBlockSize) {
  constexpr std::uint64_t block = 8192;
  const auto file = filled("file", 33 * block);
  for (const auto& [length, blocks] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {block / 2, 1}, {block, 1}, {block + 1, 2}, {33 * block, 33}}) {
    auto engine = make({.block_size = block, .queue_depth = 4});
    Completion read;
    read.prepare({.file = file.get(), .length = length}, read_lease(length));
    run(*engine, read);
    expect_moved(read);
    EXPECT_TRUE(filled_right(read.take_buffer(), 0, length));
    const EngineStatistics statistics = engine->statistics();
    EXPECT_EQ(statistics.blocks, blocks);
    EXPECT_EQ(statistics.bytes_read, length);
    EXPECT_EQ(statistics.bytes_written, 0u);
    EXPECT_EQ(statistics.continued, 0u);
    EXPECT_LE(statistics.latency_us_p50, statistics.latency_us_p99);
  }
}

TEST_P(EngineContract, HundredTimesTheDepthAtOnce) {
  for (const std::uint32_t threads : {1u, 3u}) {
    auto engine = make({.block_size = 4096, .queue_depth = 4, .threads = threads});
    constexpr std::uint64_t count = 1200;
    const auto file = filled("file" + std::to_string(threads), count * 4096);
    std::deque<Completion> reads(count);
    std::vector<Completion*> list;
    for (std::uint64_t index = 0; index < count; ++index) {
      reads[index].prepare({.file = file.get(), .offset = index * 4096, .length = 4096},
                           read_lease(4096));
      list.push_back(&reads[index]);
    }
    engine->submit(list);
    for (std::uint64_t index = 0; index < count; ++index) {
      await(*engine, reads[index]);
      expect_moved(reads[index]);
      EXPECT_TRUE(filled_right(reads[index].take_buffer(), index * 4096, 4096));
    }
    EXPECT_LE(engine->statistics().blocks_in_kernel_max, 4u * threads);
    EXPECT_EQ(engine->statistics().blocks, count);
  }
}

TEST_P(EngineContract, SingleSubmitIsSeenInTheCalls) {
  const auto file = filled("file", 64 * 4096);
  for (const bool single_submit : {true, false}) {
    for (const bool overlap_events : {true, false}) {
      auto engine = make({.block_size = 4096,
                          .queue_depth = 8,
                          .single_submit = single_submit,
                          .overlap_events = overlap_events});
      Completion read;
      read.prepare({.file = file.get(), .length = 64 * 4096}, read_lease(64 * 4096));
      run(*engine, read);
      expect_moved(read);
      const std::uint64_t calls = engine->statistics().submit_calls;
      if (single_submit || !has_lanes()) {
        EXPECT_EQ(calls, 64u);
      } else if (overlap_events) {  // the first call hands over 8, each other one at least one
        EXPECT_GE(calls, 8u);
        EXPECT_LE(calls, 57u);
      } else {
        EXPECT_EQ(calls, 8u);
      }
    }
  }
}

TEST_P(EngineContract, OverlapEventsIsSeenInTheOrder) {
  const auto file = filled("file", 4096);
  for (const bool overlap_events : {true, false}) {
    auto engine = make({.queue_depth = 2, .overlap_events = overlap_events});
    StalledFile stalled;
    Completion first;
    first.prepare({.file = &stalled, .length = 8}, read_lease(8));
    std::deque<Completion> reads(10);
    std::vector<Completion*> list{&first};
    for (Completion& read : reads) {
      read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
      list.push_back(&read);
    }
    engine->submit(list);
    // With overlap all other blocks pass the stalled one. Without, at most its neighbour in the
    // first fill does.
    for (std::size_t index = 0; overlap_events && index < reads.size(); ++index) {
      await(*engine, reads[index]);
      EXPECT_FALSE(first.ready());
    }
    stalled.release();
    await(*engine, first);
    for (Completion& read : reads) {
      await(*engine, read);
      expect_moved(read);
      if (&read == &reads.front()) continue;
      EXPECT_EQ(read.finished_ns() <= first.finished_ns(), overlap_events);
    }
  }
}

TEST_P(EngineContract, ReadPastTheEndNamesFileAndOffset) {
  auto engine = make({});
  for (const Direct direct : {Direct::Never, Direct::IfAligned}) {
    const auto file = filled(direct == Direct::Never ? "buffered" : "direct", 5000, direct);
    for (const std::uint64_t offset : {0u, 8192u}) {
      Completion read;
      read.prepare({.file = file.get(), .offset = offset, .length = 8192}, read_lease(8192));
      run(*engine, read);
      const Error error = error_of(read);
      const std::uint64_t end = std::max<std::uint64_t>(5000, offset);
      EXPECT_EQ(error.code, ErrorCode::Io);
      EXPECT_EQ(error.file, file->path());
      EXPECT_EQ(error.offset, end);
      EXPECT_EQ(error.length, offset + 8192 - end);
      EXPECT_NE(error.to_string().find("cannot read: end of file"), std::string::npos);
    }
  }
}

TEST_P(EngineContract, ShortWriteIsContinuedThenFailsWithItsOffset) {
  for (const Direct direct : {Direct::Never, Direct::IfAligned}) {
    auto engine = make({});
    const auto file = create(direct == Direct::Never ? "buffered" : "direct", direct);
    const std::uint64_t limit_bytes = direct == Direct::Never ? 251424 : 262144;
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = limit_bytes, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    Completion write;
    write.prepare({.operation = Operation::Write, .file = file.get(), .length = 1 << 20},
                  write_lease(0, 1 << 20));
    run(*engine, write);
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    const Error error = error_of(write);
    EXPECT_EQ(error.code, ErrorCode::Io);
    EXPECT_EQ(error.system_error, EFBIG);
    EXPECT_EQ(error.offset, limit_bytes);
    EXPECT_EQ(engine->statistics().continued, 1u);
    EXPECT_EQ(*file->size(), limit_bytes);
  }
}

TEST_P(EngineContract, FullDeviceIsNoSpace) {
  auto engine = make({});
  const auto file = open("/dev/full", {.direct = Direct::Never});
  Completion write;
  write.prepare({.operation = Operation::Write, .file = file.get(), .length = 4096},
                write_lease(0, 4096));
  run(*engine, write);
  const Error error = error_of(write);
  EXPECT_EQ(error.code, ErrorCode::NoSpace);
  EXPECT_EQ(error.system_error, ENOSPC);
  EXPECT_EQ(error.to_string(),
            "cannot write: /dev/full: at offset 0, length 4096: No space left on device");
}

TEST_P(EngineContract, FailedReadIsIoWithItsErrno) {
  auto engine = make({});
  const auto file = open("/proc/self/mem", {.direct = Direct::Never, .read_only = true});
  Completion read;
  read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
  run(*engine, read);
  const Error error = error_of(read);
  EXPECT_EQ(error.code, ErrorCode::Io);
  EXPECT_EQ(error.system_error, EIO);
  EXPECT_EQ(error.file, "/proc/self/mem");
}

TEST_P(EngineContract, ErrorOutlivesTheFile) {
  auto engine = make({});
  auto file = filled("file", 100);
  Completion read;
  read.prepare({.file = file.get(), .length = 200}, read_lease(200));
  run(*engine, read);
  const std::string path = file->path();
  file.reset();
  EXPECT_EQ(error_of(read).file, path);
}

TEST_P(EngineContract, ShortTransfersAtEverySectorEdgeAreContinued) {
  constexpr std::uint64_t length = 65536;
  ShortTransfer cut;
  auto engine = make({}, &cut);
  for (const Direct direct : {Direct::Never, Direct::IfAligned}) {
    const auto file = create(direct == Direct::Never ? "buffered" : "direct", direct);
    std::uint64_t cuts = 0;
    for (cut.length = 512; cut.length < length; cut.length += 512) {
      if (cut.length % file->alignment() != 0) continue;  // the kernel cuts nowhere else
      ++cuts;
      for (const Operation operation : {Operation::Write, Operation::Read}) {
        const std::uint64_t continued = engine->statistics().continued;
        Completion completion;
        completion.prepare(
            {.operation = operation, .file = file.get(), .length = length},
            operation == Operation::Read ? read_lease(length) : write_lease(0, length));
        run(*engine, completion);
        expect_moved(completion);
        EXPECT_TRUE(filled_right(completion.take_buffer(), 0, length)) << cut.length;
        EXPECT_EQ(engine->statistics().continued, continued + 1) << cut.length;
      }
      // Without zeros in between, a read that moves nothing would find the right bytes.
      const std::vector<std::byte> zeros(length);
      ASSERT_TRUE(file->write_at(zeros.data(), length, 0));
    }
    EXPECT_EQ(cuts, length / std::max<std::uint64_t>(512, file->alignment()) - 1);
  }
}

// A direct transfer that ends inside a sector continues from the beginning of that sector.
TEST_P(EngineContract, AnswersInsideASectorMoveTheSectorAgain) {
  constexpr std::uint64_t length = 65536;
  ShortAnswer cut;
  auto engine = make({}, &cut);
  const auto file = filled("file", length, Direct::IfAligned);
  const auto first = static_cast<std::int64_t>(file->alignment()) + 1;
  for (cut.length = first; cut.length < std::int64_t{length}; cut.length += 4099) {
    Completion read;
    read.prepare({.file = file.get(), .length = length}, read_lease(length));
    run(*engine, read);
    expect_moved(read);
    EXPECT_TRUE(filled_right(read.take_buffer(), 0, length)) << cut.length;
  }
  EXPECT_EQ(engine->statistics().continued, (length - file->alignment() - 2) / 4099 + 1);
}

TEST_P(EngineContract, InterruptionsAndRefusalsAreContinued) {
  const std::uint64_t seed = test_support::test_seed(1);
  Interruptions interruptions(seed);
  auto engine = make({.block_size = 4096, .queue_depth = 4}, &interruptions);
  constexpr std::uint64_t length = 512 * 4096;
  const auto file = filled("file", length);
  Completion read;
  read.prepare({.file = file.get(), .length = length}, read_lease(length));
  run(*engine, read);
  expect_moved(read);
  EXPECT_TRUE(filled_right(read.take_buffer(), 0, length));
  const std::uint64_t continued = engine->statistics().continued;
  EXPECT_EQ(continued % 64, 0u) << "bursts of 64";
  EXPECT_GT(continued / 64, 512u / 10) << "a fifth of the calls begins one";
}

TEST_P(EngineContract, SixtyFifthRefusalInARowIsAnError) {
  const std::uint64_t seed = test_support::test_seed(1);
  Interruptions interruptions(seed);
  interruptions.burst = 1000;
  auto engine = make({.block_size = 4096, .queue_depth = 4}, &interruptions);
  const auto file = filled("file", 64 * 4096);
  Completion read;
  read.prepare({.file = file.get(), .length = 64 * 4096}, read_lease(64 * 4096));
  run(*engine, read);
  const Error error = error_of(read);
  EXPECT_EQ(error.code, ErrorCode::Io);
  EXPECT_TRUE(error.system_error == EINTR || error.system_error == EAGAIN) << error.system_error;
  EXPECT_NE(error.message.find("65 times in a row"), std::string::npos);
}

TEST_P(EngineContract, FailureDropsTheRestOfItsRequestOnly) {
  FailingSectors failing;
  failing.every = 1024 * 4096;  // block 0 alone
  auto engine = make({.block_size = 4096, .queue_depth = 1}, &failing);
  const auto file = filled("file", 100 * 4096);
  Completion bad;
  Completion good;
  bad.prepare({.file = file.get(), .length = 100 * 4096}, read_lease(100 * 4096));
  good.prepare({.file = file.get(), .offset = 4096, .length = 8192}, read_lease(8192));
  Completion* const list[] = {&bad, &good};
  engine->submit(list);
  await(*engine, bad);
  await(*engine, good);
  EXPECT_EQ(error_of(bad).system_error, EIO);
  expect_moved(good);
  EXPECT_EQ(engine->statistics().blocks, 3u);
  EXPECT_EQ(engine->statistics().read_retries, 1u);
}

TEST_P(EngineContract, RegisteredMemoryIsUsedWhereTheEngineCan) {
  auto engine = make({.block_size = 4096, .queue_depth = 4});
  const auto file = filled("file", 10 * 4096);
  BufferLease inside = read_lease(10 * 4096);
  const std::span<std::byte> ranges[] = {{inside.data(), 10 * 4096}};
  EXPECT_EQ(engine->register_memory(ranges), is_ring());
  Completion read;
  read.prepare({.file = file.get(), .length = 10 * 4096}, std::move(inside));
  run(*engine, read);
  expect_moved(read);
  EXPECT_EQ(engine->statistics().blocks_registered, is_ring() ? 10u : 0u);
  const BufferLease keep = read.take_buffer();  // registered memory outlives the engine
  EXPECT_TRUE(filled_right(keep, 0, 10 * 4096));
  Completion outside;
  outside.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
  run(*engine, outside);
  expect_moved(outside);
  EXPECT_EQ(engine->statistics().blocks_registered, is_ring() ? 10u : 0u);
  engine.reset();
}

TEST_P(EngineContract, EmptyRequestSucceeds) {
  auto engine = make({});
  const auto file = create("file");
  Completion read;
  read.prepare({.file = file.get()}, {});
  run(*engine, read);
  expect_moved(read);
}

}  // namespace
}  // namespace artesian::aio
