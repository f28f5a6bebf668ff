#include "tiering/snapshot_sums.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>

#include "tiering/snapshot_file.h"

namespace artesian::tiering {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little endian");

constexpr std::string_view sums_magic = "ARTSUMS1";

Error corrupt(std::string message) {
  return make_error(ErrorCode::Corrupt, "checksums: " + std::move(message));
}

}  // namespace

std::string write_snapshot_sums(const std::vector<SnapshotSum>& sums) {
  std::string text(snapshot_sums_size(sums.size()), '\0');
  const std::uint64_t count = sums.size();
  ARTESIAN_CHECK(text.size() == 16 + count * sizeof(SnapshotSum), text.size(), count);
  std::memcpy(text.data(), sums_magic.data(), sums_magic.size());
  std::memcpy(text.data() + 8, &count, sizeof count);
  static_assert(sizeof(SnapshotSum) == 16, "an entry of the file");
  if (count != 0) std::memcpy(text.data() + 16, sums.data(), count * sizeof(SnapshotSum));
  return text;
}

Result<std::vector<SnapshotSum>> read_snapshot_sums(std::string_view text,
                                                    std::uint64_t data_bytes) {
  if (text.size() < 16 || !text.starts_with(sums_magic)) return corrupt("not a file of checksums");
  std::uint64_t count = 0;
  std::memcpy(&count, text.data() + 8, sizeof count);
  if (count != (text.size() - 16) / 16 || text.size() % 16 != 0) {
    return corrupt(fmt::format("got {} bytes for {} blocks", text.size(), count));
  }
  std::vector<SnapshotSum> sums(count);
  if (count != 0) std::memcpy(sums.data(), text.data() + 16, count * sizeof(SnapshotSum));
  std::uint64_t left = data_bytes;
  for (std::size_t index = 0; index < sums.size(); ++index) {
    const std::uint64_t length = sums[index].length;
    if (length == 0 || length % SnapshotBlock::grain != 0 || length > SnapshotBlock::bytes_max ||
        length > left) {
      return corrupt(fmt::format("block {}: got a length of {} bytes", index, length));
    }
    left -= length;
  }
  if (left != 0) return corrupt(fmt::format("{} bytes of the file have no checksum", left));
  return sums;
}

}  // namespace artesian::tiering
