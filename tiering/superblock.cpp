#include "tiering/superblock.h"

#include <fmt/core.h>

#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/checksum.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t superblock_magic = 0x3150415753545241;  // "ARTSWAP1" as bytes
static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct Record {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint64_t run_id;
  std::uint64_t generation;
  std::uint64_t payload_bytes;
  std::uint64_t checksum;  // covers all bytes before it
};
static_assert(sizeof(Record) == 48 && offsetof(Record, checksum) == 40);

// Direct files transfer only whole aligned blocks.
struct alignas(superblock_block_size) Block {
  std::byte bytes[superblock_block_size];
};

std::uint64_t checksum_of(const Record& record) {
  return kernels::checksum64(&record, offsetof(Record, checksum), 0);
}

std::optional<Superblock> decode(const Block& block) {
  Record record;
  std::memcpy(&record, block.bytes, sizeof(record));
  if (record.magic != superblock_magic || record.checksum != checksum_of(record))
    return std::nullopt;
  return Superblock{.version = record.version,
                    .rank = record.rank,
                    .run_id = record.run_id,
                    .generation = record.generation,
                    .payload_bytes = record.payload_bytes};
}

}  // namespace

Result<void> write_superblock(File& file, const Superblock& superblock) noexcept {
  ARTESIAN_CHECK(superblock.version == superblock_version, superblock.version);
  Record record{.magic = superblock_magic,
                .version = superblock.version,
                .rank = superblock.rank,
                .run_id = superblock.run_id,
                .generation = superblock.generation,
                .payload_bytes = superblock.payload_bytes,
                .checksum = 0};
  record.checksum = checksum_of(record);
  Block block{};
  std::memcpy(block.bytes, &record, sizeof(record));
  ARTESIAN_CHECK(decode(block) == superblock);
  ARTESIAN_CHECK(superblock_block_size % file.alignment() == 0, file.alignment());
  for (std::uint64_t copy = 0; copy < superblock_copies; ++copy) {
    ARTESIAN_TRY_VOID(file.write_at(block.bytes, sizeof(block), copy * superblock_block_size));
  }
  return {};
}

Result<Superblock> read_superblock(File& file) noexcept {
  ARTESIAN_CHECK(superblock_block_size % file.alignment() == 0, file.alignment());
  std::optional<Superblock> newest;
  std::optional<Error> unreadable;
  for (std::uint64_t copy = 0; copy < superblock_copies; ++copy) {
    Block block;
    auto read = file.read_at(block.bytes, sizeof(block), copy * superblock_block_size);
    if (!read.has_value()) {  // the other copies are for the case of a bad sector
      if (!unreadable) unreadable = std::move(read).error();
      continue;
    }
    const auto found = decode(block);
    if (found && (!newest || found->generation > newest->generation)) newest = found;
  }
  if (!newest && unreadable) return *std::move(unreadable);
  if (!newest) {
    Error error = make_error(ErrorCode::Corrupt, "no copy of the swap file's superblock is valid");
    error.file = file.path();
    error.length = superblock_region_size;
    return error;
  }
  if (newest->version != superblock_version) {
    Error error = make_error(ErrorCode::Unsupported,
                             fmt::format("swap file of format version {}, this program knows {}",
                                         newest->version, superblock_version));
    error.file = file.path();
    return error;
  }
  return *newest;
}

}  // namespace artesian::tiering
