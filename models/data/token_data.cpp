#include "models/data/token_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "base/log.h"
#include "base/random.h"
#include "kernels/checksum.h"
#include "models/data/data_form.h"
#include "models/data/token_cache.h"
#include "models/data/tokenize.h"

namespace artesian::models {
namespace {

constexpr std::int64_t byte_vocabulary = 256;
constexpr std::uint64_t much_bytes = 256 << 20;
// Distinct from the streams of parameters.
constexpr std::uint64_t shuffle_streams = std::uint64_t{1} << 63;
constexpr unsigned feistel_rounds = 6;

bool file_exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// Consecutive paths of text, which are tokenised together.
struct Text {
  std::vector<std::string> paths;
  std::vector<DataFile> files;
};

Result<std::unique_ptr<TokenSource>> tokenize(const TokenDataOptions& options, const Text& text,
                                              const std::string& tokenizer) {
  const TokenCache cache(options.token_cache);
  TokenOrigin origin{
      .files = text.files,
      .settings = {tokenizer, tokenize_script()},
      .parameters = fmt::format("{} {}", options.vocab_size, options.text_field.value_or("text"))};
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "config.json"}) {
    // These files name the end-of-text token.
    origin.settings.push_back(options.model_directory + "/" + name);
  }
  std::string key;
  if (cache.keeps()) {
    ARTESIAN_TRY(made, TokenCache::key(origin));
    key = std::move(made);
    const auto kept = cache.find(key);
    if (kept.has_value()) {
      auto source = open_token_file(*kept, options.vocab_size, IdsFrom::Tokenizer);
      if (source.has_value()) {
        log(LogLevel::Info,
            "data: tokens of an earlier run: " + *kept + "; --no-token-cache tokenises anew");
        return source;
      }
    }
  }
  if (options.before_long_work) ARTESIAN_TRY_VOID(options.before_long_work());
  const auto keep = [&](const std::string& path) {
    const auto kept = cache.keep(key, path);
    if (kept.has_value()) return;
    log(LogLevel::Info, "data: tokens are not kept for later runs: " + kept.error().to_string());
  };
  return tokenize_text({.inputs = text.paths,
                        .text_field = options.text_field,
                        .tokenizer_file = tokenizer,
                        .vocab_size = options.vocab_size,
                        .stopped = options.stopped,
                        .made = keep});
}

Result<std::unique_ptr<TokenSource>> open_text(const TokenDataOptions& options, const Text& text) {
  const std::string tokenizer = options.model_directory + "/tokenizer.json";
  if (file_exists(tokenizer)) return tokenize(options, text, tokenizer);
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.model"}) {
    if (!file_exists(options.model_directory + "/" + name)) continue;
    return data_error(text.paths.front(),
                      options.model_directory + " has " + name +
                          " but no tokenizer.json, which is the form that is read; "
                          "save the tokenizer with transformers, or give a .bin file");
  }
  if (options.vocab_size < byte_vocabulary) {
    return data_error(text.paths.front(),
                      fmt::format("text without a tokenizer is read as bytes: got vocab_size {}, "
                                  "allowed 256 or more; add tokenizer.json, or give a .bin file",
                                  options.vocab_size));
  }
  return open_text_bytes(text.files, options.text_field.value_or("text"));
}

Result<std::unique_ptr<TokenSource>> open_ids(const TokenDataOptions& options,
                                              const std::string& path) {
  ARTESIAN_TRY(source, open_token_file(path, options.vocab_size));
  log(LogLevel::Info, fmt::format("data: {}: read as uint{}: {} tokens", path,
                                  8 * id_width(options.vocab_size), source->count()));
  return source;
}

/// Logs before checking all ids and hashing all text, which takes a while for gigabytes.
Result<void> announce(const TokenDataOptions& options, const std::vector<DataFile>& files) {
  std::uint64_t bytes = 0;
  for (const DataFile& file : files) bytes += file.size;
  if (bytes < much_bytes || !options.before_long_work) return {};
  return options.before_long_work();
}

/// Opens files of ids in the order of the paths, and tokenises text only after all paths have been
/// checked, so that errors are found first.
Result<std::unique_ptr<TokenSource>> open_source(const TokenDataOptions& options) {
  std::vector<Text> texts;
  std::vector<std::unique_ptr<TokenSource>> sources;  // null: stands for the next of `texts`
  for (const std::string& path : options.paths) {
    ARTESIAN_TRY(files, list_data(path, options.text_field));
    if (files.size() == 1 && files.front().form == DataForm::TokenIds) {
      ARTESIAN_TRY_VOID(announce(options, files));
      ARTESIAN_TRY(ids, open_ids(options, path));
      sources.push_back(std::move(ids));
      continue;
    }
    if (sources.empty() || sources.back() != nullptr) {
      sources.emplace_back();
      texts.emplace_back();
    }
    ARTESIAN_TRY_VOID(announce(options, files));
    texts.back().paths.push_back(path);
    texts.back().files.insert(texts.back().files.end(), files.begin(), files.end());
  }
  auto text = texts.begin();
  for (auto& source : sources) {
    if (source != nullptr) continue;
    ARTESIAN_TRY(opened, open_text(options, *text++));
    source = std::move(opened);
  }
  return join_sources(std::move(sources));
}

}  // namespace

// A Feistel network over the smallest even number of bits that covers the count, iterated until the
// result is in range: at most 4 iterations on average. Source: Black & Rogaway 2002, "Ciphers with
// arbitrary finite domains".
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t seed,
                       std::uint64_t number) noexcept {
  ARTESIAN_CHECK(index < count, index, count);
  const auto bits = static_cast<unsigned>(std::bit_width(count - 1));
  const unsigned half = std::max(1u, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < feistel_rounds; ++round) {
      const std::uint64_t word = random_word(seed, shuffle_streams + number, round << 56 | right);
      left ^= word & mask;
      std::swap(left, right);
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

TokenData::TokenData(TokenDataOptions options, std::unique_ptr<TokenSource> source)
    : options_(std::move(options)), source_(std::move(source)) {
  const auto length = static_cast<std::uint64_t>(options_.sequence_length);
  samples_ = (source_->count() - 1) / length;
  window_.resize(length + 1);
}

Result<TokenData> TokenData::open(const TokenDataOptions& options) {
  ARTESIAN_CHECK(options.vocab_size > 0 && options.sequence_length > 0, options.sequence_length);
  ARTESIAN_CHECK(!options.paths.empty());
  ARTESIAN_TRY(source, open_source(options));
  const std::string& path = options.paths.front();
  if (source->count() == 0) return data_error(path, "no text or tokens in it");
  const auto needed = static_cast<std::uint64_t>(options.sequence_length) + 1;
  if (source->count() < needed) {
    return data_error(path,
                      fmt::format("got {} tokens, allowed {} or more for a sequence length of {}",
                                  source->count(), needed, options.sequence_length));
  }
  return TokenData(options, std::move(source));
}

Result<std::string> TokenData::digest() noexcept {
  constexpr std::uint64_t pieces = 64;
  constexpr std::uint64_t piece_max = 16'384;
  const std::uint64_t count = tokens();
  const std::uint64_t piece = std::min(piece_max, count);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(piece));
  std::vector<std::uint32_t> narrow(ids.size());
  kernels::Digest total;
  // The pieces of a short stream overlap, and together cover all of it.
  for (std::uint64_t index = 0; index < (piece == count ? 1 : pieces); ++index) {
    const std::uint64_t begin = (count - piece) * index / (pieces - 1);
    ARTESIAN_TRY_VOID(source_->read(begin, ids));
    for (std::size_t at = 0; at < ids.size(); ++at)
      narrow[at] = static_cast<std::uint32_t>(ids[at]);
    total.update(narrow.data(), narrow.size() * sizeof(std::uint32_t));
  }
  return total.hex();
}

Result<void> TokenData::sample(std::uint64_t sample_number, std::span<std::int64_t> ids,
                               std::span<std::int64_t> targets) noexcept {
  const auto length = static_cast<std::uint64_t>(options_.sequence_length);
  ARTESIAN_CHECK(ids.size() == length && targets.size() == length, ids.size(), targets.size());
  std::uint64_t window = sample_number % samples_;
  if (options_.order == SampleOrder::Shuffled) {
    window = permuted(window, samples_, options_.seed, sample_number / samples_);
  }
  ARTESIAN_TRY_VOID(source_->read(window * length, window_));
  std::copy(window_.begin(), window_.end() - 1, ids.begin());
  std::copy(window_.begin() + 1, window_.end(), targets.begin());
  return {};
}

}  // namespace artesian::models
