// Any bytes as a safetensors file. Either it is refused with one line that names the file, or its
// tensors are contiguous from the first byte of data to the last, with distinct names, and each
// that can be read is read whole. Then the same with the header's length corrected: it is wrong
// after almost every mutation, so without this little else would be tested.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "models/safetensors.h"
#include "tests/support/fuzz_input.h"

namespace artesian::models {
namespace {

void check_accepted(const SafetensorsFile& file, std::uint64_t file_size) {
  std::set<std::string> names;
  std::uint64_t position = 0;
  std::vector<float> values;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    ARTESIAN_CHECK(tensor.begin == position && tensor.end >= position, tensor.begin, position);
    position = tensor.end;
    ARTESIAN_CHECK(names.insert(tensor.name).second);
    ARTESIAN_CHECK(file.find(tensor.name) == &tensor);
    test_support::check_shown(shown_name(tensor.name), 1);
    unsigned __int128 bits = tensor.type->bits;
    for (const std::uint64_t extent : tensor.shape) bits *= extent;
    ARTESIAN_CHECK(bits == static_cast<unsigned __int128>(tensor.end - tensor.begin) * 8);
    if (!SafetensorsFile::readable(tensor)) continue;
    values.resize((tensor.end - tensor.begin) * 8 / tensor.type->bits);
    ARTESIAN_CHECK(file.read(tensor, 0, values).has_value());
  }
  ARTESIAN_CHECK(position <= file_size - safetensors_prefix_size, position, file_size);
}

void read(std::span<const std::uint8_t> bytes) {
  static test_support::InputInMemory input;
  input.fill(bytes);
  const auto file = SafetensorsFile::open(input.path());
  if (file.has_value()) return check_accepted(*file, bytes.size());
  ARTESIAN_CHECK(file.error().code == ErrorCode::Corrupt);
  ARTESIAN_CHECK(file.error().file == input.path());
  test_support::check_shown(file.error().to_string(), 1);
}

/// The header ends with the last brace.
void read_with_right_length(std::span<const std::uint8_t> bytes) {
  if (bytes.size() <= safetensors_prefix_size) return;
  const auto brace = std::find(bytes.rbegin(), bytes.rend(), std::uint8_t{'}'});
  const auto end = static_cast<std::uint64_t>(bytes.rend() - brace);
  if (end <= safetensors_prefix_size) return;
  const std::uint64_t length = end - safetensors_prefix_size;
  std::vector<std::uint8_t> repaired(bytes.begin(), bytes.end());
  std::memcpy(repaired.data(), &length, safetensors_prefix_size);
  read(repaired);
}

}  // namespace
}  // namespace artesian::models

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  artesian::models::read(bytes);
  artesian::models::read_with_right_length(bytes);
  return 0;
}
