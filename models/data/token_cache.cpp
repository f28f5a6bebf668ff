#include "models/data/token_cache.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "kernels/checksum.h"
#include "models/file_io.h"

namespace artesian::models {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view version = "1";  // version of the cache's format
constexpr const char* ending = ".bin";

Error cache_error(const char* what, const std::string& path, int number) {
  Error error = make_error(number == ENOSPC ? ErrorCode::NoSpace : ErrorCode::Io, what, number);
  error.file = path;
  return error;
}

void add_text(kernels::Digest& digest, std::string_view name, std::string_view text) {
  digest.start_named(name, text.size());
  digest.update(text.data(), text.size());
}

Result<void> add_file(kernels::Digest& digest, std::string_view name, const std::string& path) {
  ARTESIAN_TRY(file, InputFile::open(path));
  digest.start_named(name, file.size());
  return each_block(file, [&](const char* data, std::uint64_t size) -> Result<void> {
    digest.update(data, size);
    return {};
  });
}

}  // namespace

Result<std::string> TokenCache::key(const TokenOrigin& origin) {
  kernels::Digest digest;
  add_text(digest, "version", version);
  add_text(digest, "parameters", origin.parameters);
  for (const std::string& path : origin.settings) {
    std::error_code failed;
    if (!fs::exists(path, failed)) {
      add_text(digest, "none", "");
    } else {
      ARTESIAN_TRY_VOID(add_file(digest, "settings", path));
    }
  }
  for (const DataFile& file : origin.files) {
    const char* name = file.form == DataForm::JsonLines ? "lines" : "text";
    ARTESIAN_TRY_VOID(add_file(digest, name, file.path));
  }
  return digest.hex();
}

std::optional<std::string> TokenCache::find(const std::string& key) const {
  if (!keeps()) return std::nullopt;
  const std::string path = folder_ + "/" + key + ending;
  if (::access(path.c_str(), R_OK) != 0) return std::nullopt;
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // if that fails, the entry is evicted sooner
  return path;
}

/// Removes the least recently used entries until `bytes` more stay within the limit.
void TokenCache::make_room(std::uint64_t bytes) const {
  struct Kept {
    fs::file_time_type used;
    fs::path path;
    std::uint64_t size;
  };
  std::vector<Kept> kept;
  std::uint64_t sum = bytes;
  std::error_code failed;
  for (fs::directory_iterator entry(folder_, failed); !failed && entry != end(entry);
       entry.increment(failed)) {
    std::error_code gone;
    const auto size = entry->file_size(gone);
    const auto used = entry->last_write_time(gone);
    if (gone) continue;
    kept.push_back({used, entry->path(), size});
    sum += size;
  }
  std::sort(kept.begin(), kept.end(),
            [](const Kept& left, const Kept& right) { return left.used < right.used; });
  for (const Kept& each : kept) {
    if (sum <= bytes_max_) return;
    if (fs::remove(each.path, failed)) sum -= each.size;
  }
}

Result<void> TokenCache::keep(const std::string& key, const std::string& path) const {
  if (!keeps()) return {};
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  if (failed || size > bytes_max_) return {};  // larger than the whole cache
  fs::create_directories(folder_, failed);
  if (failed) return cache_error("cannot make the folder", folder_, failed.value());
  make_room(size);
  const std::string partial = fmt::format("{}/{}.partial-{}", folder_, key, ::getpid());
  fs::remove(partial, failed);
  auto copied = [&]() -> Result<void> {
    ARTESIAN_TRY(output, OutputFile::create(partial));
    ARTESIAN_TRY(input, InputFile::open(path));
    ARTESIAN_TRY_VOID(each_block(input, [&](const char* data, std::uint64_t length) {
      return output.append(data, length);
    }));
    ARTESIAN_TRY_VOID(output.finish());
    const std::string name = folder_ + "/" + key + ending;
    if (::rename(partial.c_str(), name.c_str()) == 0) return {};
    return cache_error("cannot rename", partial, errno);
  }();
  if (!copied.has_value()) fs::remove(partial, failed);
  return copied;
}

std::string default_token_cache() {
  // NOLINTBEGIN(concurrency-mt-unsafe): nothing here changes the environment
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/artesian/tokens";
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/artesian/tokens" : "";
}

}  // namespace artesian::models
