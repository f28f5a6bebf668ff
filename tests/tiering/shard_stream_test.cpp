// Proves that a stream returns every byte of a shard once, in order and verified, for any sizes of
// shard, block and piece and any number of buffers; and that a flipped bit is an error.
#include "tiering/shard_stream.h"

#include "tests/tiering/tier_store_harness.h"

namespace artesian::tiering {
namespace {

constexpr ShardId only{0};
constexpr std::uint64_t payload_offset = 4 * 4096;  // after the superblocks

std::byte byte_at(std::uint64_t position) {
  return static_cast<std::byte>((position * 0x9E3779B97F4A7C15u) >> 40);
}

Result<void> write_all(Harness& harness, TierStore& store, const ShardStreamOptions& options) {
  ARTESIAN_TRY(writer, ShardWriter::open(store, only, *harness.staging, options));
  std::uint64_t position = 0;
  for (;;) {
    ARTESIAN_TRY(piece, writer.next());
    if (piece.empty()) break;
    for (std::byte& byte : piece) byte = byte_at(position++);
  }
  EXPECT_EQ(position, store.shard(only).bytes);
  return writer.close();
}

/// Reads all. Returns the number of wrong bytes.
Result<std::uint64_t> read_all(Harness& harness, TierStore& store,
                               const ShardStreamOptions& options) {
  ARTESIAN_TRY(reader, ShardReader::open(store, only, *harness.staging, options));
  std::uint64_t position = 0;
  std::uint64_t wrong = 0;
  const auto read = [&]() -> Result<void> {
    for (;;) {
      ARTESIAN_TRY(piece, reader.next());
      if (piece.empty()) return {};
      for (const std::byte byte : piece) wrong += byte == byte_at(position++) ? 0 : 1;
    }
  };
  auto outcome = read();
  ARTESIAN_TRY_VOID(reader.close());
  ARTESIAN_TRY_VOID(std::move(outcome));
  EXPECT_EQ(position, store.shard(only).bytes);
  return wrong;
}

class ShardStream : public testing::TestWithParam<Backend> {};

TEST_P(ShardStream, EveryByteComesOnceAndInOrder) {
  Harness harness(GetParam());
  if (!harness.available()) GTEST_SKIP() << "no io_uring here";
  for (const std::uint64_t bytes : {4096u, 12'288u, 1'048'576u, 1'200'128u}) {
    for (const std::uint64_t block : {4096u, 65'536u}) {
      for (const std::uint64_t piece : {1u, 4096u, 70'000u, 1u << 20}) {
        for (const std::uint32_t buffers : {1u, 2u, 5u}) {
          SCOPED_TRACE(std::to_string(bytes) + " by " + std::to_string(block) + ", pieces of " +
                       std::to_string(piece) + ", buffers " + std::to_string(buffers));
          const ShardStreamOptions options{.piece_bytes = piece, .buffers = buffers};
          auto store = harness.must_open({{.name = "s", .bytes = bytes, .block_bytes = block}});
          const auto written = write_all(harness, *store, options);
          ASSERT_TRUE(written.has_value()) << written.error().to_string();
          const auto wrong = read_all(harness, *store, options);
          ASSERT_TRUE(wrong.has_value()) << wrong.error().to_string();
          EXPECT_EQ(*wrong, 0u);
          EXPECT_TRUE(store->close().has_value());
        }
      }
    }
  }
}

TEST_P(ShardStream, AFlippedBitIsAnError) {
  Harness harness(GetParam());
  if (!harness.available()) GTEST_SKIP() << "no io_uring here";
  auto store = harness.must_open({{.name = "s", .bytes = 1 << 20, .block_bytes = 4096}});
  ASSERT_TRUE(write_all(harness, *store, {}).has_value());
  constexpr std::uint64_t block = 73;
  BufferLease bytes = harness.buffer(4096);
  const auto file = harness.swap_file();
  ASSERT_TRUE(file->read_at(bytes.data(), 4096, payload_offset + block * 4096).has_value());
  bytes.data()[1000] ^= std::byte{1};
  ASSERT_TRUE(file->write_at(bytes.data(), 4096, payload_offset + block * 4096).has_value());
  const auto outcome = read_all(harness, *store, {});
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code, ErrorCode::Corrupt);
  EXPECT_EQ(outcome.error().offset, payload_offset + block * 4096);
  EXPECT_TRUE(store->close().has_value());
}

INSTANTIATE_TEST_SUITE_P(Engines, ShardStream,
                         testing::Values(Backend::Memory, Backend::Threads, Backend::IoUring,
                                         Backend::Simulated),
                         backend_name);

}  // namespace
}  // namespace artesian::tiering
