// Proves that small limits of the process change how transfers are made, never their bytes. As
// another user with 0, 64 KiB or 8 MiB of lockable memory the same bytes are read with one warning
// (reliability.md test 30), also if the limit has room for one of two paths' rings. With 64 file
// descriptors the engine works, or its error names how many it needs (test 34). The limits are the
// kernel's, each in a child process.
#include <grp.h>
#include <sys/resource.h>

#include "aio/path_engines.h"
#include "pinned/pool.h"
#include "tests/aio/engine_fixture.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"

namespace artesian::aio {
namespace {

using test_support::run_in_child;

class Limits : public EngineFixture {
 protected:
  /// Writes and reads `size` bytes through a pool, as programs do. For child processes: returns 0,
  /// or the number of the failed expectation.
  int move_through_pool(Engine& engine, File& file, std::uint64_t size, bool expect_locked) {
    auto pool = pinned::Pool::create({.bytes = size, .name = "test pool"});
    if (!pool) return 20;
    const bool locked = (*pool)->statistics().locked;
    if (locked != expect_locked) return 21;
    const std::span<std::byte> ranges[] = {(*pool)->range()};
    const bool registered = locked && engine.register_memory(ranges);
    for (const Operation operation : {Operation::Write, Operation::Read}) {
      BufferLease lease = (*pool)->lease(size).value();
      std::memset(lease.data(), 0xee, size);
      if (operation == Operation::Write) fill(lease.data(), 7, size);
      Completion completion;
      completion.prepare({.operation = operation, .file = &file, .length = size}, std::move(lease));
      submit(engine, completion);
      if (!engine.wait(completion, Deadline::after_seconds(patience_s))) return 22;
      if (!completion.result()) return 23;
      if (!filled_right(completion.take_buffer(), 7, size)) return 24;
    }
    const EngineStatistics statistics = engine.statistics();
    return registered == (statistics.blocks_registered != 0) ? 0 : 25;
  }

  static void count_warnings() {
    warnings_ = 0;
    set_log_sink([](LogLevel level, std::string_view line) {
      if (level != LogLevel::Warning) return;
      ++warnings_;
      warning_ = line;
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    });
  }
  static inline int warnings_ = 0;
  static inline std::string warning_;  // the last
};
ARTESIAN_REAL_ENGINES(Limits);

TEST_P(Limits, LittleLockableMemoryGivesTheSameBytesWithOneWarning) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  if (test_support::sanitized) GTEST_SKIP() << "this build's mlock does nothing";
  constexpr std::uint64_t large = 16 << 20;
  constexpr std::uint64_t small = 1 << 20;
  for (const rlim_t limit : {rlim_t{0}, rlim_t{64 << 10}, rlim_t{8 << 20}}) {
    const auto file = create("file" + std::to_string(limit), Direct::IfAligned);
    const int status = run_in_child([&] {
      const rlimit locked{.rlim_cur = limit, .rlim_max = limit};
      if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0 || setgroups(0, nullptr) != 0) return 77;
      if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) return 77;
      count_warnings();
      auto engine = make_engine(kind(), {.queue_depth = 4, .threads = 2});
      // Some kernels count the ring itself as locked memory.
      if (!engine && is_ring() && limit == 0) return 77;
      if (!engine) return 1;
      int failed = move_through_pool(**engine, *file, large, false);
      if (failed != 0) return failed;
      if (warnings_ != 1) return 2;
      auto other = make_engine(kind(), {.queue_depth = 4});
      if (!other) {
        std::fprintf(stderr, "%s\n", other.error().to_string().c_str());
        return 4;
      }
      failed = move_through_pool(**other, *file, small, limit >= small);
      return failed != 0 || warnings_ == 1 ? failed : 3;
    });
    if (status == 77) continue;  // make_best_engine then falls back
    EXPECT_EQ(status, 0) << limit;
  }
}

TEST_P(Limits, MemoryThatCannotBeRegisteredIsUsedUnregistered) {
  if (geteuid() != 0 || !is_ring()) GTEST_SKIP() << "needs root, and rings";
  const auto file = filled("file", 4096);
  const int status = run_in_child([&] {
    const rlimit locked{.rlim_cur = 65536, .rlim_max = 65536};
    if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0 || setgid(65534) != 0 || setuid(65534) != 0) {
      return 77;
    }
    count_warnings();
    auto engine = make_engine(EngineKind::IoUring, {});
    if (!engine) return 1;
    const BufferLease memory = read_lease(16 << 20);
    const std::span<std::byte> ranges[] = {{memory.data(), memory.size()}};
    if ((*engine)->register_memory(ranges) || warnings_ != 1) return 2;
    Completion read;
    read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
    run(**engine, read);
    return read.result() && filled_right(read.take_buffer(), 0, 4096) ? 0 : 3;
  });
  if (status == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(status, 0);
}

TEST_P(Limits, OfTwoPathsRingsThoseRegisterForWhichThereIsRoom) {
  if (geteuid() != 0 || !is_ring()) GTEST_SKIP() << "needs root, and rings";
  if (test_support::sanitized) GTEST_SKIP() << "this build's mlock does nothing";
  constexpr std::uint64_t size = 5 << 20;
  const auto file = create("file", Direct::IfAligned);
  const int status = run_in_child([&] {
    // A separate user: the kernel adds up the registered memory of all processes of a user.
    const auto user = static_cast<uid_t>(100'000 + getpid());
    const rlimit locked{.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0 || setgroups(0, nullptr) != 0) return 77;
    if (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) return 77;
    count_warnings();
    auto engines = make_path_engines(2, [&] { return make_engine(kind(), {.queue_depth = 4}); });
    auto pool = pinned::Pool::create({.bytes = size, .name = "test pool"});
    if (!engines || !pool || !(*pool)->statistics().locked) return 1;
    const std::span<std::byte> ranges[] = {(*pool)->range()};
    if (!(*engines)->register_memory(ranges) || warnings_ != 1) return 2;
    if (warning_.find("io_uring registers 5.00 MiB of buffers with 1 of 2 rings") != 0) return 3;
    if (warning_.find("see ulimit -l") == std::string::npos) return 4;
    for (std::uint32_t path = 0; path < 2; ++path) {
      Engine& engine = (*engines)->for_path(path);
      for (const Operation operation : {Operation::Write, Operation::Read}) {
        BufferLease lease = (*pool)->lease(size).value();
        std::memset(lease.data(), 0xee, size);
        if (operation == Operation::Write) fill(lease.data(), 7 + path, size);
        Completion completion;
        completion.prepare({.operation = operation, .file = file.get(), .length = size},
                           std::move(lease));
        submit(engine, completion);
        if (!engine.wait(completion, Deadline::after_seconds(patience_s))) return 5;
        if (!completion.result()) return 6;
        if (!filled_right(completion.take_buffer(), 7 + path, size)) return 7;
      }
      const EngineStatistics statistics = engine.statistics();
      if (statistics.blocks_registered != (path == 0 ? statistics.blocks : 0)) return 8;
    }
    return warnings_ == 1 ? 0 : 9;
  });
  if (status == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(status, 0);
}

TEST_P(Limits, With64DescriptorsTheEngineWorksOrSaysWhatItNeeds) {
  const auto file = filled("file", 4096);
  const int status = run_in_child([&] {
    const rlimit descriptors{.rlim_cur = 64, .rlim_max = 64};
    if (setrlimit(RLIMIT_NOFILE, &descriptors) != 0) return 77;
    count_warnings();
    auto usual = make_engine(kind(), {.queue_depth = 32, .threads = 4});
    if (!usual || warnings_ != 0) return 1;
    Completion read;
    read.prepare({.file = file.get(), .length = 4096}, read_lease(4096));
    run(**usual, read);
    if (!read.result() || !filled_right(read.take_buffer(), 0, 4096)) return 2;
    usual->reset();
    // UBSan checks memory through a pipe, and reports damage if it has no descriptors.
    if (has_lanes() && test_support::sanitized) return 0;
    auto large = make_engine(kind(), {.threads = 64});
    if (!has_lanes()) return large ? 0 : 3;
    if (large) return 4;
    const std::string text = large.error().to_string();
    for (const char* part : {is_ring() ? "64 rings need 128 file descriptors, of 64"
                                       : "64 contexts need 64 file descriptors, of 64",
                             "ulimit -n"}) {
      if (text.find(part) == text.npos) return 5;
    }
    auto fallen = make_best_engine({.threads = 64});
    if (!fallen || (*fallen)->kind() != EngineKind::Threads || warnings_ != 1) return 6;
    fallen->reset();
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_P(Limits, WithoutADescriptorAMisalignedTransferIsAnErrorThatNamesItsFile) {
  const auto file = filled("file", 8192, Direct::IfAligned);
  if (!file->direct()) GTEST_SKIP() << "no direct I/O here";
  if (test_support::sanitized) GTEST_SKIP() << "this build needs descriptors itself";
  auto engine = make({});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Completion read;
  read.prepare({.file = file.get(), .offset = 1, .length = 4096}, read_lease(4096));
  run(*engine, read);
  setrlimit(RLIMIT_NOFILE, &before);
  const Error error = error_of(read);
  EXPECT_EQ(error.system_error, EMFILE);
  EXPECT_EQ(error.file, file->path());
  read.prepare({.file = file.get(), .offset = 1, .length = 4096}, read_lease(4096));
  run(*engine, read);
  expect_moved(read);
}

}  // namespace
}  // namespace artesian::aio
