// Proves that no damaged parameter is computed with. One byte in every 4 KiB of units on NVMe is
// flipped in turn, behind the store's back. Each is detected when its unit is acquired and at no
// other time, and the error names the shard and the block: if the unit is expanded in its slot or
// used directly, and in a last block that is shorter than the others. A unit of several reads is
// damaged at some places. An executor that works backwards stands for a thread pool.
#include "tiering/residency.h"

#include "kernels/cast.h"
#include "tests/support/backwards_executor.h"
#include "tests/tiering/tier_store_harness.h"
#include "tiering/superblock.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t block = 8192;
constexpr std::uint64_t sector = 4096;

struct Kind {
  DType stored;
  DType computed;
  std::uint64_t bytes = 4 * block + sector;  // the last block is half as long
};
constexpr std::uint64_t several_reads = (9 << 20) + sector;
constexpr Kind kinds[] = {{DType::BFloat16, DType::Float32},
                          {DType::Float16, DType::Float32},
                          {DType::Float32, DType::Float32},
                          {DType::BFloat16, DType::BFloat16},
                          {DType::BFloat16, DType::Float32, several_reads}};
constexpr std::uint32_t unit_count = 5;

class ResidencyTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!harness_.available()) GTEST_SKIP() << "the kernel refuses this engine";
    std::vector<ShardOptions> shards;
    std::vector<ResidentUnit> units;
    for (std::uint32_t unit = 0; unit < unit_count; ++unit) {
      shards.push_back(
          {.name = "s" + std::to_string(unit), .bytes = kinds[unit].bytes, .block_bytes = block});
      units.push_back({.shard = ShardId{unit},
                       .stored = kinds[unit].stored,
                       .computed = kinds[unit].computed,
                       .image = image(unit),
                       .persistent = false});
    }
    store_ = harness_.must_open(std::move(shards));
    for (std::uint32_t unit = 0; unit < unit_count; ++unit) fill_home(unit);
    residency_ = std::make_unique<Residency>(units, *store_, *pool_, executor_);
  }
  void TearDown() override {
    if (residency_ == nullptr) return;
    EXPECT_TRUE(residency_->clear().has_value());
    EXPECT_TRUE(store_->close().has_value());
  }

  static std::uint64_t image(std::uint32_t unit) {
    return kinds[unit].bytes / dtype_size(kinds[unit].stored);
  }
  static std::vector<float> values_of(std::uint32_t unit) {
    std::vector<float> values(image(unit));
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(random_word(51, unit, i) % 200) - 100.0f;  // exact in each
    }
    return values;
  }
  static std::vector<std::byte> in_dtype(const std::vector<float>& values, DType dtype) {
    std::vector<std::byte> bytes(values.size() * dtype_size(dtype));
    static_cast<void>(kernels::narrow(values.data(), bytes.data(), dtype, values.size()));
    return bytes;
  }
  void fill_home(std::uint32_t unit) {
    const ByteRange whole{0, kinds[unit].bytes};
    BufferLease buffer = harness_.buffer(whole.length);
    const auto bytes = in_dtype(values_of(unit), kinds[unit].stored);
    std::memcpy(buffer.data(), bytes.data(), bytes.size());
    ASSERT_TRUE(write_buffer(*store_, ShardId{unit}, whole, std::move(buffer)).has_value());
  }
  void flip(std::uint32_t unit, std::uint64_t byte) {
    const auto swap = harness_.swap_file();
    std::uint64_t at = superblock_region_size + byte / sector * sector;
    for (std::uint32_t before = 0; before < unit; ++before) at += kinds[before].bytes;
    BufferLease buffer = harness_.buffer(sector);
    ASSERT_TRUE(swap->read_at(buffer.data(), sector, at).has_value());
    buffer.data()[byte % sector] ^= std::byte{1};
    ASSERT_TRUE(swap->write_at(buffer.data(), sector, at).has_value());
  }
  Result<void> acquire(std::uint32_t unit) {
    ARTESIAN_TRY_VOID(residency_->start(unit, aio::Priority::Demand));
    return residency_->acquire(unit);
  }
  void expect_whole(std::uint32_t unit) {
    const auto acquired = acquire(unit);
    ASSERT_TRUE(acquired.has_value()) << acquired.error().to_string();
    const auto expected = in_dtype(values_of(unit), kinds[unit].computed);
    EXPECT_EQ(std::memcmp(residency_->data(unit), expected.data(), expected.size()), 0) << unit;
    EXPECT_TRUE(residency_->unpin(unit).has_value());
    EXPECT_TRUE(residency_->drop(unit).has_value());
  }

  Harness harness_{GetParam()};
  test_support::BackwardsExecutor executor_;
  std::unique_ptr<pinned::Pool> pool_ =
      pinned::Pool::create({.bytes = 32 << 20, .lock = pinned::Lock::Never, .name = "slots"})
          .value();
  std::unique_ptr<TierStore> store_;
  std::unique_ptr<Residency> residency_;
};

INSTANTIATE_TEST_SUITE_P(Engines, ResidencyTest,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::IoUring,
                                         Backend::Simulated),
                         backend_name);

TEST_P(ResidencyTest, OneFlippedByteInEvery4KiBIsFoundWhereItIs) {
  for (std::uint32_t unit = 0; unit < unit_count; ++unit) {
    const std::uint64_t last = kinds[unit].bytes - sector;
    const std::uint64_t step = last > 32 * sector ? last / 8 : sector;
    for (std::uint64_t first = 0; first <= last; first += step) {
      const std::uint64_t byte = first + random_word(52, unit, first) % sector;
      SCOPED_TRACE("unit " + std::to_string(unit) + ", byte " + std::to_string(byte));
      flip(unit, byte);
      const auto acquired = acquire(unit);
      ASSERT_FALSE(acquired.has_value());
      EXPECT_EQ(acquired.error().code, ErrorCode::Corrupt);
      const std::string where =
          "shard s" + std::to_string(unit) + ", block " + std::to_string(byte / block);
      EXPECT_NE(acquired.error().message.find(where), std::string::npos)
          << acquired.error().message;
      EXPECT_TRUE(residency_->drop(unit).has_value());
      expect_whole((unit + 1) % 4);  // another one
      flip(unit, byte);
    }
    expect_whole(unit);
  }
}

}  // namespace
}  // namespace artesian::tiering
