// JSON lines: a file with one object per line, of which one field is the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "models/file_io.h"

namespace artesian::models {

/// Returns the text of a line; nothing if the line is not an object with a string field of this
/// name.
std::optional<std::string> json_line_text(std::string_view line, const std::string& field);

/// True if the first two complete lines in this beginning of a file are such objects.
bool looks_like_json_lines(std::string_view head, const std::string& field);

/// The texts of a file's lines, a line end after each, in an unnamed file in the folder for
/// temporary files. Errors: Io, NoSpace; Invalid, which names the line that has no text.
Result<InputFile> text_of_json_lines(const std::string& path, const std::string& field);

}  // namespace artesian::models
