// Detects the format of the files of `--data` from their names and bytes: token ids, text, or JSON
// lines. Other files are refused by name, so that nobody trains on the bytes of an archive.
// python/artesian_tokenize.py has the same rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::models {

enum class DataForm : std::uint8_t { TokenIds, Text, JsonLines };

struct DataFile {
  std::string path;
  DataForm form = DataForm::Text;
  std::uint64_t size = 0;  // bytes
};

/// Returns the file, or every regular file below the folder, sorted by the components of their
/// paths. Hidden files (names that begin with a dot, __MACOSX) are left out and logged. `.bin`
/// means token ids, and must be a single file; `.jsonl` and `.ndjson` are JSON lines, and so is any
/// other file if `text_field` is given, or if its first two lines are objects with a string "text".
/// Reads the beginning of each file, and samples of large ones. Errors: Io; Invalid (missing file,
/// unsupported format, more than 3% bytes that are not text).
Result<std::vector<DataFile>> list_data(const std::string& path,
                                        const std::optional<std::string>& text_field = {});

/// Makes the error Invalid, "data: PATH: TEXT": the form of all errors about `--data`.
Error data_error(const std::string& path, const std::string& text);

/// Counts bytes that cannot be UTF-8 text: NUL, and invalid sequences. Characters cut at the ends
/// are accepted.
std::uint64_t bad_text_bytes(const std::string& block) noexcept;

}  // namespace artesian::models
