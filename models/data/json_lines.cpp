#include "models/data/json_lines.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "models/data/temporary_folder.h"

namespace artesian::models {
namespace {

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == line.npos;
}

/// Takes a file in pieces of any size and writes the texts of its lines.
class Converter {
 public:
  Converter(const std::string& path, const std::string& field, OutputFile& output)
      : path_(path), field_(field), output_(output) {}

  Result<void> take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      line_ += bytes.substr(0, end);
      if (end == bytes.npos) return {};
      ARTESIAN_TRY_VOID(finish_line());
      bytes.remove_prefix(end + 1);
    }
    return {};
  }

  Result<void> finish_line() {
    ++number_;
    std::string_view line = line_;
    if (number_ == 1 && line.starts_with(byte_order_mark)) {
      line.remove_prefix(byte_order_mark.size());
    }
    if (!blank(line)) {
      auto text = json_line_text(line, field_);
      if (!text.has_value()) {
        return make_error(ErrorCode::Invalid,
                          fmt::format("data: {}: line {}: allowed a JSON object with a string "
                                      "\"{}\"; repair it, or name the field: --text-field",
                                      path_, number_, field_));
      }
      *text += '\n';
      ARTESIAN_TRY_VOID(output_.append(text->data(), text->size()));
    }
    line_.clear();
    return {};
  }

 private:
  const std::string& path_;
  const std::string& field_;
  OutputFile& output_;
  std::string line_;
  std::uint64_t number_ = 0;
};

}  // namespace

std::optional<std::string> json_line_text(std::string_view line, const std::string& field) {
  const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return std::nullopt;
  const auto text = value.find(field);
  if (text == value.end() || !text->is_string()) return std::nullopt;
  return text->get<std::string>();
}

bool looks_like_json_lines(std::string_view head, const std::string& field) {
  if (head.starts_with(byte_order_mark)) head.remove_prefix(byte_order_mark.size());
  int seen = 0;
  while (seen < 2) {
    const std::size_t end = head.find('\n');
    if (end == head.npos) break;
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 1);
    if (blank(line)) continue;
    if (!json_line_text(line, field).has_value()) return false;
    ++seen;
  }
  return seen != 0 || json_line_text(head, field).has_value();
}

Result<InputFile> text_of_json_lines(const std::string& path, const std::string& field) {
  ARTESIAN_TRY(folder, TemporaryFolder::make());
  const std::string name = folder.path() + "/text";
  ARTESIAN_TRY(output, OutputFile::create(name));
  ARTESIAN_TRY(file, InputFile::open(path));
  Converter converter(path, field, output);
  ARTESIAN_TRY_VOID(each_block(file, [&](const char* data, std::uint64_t size) {
    return converter.take({data, static_cast<std::size_t>(size)});
  }));
  ARTESIAN_TRY_VOID(converter.finish_line());
  return InputFile::open(name);
}

}  // namespace artesian::models
