#include "models/data/data_form.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/log.h"
#include "base/safetensors_header.h"
#include "base/utf8.h"
#include "models/data/json_lines.h"
#include "models/file_io.h"

namespace artesian::models {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::uint64_t head_bytes = 256 << 10;
constexpr std::uint64_t samples = 64;
constexpr std::uint64_t sample_bytes = 16 << 10;
constexpr std::uint64_t bad_percent_max = 3;
constexpr std::uint64_t bad_least = 16;

struct Magic {
  std::string_view bytes;
  const char* name;
  const char* fix;
};
constexpr const char* as_lines = "write its text as JSON lines";
constexpr std::array known_forms{
    Magic{"\x1f\x8b\x08"sv, "gzip", "unpack it: gzip -d"},
    Magic{"\x28\xb5\x2f\xfd"sv, "zstd", "unpack it: zstd -d"},
    Magic{"BZh"sv, "bzip2", "unpack it: bzip2 -d"},
    Magic{"\xfd\x37zXZ\0"sv, "xz", "unpack it: xz -d"},
    Magic{"\x04\x22\x4d\x18"sv, "lz4", "unpack it: lz4 -d"},
    Magic{"PK\x03\x04"sv, "zip", "unpack it: unzip"},
    Magic{"7z\xbc\xaf\x27\x1c"sv, "7z", "unpack it: 7z x"},
    Magic{"PAR1"sv, "Parquet", "write its text as JSON lines, as pandas does: to_json(lines=True)"},
    Magic{"ARROW1"sv, "Arrow", as_lines},
    Magic{"\x7f\x45LF"sv, "an ELF program", "name a text file"},
    Magic{"\x93NUMPY"sv, "a numpy array", "write its ids as .bin: array.astype('<u2').tofile(...)"},
    Magic{"\x89HDF"sv, "HDF5", as_lines},
    Magic{"SQLite format 3"sv, "an SQLite database", as_lines},
    Magic{"%PDF"sv, "PDF", "extract its text: pdftotext"},
    Magic{"\x89PNG"sv, "a PNG picture", "name a text file"},
    Magic{"\xff\xd8\xff"sv, "a JPEG picture", "name a text file"},
    Magic{"\x80\x02"sv, "a pickle", as_lines},
    Magic{"\x80\x04"sv, "a pickle", as_lines},
    Magic{"\xff\xfe"sv, "UTF-16", "convert it: iconv -f utf-16 -t utf-8"},
    Magic{"\xfe\xff"sv, "UTF-16", "convert it: iconv -f utf-16 -t utf-8"}};
// Shorter magic numbers are not searched for in a file of ids, as two or three bytes may be valid
// ids.
constexpr std::size_t magic_of_ids_least = 4;
constexpr std::size_t tar_magic_offset = 257;

Error other_form(const std::string& path, const Magic& magic, bool ids) {
  return data_error(path, std::string("got ") + magic.name + ", allowed " +
                              (ids ? "little-endian token ids" : "text (UTF-8) or JSON lines") +
                              "; " + magic.fix);
}

Result<void> check_magic(const std::string& path, std::string_view head, bool ids) {
  for (const Magic& magic : known_forms) {
    const bool gzip = magic.bytes.starts_with('\x1f');
    if (ids && !gzip && magic.bytes.size() < magic_of_ids_least) continue;
    if (head.starts_with(magic.bytes)) return other_form(path, magic, ids);
  }
  if (!ids && head.size() > tar_magic_offset &&
      head.substr(tar_magic_offset).starts_with("ustar")) {
    return other_form(path, {{}, "a tar archive", "unpack it: tar -x"}, ids);
  }
  return {};
}

Result<std::string> read_block(const InputFile& file, std::uint64_t offset, std::uint64_t length) {
  std::string block(std::min(length, file.size() - offset), '\0');
  ARTESIAN_TRY_VOID(file.read_at(block.data(), block.size(), offset));
  return block;
}

/// Checks all of a small file; of a large one samples, including the beginning and the end.
Result<void> check_is_text(const InputFile& file) {
  const bool whole = file.size() <= samples * sample_bytes;
  std::uint64_t seen = 0;
  std::uint64_t bad = 0;
  for (std::uint64_t sample = 0; sample < samples; ++sample) {
    const std::uint64_t offset =
        whole ? sample * sample_bytes : (file.size() - sample_bytes) / (samples - 1) * sample;
    if (offset >= file.size()) break;
    ARTESIAN_TRY(block, read_block(file, offset, sample_bytes));
    seen += block.size();
    bad += bad_text_bytes(block);
  }
  if (bad < bad_least || 100 * bad <= bad_percent_max * seen) return {};
  return data_error(file.path(),
                    fmt::format("{}% of its bytes are no UTF-8 text, allowed {}%; convert it "
                                "(iconv -t utf-8), or give token ids as .bin",
                                100 * bad / seen, bad_percent_max));
}

bool ends_with(const std::string& path, std::string_view ending) {
  if (path.size() < ending.size()) return false;
  return std::equal(ending.begin(), ending.end(), path.end() - static_cast<long>(ending.size()),
                    [](char left, char right) { return left == (right | 0x20) || left == right; });
}

/// True for files that editors, version control, downloads and archives leave in a folder.
bool is_hidden(std::string_view name) {
  return name.starts_with('.') || name == "__MACOSX";
}

void say_hidden(const std::string& path, const std::set<std::string>& names) {
  constexpr std::size_t shown_max = 5;
  if (names.empty()) return;
  std::string shown;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (count++ == shown_max) {
      shown += ", ...";
      break;
    }
    shown += (shown.empty() ? "" : ", ") + shown_name(name);
  }
  log_once(LogLevel::Info, "data: " + path + ": left out what is hidden: " + shown);
}

Result<DataFile> look_at(const std::string& path, const std::optional<std::string>& text_field) {
  ARTESIAN_TRY(file, InputFile::open(path));
  DataFile found{.path = path, .form = DataForm::Text, .size = file.size()};
  ARTESIAN_TRY(head, read_block(file, 0, head_bytes));
  if (path.ends_with(".bin")) {
    found.form = DataForm::TokenIds;
    ARTESIAN_TRY_VOID(check_magic(path, head, /*ids=*/true));
    return found;
  }
  ARTESIAN_TRY_VOID(check_magic(path, head, /*ids=*/false));
  ARTESIAN_TRY_VOID(check_is_text(file));
  const bool named = ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
  if (named || text_field.has_value() || looks_like_json_lines(head, "text")) {
    found.form = DataForm::JsonLines;
  }
  return found;
}

}  // namespace

Error data_error(const std::string& path, const std::string& text) {
  return make_error(ErrorCode::Invalid, "data: " + path + ": " + text);
}

std::uint64_t bad_text_bytes(const std::string& block) noexcept {
  std::string_view rest = block;
  const auto continues = [&] {
    return (static_cast<unsigned char>(rest.front()) & 0xc0u) == 0x80u;
  };
  for (int skipped = 0; skipped < 3 && !rest.empty() && continues(); ++skipped) {
    rest.remove_prefix(1);
  }
  std::uint64_t bad = 0;
  while (!rest.empty()) {
    const std::size_t length = utf8_sequence(rest);
    bad += length == 0 || rest.front() == '\0' ? 1 : 0;
    rest.remove_prefix(std::min(std::max<std::size_t>(length, 1), rest.size()));
  }
  return bad;
}

Result<std::vector<DataFile>> list_data(const std::string& path,
                                        const std::optional<std::string>& text_field) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) return data_error(path, "no such file or folder");
  std::vector<DataFile> found;
  if (!std::filesystem::is_directory(status)) {
    ARTESIAN_TRY(file, look_at(path, text_field));
    found.push_back(std::move(file));
    return found;
  }
  std::vector<std::filesystem::path> files;
  std::set<std::string> hidden;
  std::filesystem::recursive_directory_iterator entry(path, failure);
  for (; !failure && entry != end(entry); entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (is_hidden(name)) {
      hidden.insert(name);
      entry.disable_recursion_pending();
      continue;
    }
    if (entry->is_regular_file(failure)) files.push_back(entry->path());
    failure.clear();  // a dangling link, or a file that has disappeared, is skipped
  }
  if (failure) return data_error(path, "cannot list the folder: " + failure.message());
  say_hidden(path, hidden);
  std::sort(files.begin(), files.end());
  for (const auto& name : files) {
    ARTESIAN_TRY(file, look_at(name.string(), text_field));
    if (file.form == DataForm::TokenIds) {
      return data_error(file.path,
                        "token ids in a folder, allowed text; name the file itself: "
                        "--data may be repeated");
    }
    found.push_back(std::move(file));
  }
  return found;
}

}  // namespace artesian::models
