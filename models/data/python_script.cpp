#include "models/data/python_script.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>

extern char** environ;

namespace artesian::models {

std::string script_python() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here changes the environment
  const char* given = std::getenv("ARTESIAN_PYTHON");
  if (given != nullptr && *given != '\0') return given;
  const std::string built_with = ARTESIAN_PYTHON_DEFAULT;
  return !built_with.empty() && ::access(built_with.c_str(), X_OK) == 0 ? built_with : "python3";
}

std::string script_folder() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto installed = program.parent_path().parent_path() / "share/artesian/python";
  if (std::filesystem::exists(installed / "artesian_tokenize.py", ignored)) return installed;
  return ARTESIAN_SCRIPTS;
}

std::vector<std::string> script_environment() {
  constexpr std::string_view name = "PYTHONPATH=";
  std::vector<std::string> variables;
  std::string path(name);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(name)) {
      variables.emplace_back(text);
    } else if (text.size() > name.size()) {
      path = std::string(text) + ":";
    }
  }
  variables.push_back(path + script_folder());
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace artesian::models
