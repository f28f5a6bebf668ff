// The form of the files of `--data`, told by their names and their bytes: token ids, text, or JSON
// lines. What is none of these is refused by name, so that nobody trains on the bytes of an
// archive. python/artesian_tokenize.py has the same rules.
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

/// The file, or every regular file below the folder, sorted by the parts of their paths, without
/// what is hidden (names that begin with a dot, __MACOSX), which is logged. `.bin` is
/// token ids, and alone; `.jsonl` and `.ndjson` are JSON lines, and so is any other file if
/// `text_field` is given, or if its first two lines are objects with a string "text". Reads the
/// beginning of each file, and of large ones samples. Errors: Io; Invalid (missing, a format that
/// is not read, more than 3% of bytes that no text has).
Result<std::vector<DataFile>> list_data(const std::string& path,
                                        const std::optional<std::string>& text_field = {});

/// Invalid, "data: PATH: TEXT": the form of all errors about `--data`.
Error data_error(const std::string& path, const std::string& text);

/// Bytes that no UTF-8 text has: NUL, and those that are not UTF-8. The ends may cut a character.
std::uint64_t bad_text_bytes(const std::string& block) noexcept;

}  // namespace artesian::models
