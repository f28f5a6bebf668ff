#include "zero3/step/config_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>

namespace artesian::zero3 {
namespace {

constexpr std::size_t file_size_max = (1 << 20) + 1;  // one more byte than the parser accepts

Result<std::string> read_text(const std::string& path) {
  const auto fail = [&] {
    Error error = make_error(ErrorCode::Io, "cannot read the config", errno);
    error.file = path;
    return error;
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) return fail();
  std::string text(file_size_max, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return fail();
  return text;
}

}  // namespace

Result<Config> read_config(const std::string& path, const ConfigArguments& arguments) {
  ARTESIAN_TRY(text, read_text(path));
  return parse_config(text, path, arguments);
}

}  // namespace artesian::zero3
