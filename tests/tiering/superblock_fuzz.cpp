// Any bytes as the start of a swap file: what is read is the newest of the valid copies, and
// nothing else is ever taken for one.
//
// Input: a byte that says which copies get a right magic and checksum, so that the fuzzer comes
// past them; a byte that cuts the file short where it is not 0; then the copies, 48 bytes each.
#include <array>
#include <cstring>
#include <optional>

#include "kernels/checksum.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/memory_files.h"
#include "tiering/superblock.h"

namespace artesian::tiering {
namespace {

constexpr std::size_t head_size = 2;
constexpr std::size_t record_size = 48;
constexpr std::size_t checksum_offset = 40;
constexpr std::size_t cut_unit = 72;  // 255 of them are more than the region

template <typename T>
T field(const std::uint8_t* record, std::size_t offset) {
  T value;
  std::memcpy(&value, record + offset, sizeof(value));
  return value;
}

/// Decodes one copy as the header of superblock.h describes it.
std::optional<Superblock> naive_decode(const std::uint8_t* record) {
  if (std::memcmp(record, "ARTSWAP1", 8) != 0) return std::nullopt;
  if (field<std::uint64_t>(record, checksum_offset) !=
      kernels::checksum64(record, checksum_offset, 0)) {
    return std::nullopt;
  }
  return Superblock{.version = field<std::uint32_t>(record, 8),
                    .rank = field<std::uint32_t>(record, 12),
                    .run_id = field<std::uint64_t>(record, 16),
                    .generation = field<std::uint64_t>(record, 24),
                    .payload_bytes = field<std::uint64_t>(record, 32)};
}

void repair(std::uint8_t* record) {
  std::memcpy(record, "ARTSWAP1", 8);
  const std::uint64_t checksum = kernels::checksum64(record, checksum_offset, 0);
  std::memcpy(record + checksum_offset, &checksum, sizeof(checksum));
}

void read(std::span<const std::uint8_t> head, std::span<const std::uint8_t> rest) {
  auto node = std::make_shared<test_support::MemoryNode>();
  node->bytes.resize(superblock_region_size);
  std::optional<Superblock> newest;
  const std::size_t end = head[1] == 0 ? node->bytes.size() : head[1] * cut_unit;
  for (std::size_t copy = 0; copy < superblock_copies; ++copy) {
    auto* const record =
        reinterpret_cast<std::uint8_t*>(node->bytes.data()) + copy * superblock_block_size;
    const std::size_t from = std::min(copy * record_size, rest.size());
    std::copy_n(rest.begin() + static_cast<std::ptrdiff_t>(from),
                std::min(record_size, rest.size() - from), record);
    if ((head[0] & (1u << copy)) != 0) repair(record);
    const auto found = naive_decode(record);
    if (end < (copy + 1) * superblock_block_size || !found) continue;
    if (!newest || found->generation > newest->generation) newest = found;
  }
  node->bytes.resize(std::min(end, node->bytes.size()));
  std::uint64_t bytes_free = superblock_region_size;
  test_support::MemoryFile file(node, "swap", &bytes_free);
  const auto got = read_superblock(file);
  if (got.has_value()) {
    ARTESIAN_CHECK(newest && *got == *newest && got->version == superblock_version);
    ARTESIAN_CHECK(write_superblock(file, *got).has_value());
    ARTESIAN_CHECK(read_superblock(file).value() == *got);
    return;
  }
  ARTESIAN_CHECK(!newest || newest->version != superblock_version);
  ARTESIAN_CHECK(got.error().file == "swap");
  test_support::check_shown(got.error().to_string(), 1);
}

}  // namespace
}  // namespace artesian::tiering

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace artesian::tiering;
  if (size < head_size) return 0;
  const std::span<const std::uint8_t> input(data, size);
  read(input.first(head_size), input.subspan(head_size));
  return 0;
}
