// Proves that SQPOLL and IOPOLL take effect where they are granted. Where the kernel, a disk or an
// engine refuses them, one line of log names that and the same bytes move. Direct and other
// transfers may share an engine with IOPOLL.
#include "aio/polled_ring.h"

#include <filesystem>
#include <fstream>

#include "pinned/pool.h"
#include "tests/aio/engine_fixture.h"
#include "tests/support/forwarding_file.h"
#include "tests/support/process.h"

namespace artesian::aio {

/// Replaces the calls between rings and the kernel.
struct RingPeer {
  static void set_setup(Ring::Setup setup) { Ring::setup = setup; }
};

namespace {

using test_support::run_in_child;

constexpr std::uint64_t piece = 64 << 10;
constexpr std::uint64_t pieces = 16;

unsigned flag_refused = 0;

int setup_that_refuses(unsigned entries, io_uring* ring, io_uring_params* params) {
  if ((params->flags & flag_refused) != 0) return -EPERM;
  return io_uring_queue_init_params(entries, ring, params);
}

/// A kernel before 5.11, whose SQPOLL accepts registered files alone.
int setup_of_old(unsigned entries, io_uring* ring, io_uring_params* params) {
  const int answer = io_uring_queue_init_params(entries, ring, params);
  params->features &= ~unsigned{IORING_FEAT_SQPOLL_NONFIXED};
  return answer;
}

/// A ring with polling on a disk that always interrupts.
int setup_that_interrupts(unsigned entries, io_uring* ring, io_uring_params* params) {
  const unsigned polling = params->flags & IORING_SETUP_IOPOLL;
  params->flags &= ~polling;
  const int answer = io_uring_queue_init_params(entries, ring, params);
  ring->flags |= polling;
  return answer;
}

/// A file that claims to be direct but is not: the kernel cannot poll it.
class UnpollableFile final : public test_support::ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  bool direct() const noexcept override { return true; }
  std::uint64_t alignment() const noexcept override { return 4096; }
};

class PolledRingTest : public EngineFixture {
 protected:
  /// Writes pieces, reads them back, and reads again from one byte further, all in flight at once.
  /// For child processes, too: returns whether all bytes were right.
  bool moves(Engine& engine, File& file) {
    auto pool = pinned::Pool::create({.bytes = pieces * 2 * piece, .name = "test pool"});
    if (!pool) return false;
    bool right = true;
    for (const std::uint64_t shift : {0, 0, 1}) {  // written, read, read elsewhere
      const bool writes = !std::exchange(written_, true);
      std::deque<Completion> moved(pieces);
      std::vector<Completion*> all;
      for (std::uint64_t index = 0; index < pieces; ++index) {
        BufferLease lease = (*pool)->lease(piece).value();
        const std::uint64_t offset = index * piece + shift;
        const std::uint64_t length = piece - shift;
        if (writes) fill(lease.data(), offset, length);
        moved[index].prepare({.operation = writes ? Operation::Write : Operation::Read,
                              .file = &file,
                              .offset = offset,
                              .length = length},
                             std::move(lease));
        all.push_back(&moved[index]);
      }
      engine.submit(all);
      for (Completion& each : moved) {
        right = right && engine.wait(each, Deadline::after_seconds(patience_s)) && each.result();
        if (!right) return false;
        const std::uint64_t offset = each.request().offset;
        right = filled_right(each.take_buffer(), offset, each.request().length);
      }
    }
    written_ = false;
    return right;
  }

  static EngineOptions options(Polling polling, std::uint32_t threads = 1) {
    return {.block_size = 16 << 10, .queue_depth = 8, .threads = threads, .polling = polling};
  }

  static void count_lines(const std::string& wanted) {
    wanted_ = wanted;
    lines_ = 0;
    set_log_sink(
        [](LogLevel, std::string_view line) { lines_ += line.find(wanted_) != line.npos ? 1 : 0; });
  }
  static inline std::string wanted_;
  static inline int lines_ = 0;

 private:
  bool written_ = false;
};
INSTANTIATE_TEST_SUITE_P(Only, PolledRingTest, testing::Values(Tested::IoUring), engine_name);

/// The kernel's submission threads of this process, as /proc shows them for its rings.
int submission_threads() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("SqThread:") && std::atoi(line.c_str() + 9) > 0) ++count;
    }
  }
  return count;
}

TEST_P(PolledRingTest, EveryKindMovesTheSameBytes) {
  const auto file = create("file", Direct::IfAligned);
  for (const Polling polling :
       {Polling::None, Polling::Submission, Polling::Completion, Polling::Both}) {
    for (const std::uint32_t threads : {1u, 2u}) {
      const auto engine = make(options(polling, threads));
      EXPECT_TRUE(moves(*engine, *file)) << polling_name(polling) << " " << threads;
    }
  }
}

TEST_P(PolledRingTest, ShortTransfersAreContinued) {
  const auto file = create("file", Direct::IfAligned);
  for (const Polling polling : {Polling::Submission, Polling::Both}) {
    ShortTransfer faults;
    faults.length = 8192;
    const auto engine = make(options(polling), &faults);
    EXPECT_TRUE(moves(*engine, *file)) << polling_name(polling);
    EXPECT_GT(engine->statistics().continued, 0u);
  }
}

TEST_P(PolledRingTest, SubmissionIsPolledByAThreadOfTheKernel) {
  const auto file = create("file", Direct::IfAligned);
  const auto without = make(options(Polling::None));
  EXPECT_EQ(submission_threads(), 0);
  const auto engine = make(options(Polling::Submission, 2));
  if (engine->polling() == Polling::None) GTEST_SKIP() << "SQPOLL is refused here";
  EXPECT_EQ(engine->polling(), Polling::Submission);
  EXPECT_EQ(submission_threads(), 2);
  EXPECT_TRUE(moves(*engine, *file));
}

TEST_P(PolledRingTest, WhereTheKernelRefusesThereIsNoneAndOneLineSaysSo) {
  const auto file = create("file", Direct::IfAligned);
  struct Case {
    unsigned refused;
    Polling wanted, got;
    const char* line;
  };
  constexpr Case cases[] = {
      {IORING_SETUP_SQPOLL, Polling::Submission, Polling::None, "SQPOLL is refused"},
      {IORING_SETUP_SQPOLL, Polling::Both, Polling::Completion, "SQPOLL is refused"},
      {IORING_SETUP_IOPOLL, Polling::Completion, Polling::None, "IOPOLL is refused"},
      {IORING_SETUP_IOPOLL, Polling::Both, Polling::Submission, "IOPOLL is refused"}};
  for (const Case& each : cases) {
    const int status = run_in_child([&] {
      flag_refused = each.refused;
      RingPeer::set_setup(setup_that_refuses);
      count_lines(each.line);
      for (int round = 0; round < 2; ++round) {
        auto engine = make_io_uring(options(each.wanted));
        if (!engine) return 77;
        if ((*engine)->polling() != each.got) return 1;
        if (!moves(**engine, *file)) return 2;
      }
      return lines_ == 1 ? 0 : 3;
    });
    if (status == 77) GTEST_SKIP() << "no io_uring here";
    EXPECT_EQ(status, 0) << each.line << " " << polling_name(each.wanted);
  }
}

TEST_P(PolledRingTest, AKernelThatPollsForRegisteredFilesAloneIsNotAskedTo) {
  const auto file = create("file", Direct::IfAligned);
  const int status = run_in_child([&] {
    RingPeer::set_setup(setup_of_old);
    count_lines("SQPOLL is refused");
    auto engine = make_io_uring(options(Polling::Submission));
    if (!engine) return 77;
    if ((*engine)->polling() != Polling::None || submission_threads() != 0) return 1;
    if (!moves(**engine, *file)) return 2;
    return lines_ == 1 ? 0 : 3;
  });
  if (status == 77) GTEST_SKIP() << "no io_uring here";
  EXPECT_EQ(status, 0);
}

TEST_P(PolledRingTest, ADiskThatCannotBePolledInterruptsAndOneLineNamesIt) {
  UnpollableFile file(create("file"));
  for (const Polling polling : {Polling::Completion, Polling::Both}) {
    const int status = run_in_child([&] {
      count_lines(file.path() + " cannot be polled");
      auto engine = make_io_uring(options(polling));
      if (!engine || (*engine)->polling() != polling) return 77;
      if (!moves(**engine, file)) return 1;
      const Polling left = polling == Polling::Both ? Polling::Submission : Polling::None;
      if ((*engine)->polling() != left) return 2;
      if (!moves(**engine, file)) return 3;
      return lines_ == 1 ? 0 : 4;
    });
    if (status == 77) GTEST_SKIP() << "no io_uring, or no polling, here";
    EXPECT_EQ(status, 0) << polling_name(polling);
  }
}

// If no disk here can be polled, only this test proves that the two rings of an engine work side by
// side.
TEST_P(PolledRingTest, DirectTransfersGoToTheirOwnRing) {
  UnpollableFile direct(create("direct"));
  const auto buffered = create("buffered");
  const int status = run_in_child([&] {
    RingPeer::set_setup(setup_that_interrupts);
    for (const bool overlap : {true, false}) {
      EngineOptions chosen = options(Polling::Completion, 2);
      chosen.overlap_events = overlap;
      auto engine = make_io_uring(chosen);
      if (!engine) return 77;
      if (!moves(**engine, direct) || !moves(**engine, *buffered)) return 1;
      if ((*engine)->polling() != Polling::Completion) return 2;
    }
    return 0;
  });
  if (status == 77) GTEST_SKIP() << "no io_uring here";
  EXPECT_EQ(status, 0);
}

TEST_P(PolledRingTest, EnginesThatCannotPollSaySo) {
  const auto file = create("file", Direct::IfAligned);
  for (const EngineKind kind : {EngineKind::Libaio, EngineKind::Threads}) {
    const int status = run_in_child([&] {
      count_lines("as io_uring alone can poll");
      for (int round = 0; round < 2; ++round) {
        auto engine = make_engine(kind, options(Polling::Both));
        if (!engine) return engine.error().system_error == EAGAIN ? 77 : 1;
        if ((*engine)->polling() != Polling::None) return 2;
        if (!moves(**engine, *file)) return 3;
      }
      return lines_ == 1 ? 0 : 4;
    });
    if (status == 77) continue;  // all AIO requests of the machine are in use
    EXPECT_EQ(status, 0) << engine_kind_name(kind);
  }
}

}  // namespace
}  // namespace artesian::aio
