// Any bytes as a token file or a text: accepted exactly when a reader of a few lines accepts it,
// and then each sample is the window that this reader cuts.
//
// Input: a byte of choices, the sequence length less 1, the vocabulary's size less 1 (two bytes,
// little-endian; ids of 32 bits add 65536), then the file.
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/token_data.h"
#include "tests/support/fuzz_input.h"
#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

constexpr std::size_t head_size = 4;
constexpr std::array<std::uint64_t, 5> sample_numbers{0, 1, 7, 1'000'003, ~std::uint64_t{0}};

/// The names under which the reader opens the input: the ending decides what it is.
struct Names {
  Names() {
    std::filesystem::create_symlink(input.path(), directory.file("data.bin"));
    std::filesystem::create_symlink(input.path(), directory.file("data.txt"));
  }
  test_support::InputInMemory input;
  test_support::TemporaryDirectory directory;
};

std::vector<std::int64_t> naive_ids(std::span<const std::uint8_t> bytes, std::size_t width) {
  std::vector<std::int64_t> ids(bytes.size() / width);
  for (std::size_t i = 0; i < bytes.size() - bytes.size() % width; ++i) {
    ids[i / width] |= std::int64_t{bytes[i]} << (8 * (i % width));
  }
  return ids;
}

bool naive_accepts(std::span<const std::uint8_t> bytes, std::size_t width, bool text,
                   const std::vector<std::int64_t>& ids, const TokenDataOptions& options) {
  if (text && options.vocab_size < 256) return false;
  for (const std::int64_t id : ids) {
    if (id >= options.vocab_size) return false;
  }
  return bytes.size() % width == 0 &&
         ids.size() >= static_cast<std::uint64_t>(options.sequence_length) + 1;
}

/// True if the reader may refuse it, or read it in another form, judged by its bytes: a known
/// format, binary data, JSON lines, wider ids.
bool is_other_form(std::span<const std::uint8_t> bytes, bool text,
                   const std::vector<std::int64_t>& ids) {
  static const std::string firsts("\x1f\x28\x42\xfd\x04PA7\x7f\x93\x89S%\xff\x80\xfe");
  if (!bytes.empty() && firsts.find(static_cast<char>(bytes[0])) != firsts.npos) return true;
  if (!text) {
    for (std::size_t i = 1; i < ids.size(); i += 2) {
      if (ids[i] != 0) return false;
    }
    return ids.size() >= 32;
  }
  std::size_t strange = 0;
  for (const std::uint8_t byte : bytes) strange += byte == 0 || byte >= 0x80 ? 1 : 0;
  const std::string_view shown(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return strange >= 16 || shown.find("ustar") != shown.npos || shown.find('{') != shown.npos;
}

void check_samples(TokenData& data, const std::vector<std::int64_t>& ids,
                   const TokenDataOptions& options) {
  const auto length = static_cast<std::uint64_t>(options.sequence_length);
  ARTESIAN_CHECK(data.tokens() == ids.size(), data.tokens(), ids.size());
  ARTESIAN_CHECK(data.samples() == (ids.size() - 1) / length, data.samples());
  std::vector<std::int64_t> inputs(length);
  std::vector<std::int64_t> targets(length);
  for (const std::uint64_t number : sample_numbers) {
    ARTESIAN_CHECK(data.sample(number, inputs, targets).has_value(), number);
    std::uint64_t window = number % data.samples();
    if (options.order == SampleOrder::Shuffled) {
      window = permuted(window, data.samples(), options.seed, number / data.samples());
    }
    ARTESIAN_CHECK(window < data.samples(), window, data.samples());
    for (std::uint64_t i = 0; i < length; ++i) {
      ARTESIAN_CHECK(inputs[i] == ids[window * length + i], number, i);
      ARTESIAN_CHECK(targets[i] == ids[window * length + i + 1], number, i);
    }
  }
}

void read(std::span<const std::uint8_t> head, std::span<const std::uint8_t> bytes) {
  static Names names;
  names.input.fill(bytes);
  const bool text = (head[0] & 1) != 0;
  const bool wide = (head[0] & 2) != 0;
  const std::int64_t vocab_size = 1 + head[2] + 256 * head[3] + (wide ? 65536 : 0);
  const TokenDataOptions options{
      .paths = {names.directory.file(text ? "data.txt" : "data.bin")},
      .model_directory = names.directory.path(),
      .vocab_size = vocab_size,
      .sequence_length = 1 + head[1],
      .order = (head[0] & 4) != 0 ? SampleOrder::Shuffled : SampleOrder::Sequential,
      .seed = head[0]};
  const std::size_t width = text ? 1 : wide ? 4 : 2;
  const auto ids = naive_ids(bytes, width);
  auto data = TokenData::open(options);
  const bool may_be_another = is_other_form(bytes, text, ids);  // token_data_test.cpp has these
  if (may_be_another && data.has_value() && text) return;       // as JSON lines, for example
  const bool accepts = naive_accepts(bytes, width, text, ids, options);
  ARTESIAN_CHECK(data.has_value() == accepts || (may_be_another && !data.has_value()));
  if (data.has_value()) return check_samples(*data, ids, options);
  ARTESIAN_CHECK(data.error().code == ErrorCode::Invalid);
  test_support::check_shown(data.error().to_string(), 1);
}

}  // namespace
}  // namespace artesian::models

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace artesian::models;
  if (size < head_size) return 0;
  const std::span<const std::uint8_t> input(data, size);
  read(input.first(head_size), input.subspan(head_size));
  return 0;
}
