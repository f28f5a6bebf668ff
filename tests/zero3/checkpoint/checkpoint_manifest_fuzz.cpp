// Any bytes as a manifest: it is refused with one line, or it can be written, and reads back the
// same. Then the same bytes with the right checksum, without which almost no mutation would reach
// further code.
#include "base/check.h"
#include "tests/support/fuzz_input.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace artesian::zero3 {
namespace {

void read(std::string_view text) {
  const auto manifest = read_manifest(text);
  if (!manifest.has_value()) {
    ARTESIAN_CHECK(manifest.error().code == ErrorCode::Corrupt ||
                   manifest.error().code == ErrorCode::Unsupported);
    return test_support::check_shown(manifest.error().to_string(), 1);
  }
  for (const SavedPart& part : manifest->parts) {
    const SavedDataFile& file = manifest->files.at(part.file);
    ARTESIAN_CHECK(part.offset >= file.head_bytes && part.offset + part.bytes() <= file.bytes);
    ARTESIAN_CHECK(part.first + part.count <= manifest->parameters.at(part.parameter).numel());
  }
  const auto written = write_manifest(*manifest);
  ARTESIAN_CHECK(written.has_value());
  const auto again = read_manifest(*written);
  ARTESIAN_CHECK(again.has_value());
  ARTESIAN_CHECK(again->state == manifest->state && again->groups == manifest->groups);
  ARTESIAN_CHECK(again->link == manifest->link && again->trainer == manifest->trainer);
  ARTESIAN_CHECK(again->parts.size() == manifest->parts.size());
}

void read_closed(std::string_view text) {
  const std::size_t closing = text.rfind(",\"checksum\"");
  std::string open(text.substr(0, closing == std::string_view::npos ? text.rfind('}') : closing));
  open += ",\"checksum\":\"";
  read(open + digest_of(open) + "\"}");
}

}  // namespace
}  // namespace artesian::zero3

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  artesian::zero3::read(text);
  artesian::zero3::read_closed(text);
  return 0;
}
