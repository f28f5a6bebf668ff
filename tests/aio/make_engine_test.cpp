// Proves that options out of range are refused with the allowed range. If the kernel refuses
// io_uring, libaio is used, then the thread pool, with one line of log (reliability.md test 10).
// Nothing is allocated between submit and completion, and no more blocks are in the kernel than the
// depth allows (test 8).
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <new>

#include "aio/fixed_buffers.h"
#include "base/huge_page.h"
#include "base/log.h"
#include "tests/aio/faults.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/temporary_directory.h"

namespace {
std::atomic<std::uint64_t> allocations = 0;
}

// g++ 12 takes an inlined free for a mismatch with its operator new.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t size) {
  ++allocations;
  if (void* data = std::malloc(size)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}

namespace artesian::aio {
namespace {

constexpr EngineKind every_kind[] = {EngineKind::IoUring, EngineKind::Libaio, EngineKind::Threads};

TEST(MakeEngine, RefusesOptionsWithWhatIsAllowed) {
  const std::pair<EngineOptions, const char*> cases[] = {
      {{.block_size = 0}, "block_size: got 0, allowed a multiple of 4096"},
      {{.block_size = 5000}, "block_size: got 5000, allowed a multiple of 4096"},
      {{.block_size = std::uint64_t{2} << 30}, "block_size: got 2147483648"},
      {{.queue_depth = 0}, "queue_depth: got 0, allowed 1 to"},
      {{.queue_depth = 5000}, "queue_depth: got 5000, allowed 1 to"},
      {{.threads = 0}, "threads: got 0, allowed 1 to"},
      {{.threads = 1000}, "threads: got 1000, allowed 1 to"},
      {{.stop_seconds = -1}, "stop_seconds: got -1.0"},
      {{.stop_seconds = std::nan("")}, "stop_seconds: got nan"}};
  for (const auto& [options, text] : cases) {
    for (const EngineKind kind : every_kind) {
      auto engine = make_engine(kind, options);
      ASSERT_FALSE(engine);
      EXPECT_EQ(engine.error().code, ErrorCode::Invalid);
      EXPECT_NE(engine.error().message.find(text), std::string::npos) << engine.error().message;
    }
    EXPECT_FALSE(make_best_engine(options));
  }
}

TEST(MakeEngine, MakesWhatWasAskedFor) {
  for (const EngineKind kind : every_kind) {
    auto engine = make_engine(kind, {});
    ASSERT_TRUE(engine) << engine.error().to_string();
    EXPECT_EQ((*engine)->kind(), kind);
  }
}

/// Reads a file with the engine. For child processes: returns whether the bytes are right.
bool reads(Engine& engine, File& file) {
  CountedBuffers buffers;
  Completion read;
  read.prepare({.file = &file, .length = 4096}, buffers.lease(4096));
  Completion* const list[] = {&read};
  engine.submit(list);
  const bool in_time = engine.wait(read, Deadline::after_seconds(60)).has_value();
  const bool moved = in_time && read.result().has_value();
  return moved && read.take_buffer().data()[100] == std::byte{'x'};
}

class Fallback : public testing::Test {
 protected:
  Fallback() {
    auto created = system_files().open(directory_.file("file"), {.create = Create::Exclusive});
    ARTESIAN_CHECK(created.has_value());
    file_ = std::move(*created);
    const std::string text(4096, 'x');
    ARTESIAN_CHECK(file_->write_at(text.data(), text.size(), 0).has_value());
  }
  test_support::TemporaryDirectory directory_;
  std::unique_ptr<File> file_;
};

/// Checks what make_best_engine returns if the kernel refuses calls. For child processes: returns
/// 0, or the number of the failed expectation. `parts`: texts in its one line of log, in this
/// order.
int falls_to(EngineKind kind, File& file, std::initializer_list<const char*> parts) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::Warning) lines.emplace_back(line);
  });
  Result<std::unique_ptr<Engine>> engine = nullptr;
  constexpr std::uint64_t taken_ns_max = 100'000'000;
  std::uint64_t taken_ns = ~std::uint64_t{0};  // the best of some, as others use the machine
  for (int attempt = 0; attempt < 5 || (attempt < 100 && taken_ns > taken_ns_max); ++attempt) {
    const std::uint64_t begin_ns = monotonic_ns();
    engine = make_best_engine({});
    taken_ns = std::min(taken_ns, monotonic_ns() - begin_ns);
    if (!engine || (*engine)->kind() != kind) return 1;
  }
  if (lines.size() != 1) return 2;
  std::size_t at = 0;
  for (const char* part : parts) {
    at = lines[0].find(part, at);
    if (at == std::string::npos) return 3;
  }
  if (!reads(**engine, file)) return 4;
  return taken_ns > taken_ns_max ? 5 : 0;
}

TEST_F(Fallback, RefusedIoUringFallsToLibaioWithOneLine) {
  for (const int system_error : {EPERM, EACCES, ENOSYS, EMFILE, ENOMEM}) {
    const int status = test_support::run_in_child([&] {
      if (!test_support::refuse_call(__NR_io_uring_setup, system_error)) return 77;
      const int failed =
          falls_to(EngineKind::Libaio, *file_, {"io_uring is not available", "using libaio"});
      if (failed != 0) return failed;
      auto forced = make_engine(EngineKind::IoUring, {});
      return !forced && forced.error().code == ErrorCode::Unsupported ? 0 : 6;
    });
    if (status == 77) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(status, 0) << system_error;
  }
}

// As by a filter that refuses only the calls that submit work.
TEST_F(Fallback, RefusedSubmissionToIoUringFallsToLibaioWithOneLine) {
  for (const Polling polling : pollings) {
    for (const int system_error : {EPERM, EACCES, ENOSYS}) {
      const int status = test_support::run_in_child([&] {
        if (!test_support::refuse_call(__NR_io_uring_enter, system_error)) return 77;
        auto forced = make_engine(EngineKind::IoUring, {.polling = polling});
        if (forced || forced.error().code != ErrorCode::Unsupported) return 6;
        if (forced.error().system_error != system_error) return 7;
        if (polling != Polling::None) return 0;
        return falls_to(EngineKind::Libaio, *file_, {"io_uring is not available", "using libaio"});
      });
      if (status == 77) GTEST_SKIP() << "no seccomp filters here";
      EXPECT_EQ(status, 0) << polling_name(polling) << " " << system_error;
    }
  }
}

TEST_F(Fallback, RefusedLibaioTooFallsToThreadsWithOneLine) {
  const std::pair<long, int> refusals[] = {{__NR_io_setup, EPERM},
                                           {__NR_io_setup, ENOSYS},
                                           {__NR_io_setup, EAGAIN},
                                           {__NR_io_submit, EPERM},
                                           {__NR_io_submit, EINVAL}};
  for (const auto& [call, system_error] : refusals) {
    const int status = test_support::run_in_child([&] {
      if (!test_support::refuse_call(__NR_io_uring_setup, ENOSYS) ||
          !test_support::refuse_call(call, system_error)) {
        return 77;
      }
      const char* why = system_error == EPERM    ? "a seccomp filter refuses it"
                        : system_error == ENOSYS ? "this kernel has no libaio"
                        : system_error == EAGAIN ? "fs.aio-max-nr"
                                                 : "this kernel is older than 4.18";
      const int failed = falls_to(
          EngineKind::Threads, *file_,
          {"io_uring is not available", "libaio is not available", why, "using the thread pool"});
      if (failed != 0) return failed;
      auto forced = make_engine(EngineKind::Libaio, {});
      return !forced && forced.error().code == ErrorCode::Unsupported ? 0 : 6;
    });
    if (status == 77) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(status, 0) << call << " " << system_error;
  }
}

// A limit on threads is not one on AIO requests, though both are EAGAIN.
TEST_F(Fallback, AThreadThatCannotStartIsNamedAsSuch) {
  const auto refused = [](bool best) {
    return test_support::run_in_child([&] {
      for (const long call : {__NR_clone, __NR_clone3}) {
        if (!test_support::refuse_call(call, EAGAIN)) return 77;
      }
      std::size_t lines = 0;
      set_log_sink([&](LogLevel, std::string_view) { ++lines; });
      const auto engine = best ? make_best_engine({}) : make_engine(EngineKind::Libaio, {});
      if (engine || engine.error().code != ErrorCode::Exhausted) return 1;
      if (engine.error().message.find("ulimit -u") == std::string::npos) return 2;
      if (engine.error().message.find("aio-max-nr") != std::string::npos) return 3;
      return lines == 0 ? 0 : 4;  // without a fallback
    });
  };
  for (const bool best : {false, true}) {
    const int status = refused(best);
    if (status == 77) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(status, 0) << best;
  }
}

// The kernel's own refusal: one context more than fs.aio-max-nr allows.
TEST_F(Fallback, UsedUpAioRequestsAreNamed) {
  std::vector<std::unique_ptr<Engine>> engines;
  while (engines.size() < 1000) {
    auto engine = make_engine(EngineKind::Libaio, {.queue_depth = queue_depth_max});
    if (!engine) {
      if (engines.empty()) GTEST_SKIP() << "another process uses them all";
      EXPECT_EQ(engine.error().code, ErrorCode::Unsupported);
      EXPECT_EQ(engine.error().system_error, EAGAIN);
      EXPECT_NE(engine.error().message.find("fs.aio-max-nr"), std::string::npos);
      EXPECT_TRUE(reads(*engines.back(), *file_)) << "the others go on";
      return;
    }
    engines.push_back(std::move(*engine));
  }
  GTEST_SKIP() << "this machine allows too many AIO requests";
}

TEST_F(Fallback, NothingIsAllocatedAfterTheStart) {
  for (const EngineKind kind : every_kind) {
    auto engine = make_engine(kind, {.block_size = 4096, .queue_depth = 4});
    ASSERT_TRUE(engine);
    CountedBuffers buffers;
    std::deque<Completion> transfers(400);
    std::vector<Completion*> list;
    for (Completion& transfer : transfers) {
      transfer.prepare({.operation = list.size() % 2 == 0 ? Operation::Read : Operation::Write,
                        .file = file_.get(),
                        .length = 4096},
                       buffers.lease(4096));
      list.push_back(&transfer);
    }
    static_cast<void>(reads(**engine, *file_));  // libaio logs a note on files like this one
    const std::uint64_t before = allocations;
    (*engine)->submit(list);
    for (Completion* transfer : list) {
      const bool in_time = (*engine)->wait(*transfer, Deadline::after_seconds(60)).has_value();
      ARTESIAN_CHECK(in_time && transfer->result().has_value());
    }
    EXPECT_EQ(allocations, before) << engine_kind_name(kind);
    EXPECT_EQ((*engine)->statistics().blocks, 1 + transfers.size());
    EXPECT_LE((*engine)->statistics().blocks_in_kernel_max, 4u);
  }
}

TEST(FixedBuffers, CutsRangesAndFindsWhatLiesWithinOnePiece) {
  std::vector<std::byte> memory(10000);
  std::byte* const data = memory.data();
  const std::span<std::byte> ranges[] = {{data + 6000, 3000}, {data, 5000}};
  const FixedBuffers buffers(ranges, 2048);
  ASSERT_EQ(buffers.pieces().size(), 5u);  // 2048 + 2048 + 904, then 2048 + 952
  EXPECT_EQ(buffers.find(data, 2048), 0);
  EXPECT_EQ(buffers.find(data + 2048, 10), 1);
  EXPECT_EQ(buffers.find(data + 4999, 1), 2);
  EXPECT_EQ(buffers.find(data + 8048, 952), 4);
  EXPECT_EQ(buffers.find(data + 2000, 100), std::nullopt) << "spans a cut";
  EXPECT_EQ(buffers.find(data + 4999, 2), std::nullopt) << "runs out of the range";
  EXPECT_EQ(buffers.find(data + 5500, 1), std::nullopt) << "between the ranges";
  EXPECT_EQ(buffers.find(data + 9000, 1), std::nullopt) << "after the last";
  EXPECT_EQ(FixedBuffers().find(data, 1), std::nullopt);
}

TEST(FixedBuffers, KeepsSmallPagesApartFromWholeHugePages) {
  constexpr std::uint64_t huge = huge_page_size;
  constexpr std::uintptr_t at = 1000 * huge;  // the addresses are never dereferenced
  const auto pieces = [](std::uintptr_t begin, std::uint64_t size, std::uint64_t piece_size) {
    const std::span<std::byte> ranges[] = {{reinterpret_cast<std::byte*>(begin), size}};
    const FixedBuffers buffers(ranges, piece_size);
    std::vector<std::pair<std::uintptr_t, std::uint64_t>> found;
    for (const iovec& piece : buffers.pieces()) {
      found.emplace_back(reinterpret_cast<std::uintptr_t>(piece.iov_base), piece.iov_len);
    }
    return found;
  };
  using Pieces = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;
  constexpr std::uint64_t page = 4096;
  EXPECT_EQ(pieces(at, 3 * huge, 4 * huge), (Pieces{{at, 3 * huge}}));
  EXPECT_EQ(pieces(at, 3 * huge + page, 4 * huge), (Pieces{{at, 3 * huge}, {at + 3 * huge, page}}));
  EXPECT_EQ(pieces(at - page, 3 * huge, 4 * huge),
            (Pieces{{at - page, page}, {at, 2 * huge}, {at + 2 * huge, huge - page}}));
  EXPECT_EQ(pieces(at, 3 * huge + page, 2 * huge),
            (Pieces{{at, 2 * huge}, {at + 2 * huge, huge}, {at + 3 * huge, page}}));
  EXPECT_EQ(pieces(at - page, huge, 4 * huge), (Pieces{{at - page, huge}})) << "none is whole";
  EXPECT_EQ(pieces(at + page, page, 4 * huge), (Pieces{{at + page, page}}));
}

TEST(LatencyHistogram, PercentilesAreRightToSomePercent) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(50), 0u);
  for (std::uint64_t value = 1; value <= 100000; ++value) histogram.add(value * 10);
  EXPECT_NEAR(static_cast<double>(histogram.percentile_ns(50)), 500000, 20000);
  EXPECT_NEAR(static_cast<double>(histogram.percentile_ns(99)), 990000, 40000);
  histogram.add(~std::uint64_t{0});
  EXPECT_GT(histogram.percentile_ns(100), std::uint64_t{1} << 63);
}

}  // namespace
}  // namespace artesian::aio
