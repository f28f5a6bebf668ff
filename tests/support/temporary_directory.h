// A directory of its own for one test, removed with all that is in it. It lies in the current
// directory (of the build, under ctest), which is on a disk where /tmp may be memory.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace artesian::test_support {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = ".") {
    std::string pattern = std::filesystem::absolute(parent).lexically_normal() / "artesian-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      std::perror("mkdtemp");
      std::abort();
    }
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Writes or replaces a file; returns its path. Folders in `name` are made.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string target = file(name);
    std::filesystem::create_directories(std::filesystem::path(target).parent_path());
    std::ofstream(target, std::ios::binary | std::ios::trunc) << bytes;
    return target;
  }
  std::string read(const std::string& name) const {
    std::ifstream source(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(source), {}};
  }

 private:
  std::string path_;
};

}  // namespace artesian::test_support
