// Proves that aio_bench's verification of a whole file detects every fault of a disk, though only
// one sector in a quarter of a block is stamped while the clock runs: between measurements a test
// changes a byte, a sector or a block of the file behind its back. A disk that stops answering
// during a measurement is an error.
#include "tools/aio_bench/ground.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/simulated_engine.h"
#include "tests/support/temporary_directory.h"
#include "tools/aio_bench/sweep.h"

namespace artesian::bench {
namespace {

constexpr std::uint64_t sector = Pattern::sector;
constexpr std::uint64_t block_size = 2 * Pattern::sample_min;
constexpr std::uint64_t blocks = 4;
constexpr std::uint64_t stamped = 0;  // sectors of a block
constexpr std::uint64_t marked = 65;

using Bytes = std::vector<std::byte>;

/// Opens the file below `directory` that has no name.
int open_behind_its_back(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // as is the iterator's own
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(directory + "/artesian-aio-bench-")) continue;
    return ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
  }
  return -1;
}

class BenchGround : public testing::Test {
 protected:
  void SetUp() override { SetUpAnew(); }
  void SetUpAnew() {
    if (descriptor_ >= 0) ::close(descriptor_);
    ground_.reset();
    auto made = Ground::create({.directories = {directory_.path()},
                                .size = blocks * block_size,
                                .granule = block_size,
                                .buffer_bytes = blocks * block_size},
                               stop_);
    ASSERT_TRUE(made) << made.error().to_string();
    ground_ = std::move(made).value();
    descriptor_ = open_behind_its_back(directory_.path());
    ASSERT_GE(descriptor_, 0);
    ASSERT_TRUE(ground_->fill(transfers(Access::Write)));
  }
  void TearDown() override { ::close(descriptor_); }

  static Transfers transfers(Access access, std::uint32_t depth = 1) {
    return {.access = access, .engine = {.block_size = block_size, .queue_depth = depth}};
  }
  Measurement measure(const Transfers& transfers) {
    auto got = ground_->measure(transfers);
    EXPECT_TRUE(got) << got.error().to_string();
    return got ? *got : Measurement{};
  }
  bool all_right() {
    auto right = ground_->all_right(transfers(Access::Read));
    EXPECT_TRUE(right) << right.error().to_string();
    return right && *right;
  }
  Bytes get(std::uint64_t offset, std::uint64_t length = sector) const {
    Bytes bytes(length);
    EXPECT_EQ(::pread(descriptor_, bytes.data(), length, static_cast<off_t>(offset)),
              static_cast<ssize_t>(length));
    return bytes;
  }
  void put(std::uint64_t offset, const Bytes& bytes) const {
    EXPECT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::fsync(descriptor_), 0);
  }
  void swap(std::uint64_t left, std::uint64_t right, std::uint64_t length = sector) const {
    const Bytes kept = get(left, length);
    put(left, get(right, length));
    put(right, kept);
  }

  std::atomic<int> stop_ = 0;
  test_support::TemporaryDirectory directory_;
  std::unique_ptr<Ground> ground_;
  int descriptor_ = -1;
};

TEST_F(BenchGround, AcceptsWhatEveryKindOfMeasurementLeaves) {
  for (const std::uint32_t depth : {1u, 3u}) {
    for (const Access access : accesses) {
      for (const double share : {0.3, 0.5, 0.8}) {
        Transfers wanted = transfers(access, depth);
        wanted.read_share = share;
        EXPECT_TRUE(measure(wanted).right);
        wanted.seconds = 1e-9;  // at depth 3: more than one pass
        EXPECT_TRUE(measure(wanted).right);
        EXPECT_TRUE(all_right()) << access_name(access) << " " << depth << " " << share;
      }
    }
  }
}

TEST_F(BenchGround, SeesAnyByteThatChanged) {
  measure(transfers(Access::Write));
  for (const std::uint64_t at : {std::uint64_t{0}, sector + 1, marked * sector,
                                 block_size + Pattern::sample_min - 1, blocks * block_size - 1}) {
    Bytes changed = get(at, 1);
    changed[0] ^= std::byte{4};
    put(at, changed);
    EXPECT_FALSE(all_right()) << at;
    changed[0] ^= std::byte{4};
    put(at, changed);
    EXPECT_TRUE(all_right()) << at;
  }
}

TEST_F(BenchGround, SeesAnySectorWhoseWriteWasLost) {
  for (const std::uint64_t at : {stamped, marked}) {
    const std::uint64_t offset = block_size + at * sector;
    const Bytes stale = get(offset);
    measure(transfers(Access::Write));  // at depth 1: by the buffer that wrote it before, too
    EXPECT_TRUE(all_right());
    put(offset, stale);
    EXPECT_FALSE(all_right()) << at;
    measure(transfers(Access::Write));
  }
}

TEST_F(BenchGround, SeesABlockWhoseWriteBackWasLost) {
  const Bytes stale = get(block_size, block_size);
  measure(transfers(Access::Mixed));
  EXPECT_TRUE(all_right());
  put(block_size, stale);
  EXPECT_FALSE(all_right());
}

TEST_F(BenchGround, SeesWhatCameToAnotherPlace) {
  measure(transfers(Access::Write, 2));
  swap(marked * sector, marked * sector + sector);  // inside a block
  EXPECT_FALSE(all_right());
  swap(marked * sector, marked * sector + sector);
  EXPECT_TRUE(all_right());
  for (std::uint64_t other = 1; other < blocks; ++other) {
    swap(0, other * block_size, block_size);
    EXPECT_FALSE(all_right()) << other;
    swap(0, other * block_size, block_size);
    swap(stamped * sector, other * block_size + stamped * sector);
    EXPECT_FALSE(all_right()) << other;
    swap(stamped * sector, other * block_size + stamped * sector);
  }
  EXPECT_TRUE(all_right());
}

TEST_F(BenchGround, TellsSectorsOfTwoBuffersApart) {
  measure(transfers(Access::Write, blocks));  // a buffer for each block
  swap(marked * sector, block_size + marked * sector);
  EXPECT_FALSE(all_right());
}

/// A disk that does not answer for one block until it is released.
struct SilentBlock final : aio::FaultSeam {
  SilentBlock() : answer(eventfd(0, EFD_CLOEXEC)) {}
  ~SilentBlock() override { ::close(answer); }
  int stalls_on(const aio::Block& block) noexcept override {
    return block.offset == 2 * block_size ? answer : -1;
  }
  const int answer;
};

TEST_F(BenchGround, ADiskThatStopsAnsweringIsAnErrorThatNamesWhatHangs) {
  for (const Access access : accesses) {
    SilentBlock silent;
    const Transfers wanted = transfers(access, 2);
    const auto& kind = test_support::SimulatedOptions::Steps::Background;
    test_support::SimulatedEngine engine(wanted.engine, {.steps = kind}, &silent);
    SetUpAnew();
    {
      Sweep sweep(*ground_, engine, wanted, Sweep::Check::Spot, /*patience=*/0.05);
      ASSERT_TRUE(sweep.prepare());
      const auto done = sweep.run();
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, ErrorCode::Timeout);
      const std::string& message = done.error().message;
      EXPECT_EQ(message.find("no answer from the disk within "), 0u) << message;
      const std::string what = access == Access::Write ? "write of " : "read of ";
      EXPECT_NE(message.find(what + directory_.path()), message.npos) << message;
    }
    const std::uint64_t one = 1;  // too late: nobody waits for it any more
    ASSERT_EQ(::write(silent.answer, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
}

TEST_F(BenchGround, MarksItsBuffersAnewInEveryPass) {
  Transfers wanted = transfers(Access::Write, blocks);
  wanted.seconds = 1e-3;
  while (measure(wanted).bytes_written < 2 * blocks * block_size) {  // two passes
    wanted.seconds *= 2;
    ASSERT_LT(wanted.seconds, 100.0);
  }
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const Bytes found = get(block * block_size + marked * sector);
    // The filling used buffer 0, the first pass the next ones.
    for (std::uint32_t buffer = 0; buffer <= blocks; ++buffer) {
      Bytes marks(block_size);
      Pattern::mark(marks, buffer);
      EXPECT_NE(std::memcmp(found.data(), &marks[marked * sector], 8), 0) << block << " " << buffer;
    }
  }
}

}  // namespace
}  // namespace artesian::bench
