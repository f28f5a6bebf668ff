// Proves that a superblock survives as long as one copy does, that the newest valid copy wins, and
// that nothing else is ever taken for one: every single flipped bit of the record is caught.
#include "tiering/superblock.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace artesian::tiering {
namespace {

class SuperblockTest : public testing::Test {
 protected:
  SuperblockTest()
      : file_(std::move(system_files()
                            .open(directory_.file("swap"),
                                  {.create = Create::Exclusive, .direct = Direct::Never})
                            .value())) {}

  void write(const Superblock& superblock) {
    ASSERT_TRUE(write_superblock(*file_, superblock).has_value());
  }
  void flip(std::uint64_t byte, int bit) {
    unsigned char value = 0;
    ASSERT_TRUE(file_->read_at(&value, 1, byte).has_value());
    value = static_cast<unsigned char>(value ^ (1u << bit));
    ASSERT_TRUE(file_->write_at(&value, 1, byte).has_value());
  }

  test_support::TemporaryDirectory directory_;
  std::unique_ptr<File> file_;
};

const Superblock first{
    .rank = 3, .run_id = 0xfeedbeef12345678, .generation = 7, .payload_bytes = 1 << 20};

TEST_F(SuperblockTest, ReadsWhatWasWritten) {
  write(first);
  EXPECT_EQ(read_superblock(*file_).value(), first);
  EXPECT_EQ(file_->size().value(), superblock_region_size);
}

TEST_F(SuperblockTest, OneGoodCopyIsEnough) {
  for (std::uint64_t survivor = 0; survivor < superblock_copies; ++survivor) {
    write(first);
    for (std::uint64_t copy = 0; copy < superblock_copies; ++copy) {
      if (copy != survivor) flip(copy * superblock_block_size + 20, 0);
    }
    EXPECT_EQ(read_superblock(*file_).value(), first) << survivor;
    flip(survivor * superblock_block_size + 20, 0);
    const auto none = read_superblock(*file_);
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code, ErrorCode::Corrupt);
    EXPECT_EQ(none.error().file, file_->path());
  }
}

TEST_F(SuperblockTest, TheNewestCopyWins) {
  Superblock newer = first;
  newer.generation = 8;
  std::vector<char> block(superblock_block_size);
  write(newer);
  ASSERT_TRUE(file_->read_at(block.data(), block.size(), 0).has_value());
  for (std::uint64_t copy = 0; copy < superblock_copies; ++copy) {  // a commit torn after one copy
    write(first);
    ASSERT_TRUE(
        file_->write_at(block.data(), block.size(), copy * superblock_block_size).has_value());
    EXPECT_EQ(read_superblock(*file_).value(), newer) << copy;
  }
}

TEST_F(SuperblockTest, AnUnreadableCopyIsMadeUpForByTheOthers) {
  write(first);
  for (std::uint64_t readable = superblock_copies - 1; readable > 0; --readable) {
    std::filesystem::resize_file(file_->path(), readable * superblock_block_size);
    EXPECT_EQ(read_superblock(*file_).value(), first) << readable;
  }
  flip(20, 0);  // the last one left
  const auto none = read_superblock(*file_);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::Io);
  EXPECT_EQ(none.error().offset, superblock_block_size);
}

TEST_F(SuperblockTest, EveryFlippedBitOfTheRecordIsCaught) {
  write(first);
  for (std::uint64_t copy = 1; copy < superblock_copies; ++copy) {
    flip(copy * superblock_block_size, 0);
  }
  for (std::uint64_t byte = 0; byte < 48; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(byte, bit);
      EXPECT_FALSE(read_superblock(*file_).has_value()) << byte << "." << bit;
      flip(byte, bit);
    }
  }
  EXPECT_EQ(read_superblock(*file_).value(), first);
}

TEST_F(SuperblockTest, RefusesAnEmptyAndAForeignFile) {
  EXPECT_FALSE(read_superblock(*file_).has_value());  // too short
  const std::vector<char> zeros(superblock_region_size);
  ASSERT_TRUE(file_->write_at(zeros.data(), zeros.size(), 0).has_value());
  const auto foreign = read_superblock(*file_);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code, ErrorCode::Corrupt);
}

}  // namespace
}  // namespace artesian::tiering
