// Any bytes as a file of checksums: it is refused, or its blocks cover the data exactly and it is
// written as it was read. The first eight bytes are the length of the data.
#include <cstring>

#include "base/check.h"
#include "tests/support/fuzz_input.h"
#include "tiering/snapshot_file.h"
#include "tiering/snapshot_sums.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace artesian;
  if (size < 8) return 0;
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, data, sizeof bytes);
  const std::string_view text(reinterpret_cast<const char*>(data) + 8, size - 8);
  const auto sums = tiering::read_snapshot_sums(text, bytes);
  if (!sums.has_value()) {
    ARTESIAN_CHECK(sums.error().code == ErrorCode::Corrupt);
    test_support::check_shown(sums.error().to_string(), 1);
    return 0;
  }
  std::uint64_t sum = 0;
  for (const auto& entry : *sums) {
    ARTESIAN_CHECK(entry.length > 0 && entry.length <= tiering::SnapshotBlock::bytes_max);
    sum += entry.length;
  }
  ARTESIAN_CHECK(sum == bytes, sum, bytes);
  ARTESIAN_CHECK(tiering::write_snapshot_sums(*sums) == text);
  return 0;
}
