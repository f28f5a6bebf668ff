#include "tools/shell/standard_output.h"

#include <cerrno>
#include <cstdio>

namespace artesian::tools {
namespace {

Error cannot_write() {
  return make_error(ErrorCode::Io, "stdout: cannot write", errno);
}

}  // namespace

Result<void> write_stdout(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return cannot_write();
  return flush_stdout();
}

Result<void> flush_stdout() {
  errno = 0;  // the errno of an earlier failed write is unknown
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return cannot_write();
}

}  // namespace artesian::tools
