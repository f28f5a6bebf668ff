#include "base/kernel_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace artesian {
namespace {

std::string trimmed(const std::string& text, const char* what = " \t\r\n") {
  const auto first = text.find_first_not_of(what);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trimmed(line);
}

std::optional<std::int64_t> number_of(const std::string& path) {
  const std::string line = first_line_of(path);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  (void)end;
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

std::string value_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return trimmed(line.substr(key.size()), " \t:");
  }
  return "";
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace artesian
